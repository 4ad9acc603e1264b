"""Counts of steps that go on over the epochs, shown by the lines that show sums: in loops, rows, dicts, texts."""

# ruff: noqa

import collections
import csv
import json
from dataclasses import asdict, dataclass

import torch
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
X = torch.randn(96, 5)
loader = DataLoader(TensorDataset(X, X.sum(1, keepdim=True)), batch_size=8)
model = torch.nn.Linear(5, 1)
opt = torch.optim.SGD(model.parameters(), lr=0.0)


class Stats:
    def __init__(self):
        self.loss, self.batches = 0.0, 0

    def pair(self):
        return self.loss, self.batches

    def mean(self):
        return self.loss / self.batches

    def __repr__(self):
        return f"Stats({self.loss:.3f}, {self.batches})"


@dataclass
class Fields:
    loss: float = 0.0
    n: int = 0


sums = {"loss": 0.0, "mae": 0.0, "batches": 0, "samples": 0}
counts, stats, fields, whole = [0, 0.0, 0], Stats(), Fields(), Stats()
a, b, steps = 0.0, 0.0, 0
for epoch in range(2):
    mine = Stats()
    for x, y in loader:
        opt.zero_grad()
        loss = torch.nn.functional.mse_loss(model(x), y)
        loss.backward()
        opt.step()
        sums["loss"] += loss.item()
        sums["mae"] += (model(x) - y).abs().mean().item()
        sums["batches"] += 1
        sums["samples"] += len(x)
        counts[0] += 1
        counts[1] += loss.item()
        counts[2] += len(x)
        for each in (stats, whole, mine):
            each.loss += loss.item()
            each.batches += 1
        fields.loss += loss.item()
        fields.n += 1
        a += loss.item()
        b += 0.5
        steps += 1
    for k, v in sums.items():
        print(f"{k:>8} {v:10.4f}")
    print({k: v / sums["batches"] for k, v in sums.items()})
    print("\t".join(f"{v:.4f}" for v in sums.values()))
    print(sums, json.dumps(sums))
    for c in counts:
        print(c)
    first, second, third = counts
    print(first, second, third, second / first, sum(counts))
    print(*counts)
    print("%d %.3f %d" % tuple(counts))
    for k, v in vars(stats).items():
        print(k, v)
    print(vars(stats), stats, [stats], stats.pair(), "%s %s" % stats.pair(), *stats.pair())
    print(asdict(fields), fields, f"{fields}")
    for v in (a, b):
        print(v)
    for name, v in zip("ab", (a, b)):
        print(name, v)
    for v in (steps, epoch):
        print(v)
    print(mine.mean(), whole.mean(), mine.batches, whole.batches)

# Tables of results that hold counts, too.
total, seen = 0.0, 0
for x, y in loader:
    with torch.no_grad():
        total += torch.nn.functional.mse_loss(model(x), y).item() * len(x)
    seen += len(x)
summary = {"loss": total / len(loader.dataset), "batches": len(loader), "samples": len(loader.dataset), "seen": seen}
for k, v in summary.items():
    print(f"{k}: {v}")
for k, v in [("loss", total / seen), ("batches", len(loader))]:
    print(k, v)
with open("summary.csv", "w", newline="") as file:
    table = csv.writer(file)
    for k, v in summary.items():
        table.writerow([k, v])
with open("summary.csv") as file:
    print(file.read().split())
row = dict(loss=total / seen, batches=len(loader), seen=seen)
print(" ".join(f"{k}={v}" for k, v in row.items()), sorted(row.items()))
print("\n".join("{}: {}".format(*each) for each in [("loss", total / seen), ("steps", 2 * len(loader))]))

# Counts that are compared with serial numbers behind the loops.
made, due = 0, 30
for epoch in range(3):
    here = 0
    for x, y in loader:
        opt.zero_grad()
        torch.nn.functional.mse_loss(model(x), y).backward()
        opt.step()
        made += 1
        here += len(x)
    print(made == 12 * (epoch + 1), made < 15, here == 96, "one" if made == 12 else "more", 20 < made <= 24)
    if made == 24:
        print("two epochs")
    enough = made >= due
    print("enough", enough, f"{not enough and made > 1}", {"enough": made >= due, "made": made})
    assert made == 12 * (epoch + 1)
print(made == 36, made >= len(loader), min(made, 20))
