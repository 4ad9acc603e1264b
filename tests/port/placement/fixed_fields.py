import torch
import torch.nn as nn
import torch.nn.functional as F
from dataclasses import dataclass, replace, asdict
from torch.utils.data import DataLoader, TensorDataset
from typing import NamedTuple

torch.manual_seed(0)
data = TensorDataset(torch.randn(96, 4), torch.randint(0, 3, (96,)))
loader = DataLoader(data, batch_size=8, shuffle=True)
model = nn.Linear(4, 3)
opt = torch.optim.SGD(model.parameters(), lr=0.0)

class Totals(NamedTuple):
    loss: float = 0.0
    right: int = 0
    n: int = 0
    def plus(self, loss, right, n):
        return Totals(self.loss + loss, self.right + right, self.n + n)
    @property
    def acc(self): return self.right / self.n
for epoch in range(2):
    t = Totals()
    for x, y in loader:
        out = model(x)
        loss = F.cross_entropy(out, y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        t = t.plus(loss.item() * len(y), (out.argmax(1) == y).sum().item(), len(y))
    print(f"= {t.loss / t.n:.5f} {t.acc:.5f} {t.n}")

@dataclass(frozen=True)
class S:
    loss: float = 0.
    n: int = 0
for epoch in range(2):
    s = S()
    for x, y in loader:
        loss = F.cross_entropy(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        s = replace(s, loss=s.loss + loss.item(), n=s.n + 1)
    d = asdict(s)
    print(f"= {d['loss'] / d['n']:.5f} {s.n}")

