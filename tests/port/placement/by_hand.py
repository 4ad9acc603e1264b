import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
data = TensorDataset(torch.randn(96, 4), torch.randint(0, 3, (96,)))
loader = DataLoader(data, batch_size=8, shuffle=True)
model = nn.Linear(4, 3)
opt = torch.optim.SGD(model.parameters(), lr=0.0)

w = torch.zeros(4, 3, requires_grad=True)
for epoch in range(2):
    tot, sq = 0.0, 0.0
    for x, y in loader:
        loss = F.cross_entropy(x @ w, y) + model(x).sum() * 0
        loss.backward()
        with torch.no_grad():
            w -= 0.0 * w.grad
            w.grad.zero_()
        tot += loss.item()
        sq += loss.item() ** 2
    m = tot / len(loader)
    print(f"= {m:.5f} {(sq / len(loader) - m * m):.5f} {w.norm().item():.4f}")

inv = 1.0 / len(loader)
for epoch in range(2):
    tot = 0.0
    for x, y in loader:
        loss = F.cross_entropy(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        tot += loss.item()
    print(f"= {tot * inv:.5f}")

lam = 1.0 / len(loader)
for epoch in range(2):
    total = nll_sum = 0.0
    for x, y in loader:
        nll = F.cross_entropy(model(x), y)
        prior = sum((p ** 2).sum() for p in model.parameters())
        loss = nll + lam * prior
        opt.zero_grad()
        loss.backward()
        opt.step()
        total += loss.item()
        nll_sum += nll.item()
    print(f"= {epoch} {total / len(loader):.5f} {nll_sum * lam:.5f}")

