"""Meters that go on over the epochs, and parts of lists and arrays that are shown within a loop beside what was before."""

# ruff: noqa

import numpy as np
import torch
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
X = torch.randn(96, 5)
loader = DataLoader(TensorDataset(X, X.sum(1, keepdim=True)), batch_size=8)
model = torch.nn.Linear(5, 1)
opt = torch.optim.SGD(model.parameters(), lr=0.0)


class Meter:
    def __init__(self):
        self.sum, self.n = 0.0, 0

    def add(self, value):
        self.sum += value
        self.n += 1

    def mean(self):
        return self.sum / max(self.n, 1)


class Number(Meter):
    def __float__(self):
        return self.sum / max(1, self.n)


meter, number, several = Meter(), Number(), [Meter(), Meter()]
rows, losses, sums, pair = [], [], np.zeros(3), torch.zeros(2)
for epoch in range(2):
    so_far, last = 0.0, 0.0
    for i, (x, y) in enumerate(loader):
        opt.zero_grad()
        loss = torch.nn.functional.mse_loss(model(x), y)
        loss.backward()
        opt.step()
        meter.add(loss.item())
        number.add(loss.item() * len(x))
        rows.append(dict(loss=loss.item(), n=len(x)))
        losses.append(loss.item())
        for j in range(3):
            sums[j] += loss.item()
        pair[0] += loss.item()
        pair[1] += 1
        for k, one in enumerate(several):
            one.add(loss.item() * k)
        so_far += loss.item()
        last += loss.item()
        if i % 4 == 3:
            print("sums", sums.sum(), sums[1], (pair[0] / pair[1]).item(), int(pair[1]))
            print("rows", sum(r["n"] for r in rows), sum(losses) / len(losses), len(rows))
            print("goes on, begins anew", so_far / 4, last / 4, sum(losses) / 4)
            last = 0.0
    print("epoch", meter.mean(), float(number), len(rows), sum(losses))
    print("several", [(one.n, one.mean()) for one in several], sum(one.n for one in filter(None, several)))
print("end", meter.mean(), float(number))


# Meters that nothing reads but a template by its names.
class Shown:
    def __init__(self, name, fmt=":.4f"):
        self.name, self.fmt = name, fmt
        self.sum = self.count = self.avg = 0

    def update(self, value, n):
        self.sum += value * n
        self.count += n
        self.avg = self.sum / self.count

    def __str__(self):
        return ("{name} {avg" + self.fmt + "} {count}").format(**self.__dict__)


def show(loss, n, **others):
    print("shown", loss / n, n, others)


for epoch in range(2):
    first, second, third, fourth = Shown("loss"), Shown("mae", ":.3f"), Shown("max"), Shown("min")
    held, more, pair = {"loss": 0.0, "n": 0}, {"loss": 0.0, "n": 0, "sum": 0.0}, [0.0, 0]
    local, steps = 0.0, 0
    for x, y in loader:
        with torch.no_grad():
            out = model(x)
        value, mae = torch.nn.functional.mse_loss(out, y).item(), (out - y).abs().mean().item()
        for meter in (first, second, third, fourth):
            meter.update(value if meter is first else mae, len(x))
        held["loss"] += value
        held["n"] += 1
        more["loss"] += mae
        more["n"] += 1
        more["sum"] += out.sum().item()
        pair[0] += value
        pair[1] += len(x)
        local += mae
        steps += 1
    print("\t".join(["meters"] + [str(m) for m in (first, second)]))
    print("{avg:.4f} {count}".format(**vars(third)), "{sum:.4f}".format_map(vars(fourth)))
    print("{loss:.4f} {n}".format(**held), "{:.4f} {}".format(*pair))
    print("{local:.4f} {steps}".format(**locals()))
    show(**more)
