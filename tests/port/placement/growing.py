import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from collections import deque
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
data = TensorDataset(torch.randn(96, 4), torch.randint(0, 3, (96,)))
loader = DataLoader(data, batch_size=8, shuffle=True)
model = nn.Linear(4, 3)
opt = torch.optim.SGD(model.parameters(), lr=0.0)

allp = np.array([])
ally = np.empty((0,), dtype=int)
for epoch in range(1):
    for x, y in loader:
        out = model(x)
        loss = F.cross_entropy(out, y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        allp = np.append(allp, out.softmax(1)[:, 1].detach().numpy())
        ally = np.concatenate([ally, y.numpy()])
    print(f"= {allp.mean():.5f} {len(allp)} {np.median(allp):.5f} {ally.sum()}")

preds = torch.empty(0)
labels = torch.tensor([], dtype=torch.long)
for epoch in range(1):
    for x, y in loader:
        out = model(x)
        loss = F.cross_entropy(out, y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        preds = torch.cat((preds, out.detach().max(1).values))
        labels = torch.cat([labels, y])
    print(f"= {preds.median():.5f} {preds.numel()} {labels.bincount().tolist()} {torch.quantile(preds, 0.9):.5f}")

class Smooth:
    def __init__(self, size=20): self.q = deque(maxlen=size); self.total = 0.0; self.count = 0
    def update(self, v, n=1): self.q.append(v); self.total += v * n; self.count += n
    @property
    def median(self): return torch.tensor(list(self.q)).median().item()
    @property
    def avg(self): return sum(self.q) / len(self.q)
    @property
    def global_avg(self): return self.total / self.count
    def __str__(self): return f"{self.median:.4f} ({self.global_avg:.4f})"
for epoch in range(2):
    m = {"loss": Smooth(), "acc": Smooth(4)}
    for x, y in loader:
        out = model(x)
        loss = F.cross_entropy(out, y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        m["loss"].update(loss.item())
        m["acc"].update((out.argmax(1) == y).float().mean().item(), len(y))
    print("=", " ".join(f"{k}: {v}" for k, v in m.items()), f"{m['acc'].avg:.5f}")

window = deque(maxlen=5)
for epoch in range(3):
    for x, y in loader:
        loss = F.cross_entropy(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        window.append(loss.item())
    print(f"= {epoch} {sum(window) / len(window):.5f} {max(window):.5f} {len(window)}")

