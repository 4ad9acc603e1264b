"""Meters that a dict makes when they are first asked for, and dicts of one value under each key."""
import collections

import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset


class Meter:
    def __init__(self):
        self.sum, self.count = 0.0, 0

    def update(self, value, n=1):
        self.sum += value * n
        self.count += n

    @property
    def mean(self):
        return self.sum / self.count


torch.manual_seed(0)
data = TensorDataset(torch.randn(96, 4), torch.randint(0, 3, (96,)))
loader = DataLoader(data, batch_size=8, shuffle=True)
model = torch.nn.Linear(4, 3)
opt = torch.optim.SGD(model.parameters(), lr=0.0)
for epoch in range(2):
    meters = collections.defaultdict(Meter)
    by_class = collections.defaultdict(lambda: Meter())
    running = dict.fromkeys(["loss", "size"], 0.0)
    every_other = 0.0
    for i, (x, y) in enumerate(loader):
        out = model(x)
        loss = F.cross_entropy(out, y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        losses = {"loss": loss.item(), "size": out.abs().mean().item()}
        for key, value in losses.items():
            meters[key].update(value, len(y))
        for target, score in zip(y.tolist(), out.max(1).values.tolist()):
            by_class[target].update(score)
        for key in running:
            running[key] += losses[key]
        if i % 6 == 0:
            every_other += 1
    print(f"a {epoch} {meters['loss'].mean:.5f}", {k: round(m.mean, 5) for k, m in sorted(meters.items())})
    print("b", [(k, m.count, round(m.mean, 5)) for k, m in sorted(by_class.items())])
    print("c", running, {key: value / len(loader) for key, value in running.items()})
    print("d", every_other)
