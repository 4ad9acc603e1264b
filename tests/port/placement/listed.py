import torch
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
X = torch.randn(96, 4)
Y = X.sum(1, keepdim=True) + 0.1 * torch.randn(96, 1)
loader = DataLoader(TensorDataset(X, Y), batch_size=8)
model = torch.nn.Linear(4, 1)
opt = torch.optim.SGD(model.parameters(), lr=0.0)


def update(x, y):
    opt.zero_grad()
    loss = torch.nn.functional.mse_loss(model(x), y)
    loss.backward()
    opt.step()
    return loss.item()



total = n = 0
for x, y in list(loader):
    total += update(x, y)
    n += 1
print("list", total / n, n)

total = n = 0
for x, y in sorted(loader, key=lambda b: b[1].mean().item()):
    total += update(x, y)
    n += 1
print("sorted", total / n, n)

total = n = 0
for x, y in filter(lambda b: len(b[0]) == 8, loader):
    total += update(x, y)
    n += 1
print("filter", total / n, n)

kept = [(x.float(), y) for x, y in loader]
total = n = 0
for x, y in kept:
    total += update(x, y)
    n += 1
print("kept", total / n, n)

cached = []
for x, y in loader:
    cached.append((x, y))
total = n = 0
for x, y in cached:
    total += update(x, y)
    n += 1
print("cached", total / n, n)

xs, ys = [X[i : i + 8] for i in range(0, 96, 8)], [Y[i : i + 8] for i in range(0, 96, 8)]
total = n = 0
for x, y in zip(xs, ys):
    total += update(x, y)
    n += 1
print("zipped", total / n, n)

total = n = 0
for i, (x, y) in enumerate(loader):
    if i < 6: continue
    total += update(x, y)
    n += 1
print("skipped", total / n, n)

total = n = 0
for i, (x, y) in enumerate(loader):
    if i >= 6:
        with torch.no_grad():
            total += torch.nn.functional.mse_loss(model(x), y).item()
        n += 1
        continue
    update(x, y)
print("held out", total / n, n)
