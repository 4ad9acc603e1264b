import statistics
from collections import Counter, defaultdict, deque
from dataclasses import dataclass, field

import numpy as np
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
data = TensorDataset(torch.randn(96, 4), torch.randint(0, 3, (96,)), torch.arange(96))
loader = DataLoader(data, batch_size=8, shuffle=True)
model = torch.nn.Linear(4, 3)
opt = torch.optim.SGD(model.parameters(), lr=0.0)
@dataclass
class Stats:
    loss: float = 0.0
    right: int = 0
    seen: int = 0
    losses: list = field(default_factory=list)
    def __add__(self, other):
        return Stats(self.loss + other.loss, self.right + other.right, self.seen + other.seen, self.losses + other.losses)
    @property
    def mean(self):
        return self.loss / self.seen
def step(x, y):
    out = model(x)
    loss = F.cross_entropy(out, y)
    opt.zero_grad(); loss.backward(); opt.step()
    return loss, out
class Welford:
    def __init__(self): self.n, self.mean, self.m2 = 0, 0.0, 0.0
    def add(self, x):
        self.n += 1
        d = x - self.mean
        self.mean += d / self.n
        self.m2 += d * (x - self.mean)
def make():
    total = 0.0
    n = 0
    def add(v, k):
        nonlocal total, n
        total += v * k
        n += k
    def mean():
        return total / n
    return add, mean
table = np.zeros(96)
for epoch in range(2):
    stats = Stats()
    w = Welford()
    add, mean = make()
    nested = {"train": {"loss": 0.0, "right": 0}}
    conf = torch.zeros(3, 3, dtype=torch.long)
    per = defaultdict(list)
    hits = Counter()
    recent = deque(maxlen=100)
    probs, labels = [], []
    best = float("inf")
    prev = None
    changes = 0
    for i, (x, y, idx) in enumerate(loader):
        loss, out = step(x, y)
        pred = out.argmax(1)
        stats = stats + Stats(loss.item() * len(y), (pred == y).sum().item(), len(y), [loss.item()])
        w.add(loss.item())
        add(loss.item(), len(y))
        nested["train"]["loss"] += loss.item()
        nested["train"]["right"] += int((pred == y).sum())
        for t, p in zip(y, pred):
            conf[t, p] += 1
            per[int(t)].append(int(p == t))
            hits[int(p)] += 1
        recent.append(loss.item())
        probs.append(out.softmax(1)[:, 0].detach())
        labels.append(y)
        table[idx] = F.cross_entropy(out, y, reduction="none").detach()
        best = min(best, loss.item())
    probs = torch.cat(probs).numpy(); labels = torch.cat(labels).numpy()
    print(f"a {epoch} {stats.mean:.5f} {stats.right} {stats.seen} {len(stats.losses)} {statistics.median(stats.losses):.5f}")
    print(f"b {w.mean:.5f} {w.n}")
    print(f"c {mean():.5f}")
    print(f"d {nested['train']['loss'] / len(loader):.5f} {nested['train']['right'] / len(data):.5f}")
    print("e", conf.tolist(), conf.diag().sum().item() / conf.sum().item())
    print("f", {k: sum(v) / len(v) for k, v in sorted(per.items())}, sorted(hits.items()))
    print(f"g {np.mean(recent):.5f} {len(recent)} {max(recent):.5f}")
    print(f"h {np.corrcoef(probs, labels == 0)[0, 1]:.5f} {np.median(probs):.5f} {len(labels)}")
    print(f"i {table.mean():.5f} {table.max():.5f} {best:.5f}")
