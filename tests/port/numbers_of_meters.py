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
