import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
data = TensorDataset(torch.randn(96, 4), torch.randint(0, 3, (96,)))
loader = DataLoader(data, batch_size=8, shuffle=True)
model = torch.nn.Linear(4, 3)
opt = torch.optim.SGD(model.parameters(), lr=0.0)

def step(x, y):
    out = model(x)
    loss = F.cross_entropy(out, y)
    opt.zero_grad()
    loss.backward()
    opt.step()
    return loss, out

class Tally:
    def __init__(self, **kw):
        self.__dict__.update(kw)
    def __iadd__(self, other):
        for k, v in other.items():
            setattr(self, k, getattr(self, k, 0) + v)
        return self
class Sums(dict):
    def add(self, **kw):
        for k, v in kw.items():
            self[k] = self.get(k, 0) + v
class Score:
    def __init__(self): self.loss = 0.0; self.n = 0
    def __iadd__(self, other):
        self.loss += other[0]; self.n += other[1]
        return self
    def __float__(self): return self.loss / self.n
    def __str__(self): return f"{float(self):.5f} over {self.n}"
for epoch in range(2):
    sums, score = Sums(), Score()
    for x, y in loader:
        loss, out = step(x, y)
        sums.add(loss=loss.item() * len(y), right=(out.argmax(1) == y).sum().item(), n=len(y))
        score += (loss.item() * len(y), len(y))
    print(f"a {sums['loss'] / sums['n']:.5f} {sums['right']} {score}")
