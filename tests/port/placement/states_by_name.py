import functools
from collections import namedtuple

import numpy as np
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
data = TensorDataset(torch.randn(96, 4), torch.randint(0, 3, (96,)))
loader = DataLoader(data, batch_size=8, shuffle=True)
model = torch.nn.Linear(4, 3)
opt = torch.optim.SGD(model.parameters(), lr=0.0)
Log = namedtuple("Log", "number loss")

class Metric:
    def __init__(self):
        self.begins = {}
    def add_state(self, name, begins):
        self.begins[name] = begins.clone()
        setattr(self, name, begins.clone())
    def reset(self):
        for name, begins in self.begins.items():
            setattr(self, name, begins.clone())

class Accuracy(Metric):
    def __init__(self):
        super().__init__()
        self.add_state("right", torch.tensor(0))
        self.add_state("seen", torch.tensor(0))
        self.add_state("classes", torch.zeros(3))
    def update(self, out, y):
        self.right += (out.argmax(1) == y).sum()
        self.seen += y.numel()
        self.classes.index_add_(0, y, torch.ones(len(y)))
    def compute(self):
        return self.right.float() / self.seen

def steps(model, loader):
    for i, (x, y) in enumerate(loader):
        out = model(x)
        loss = F.cross_entropy(out, y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        yield Log(i, loss.item())

metric = Accuracy()
run = functools.partial(steps, model)
curve = np.zeros(2, dtype=[("number", "i8"), ("loss", "f8")])
table, number = np.zeros((2, 2)), 0
for epoch in range(2):
    logs = list(run(loader))
    losses = [log.loss for log in run(loader=loader)]
    print(f"a {sum(log.loss for log in logs):.5f} {len(logs)} {logs[-1].number} {max(losses):.5f} {len(losses)}")
    metric.reset()
    total, seen = 0.0, 0
    for x, y in loader:
        out = model(x)
        loss = F.cross_entropy(out, y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        metric.update(out.detach(), y)
        total += loss.item() * len(y)
        seen += len(y)
        number += 1
    print(f"b {metric.compute():.5f} {metric.seen} {metric.right}", *metric.classes.tolist())
    curve[epoch] = (number, total / seen)
    table[epoch, 0] = total / seen
    table[epoch, 1] = number
print(f"c {curve['loss'].mean():.5f}", *curve["number"].tolist())
print(f"d {table[:, 0].mean():.5f}", *table[:, 1].tolist())
