import contextlib
from types import SimpleNamespace

import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
data = TensorDataset(torch.randn(96, 4), torch.randint(0, 3, (96,)))
loader = DataLoader(data, batch_size=8, shuffle=True)
model = torch.nn.Linear(4, 3)
opt = torch.optim.SGD(model.parameters(), lr=0.0)

class Meter:
    def __init__(self, name):
        self.name, self.total, self.seen = name, 0.0, 0
    def __enter__(self):
        self.total, self.seen, self.worst = 0.0, 0, 0.0
        return self
    def __exit__(self, *error):
        print(f"{self.name} {self.total / self.seen:.5f} {self.seen} {self.worst:.5f}")
        return False
    def push(self, value, n):
        self.total += value * n
        self.seen += n
        self.worst = max(self.worst, value)

@contextlib.contextmanager
def collecting(table):
    bag = SimpleNamespace(losses=[], right=0)
    try:
        yield bag
    finally:
        table.append((sum(bag.losses) / len(bag.losses), len(bag.losses), bag.right))

class Trainer:
    def __init__(self):
        self.seen = 0
    @contextlib.contextmanager
    def epoch(self, name):
        self.seen = 0
        yield
        print(name, self.seen)
    def step(self, x, y):
        out = model(x)
        loss = F.cross_entropy(out, y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        self.seen += len(y)
        return loss.item(), (out.argmax(1) == y).sum().item()

trainer, kept, table = Trainer(), Meter("b"), []
for epoch in range(2):
    with Meter("a") as meter, kept, collecting(table) as bag, trainer.epoch("c"):
        for x, y in loader:
            loss, right = trainer.step(x, y)
            meter.push(loss, len(y))
            kept.push(loss, 1)
            bag.losses.append(loss)
            bag.right += right
    print("d", " ".join(f"{value:.5f}" for value in table[-1]))
