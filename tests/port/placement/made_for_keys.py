import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

# Dicts that a comprehension fills before the loop, and that iterations change under keys that are written out.
torch.manual_seed(0)
net = nn.Linear(6, 2)
opt = torch.optim.SGD(net.parameters(), lr=0.0)
train = {
    "reg": DataLoader(TensorDataset(torch.randn(96, 6), torch.randn(96, 2)), batch_size=8),
    "cls": DataLoader(TensorDataset(torch.randn(96, 6), torch.randint(0, 2, (96,))), batch_size=8),
}
LOSSES = {"reg": lambda o, y: F.mse_loss(o, y), "cls": lambda o, y: F.cross_entropy(o, y)}

names = ["loss", "n"] + [f"x{i}" for i in range(2)]
sums = {name: 5.0 for name in names}
for x, y in train["cls"]:
    loss = F.cross_entropy(net(x), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
    sums["loss"] += loss.item()
    sums["n"] += len(x)
    for name in ("x0", "x1"):
        sums[name] += 2 * loss.item()
print(f"= {sums['loss']:.5f} {sums['n']} {sums['loss'] / sums['n']:.5f} {sums['x0'] + sums['x1']:.5f}")

its = {task: iter(loader) for task, loader in train.items()}
lost = {task: 0.0 for task in train}
seen = {task: 0 for task in train}
for step in range(24):
    parts = {}
    for task in train:
        try:
            x, y = next(its[task])
        except StopIteration:
            its[task] = iter(train[task])
            x, y = next(its[task])
        parts[task] = LOSSES[task](net(x), y)
        lost[task] += parts[task].item() * len(x)
        seen[task] += len(x)
    loss = sum(parts.values())
    opt.zero_grad()
    loss.backward()
    opt.step()
    if (step + 1) % 12 == 0:
        print(f"= {step + 1} {lost['reg'] / seen['reg']:.5f} {lost['cls'] / seen['cls']:.5f}")
        for task in lost:
            lost[task], seen[task] = 0.0, 0
