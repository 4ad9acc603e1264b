"""Numbers of iterations that are kept beside what these have found: in lists, rows, texts, records and under keys."""

# ruff: noqa

import torch
from collections import Counter, defaultdict, deque, namedtuple
from dataclasses import dataclass
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
X = torch.randn(96, 4)
loader = DataLoader(TensorDataset(X, X.sum(1, keepdim=True)), batch_size=8)
model = torch.nn.Linear(4, 1)
opt = torch.optim.Adam(model.parameters(), lr=0.0)
Point = namedtuple("Point", "step loss")


def train(x, y):
    opt.zero_grad()
    loss = torch.nn.functional.mse_loss(model(x), y)
    loss.backward()
    opt.step()
    return loss.item()


@dataclass
class Found:
    step: int
    loss: float


class Recorder:
    def __init__(self):
        self.step = 0
        self.rows = []
        self.steps, self.losses = [], []

    def push(self, epoch, loss):
        self.step += 1
        self.rows.append((self.step, epoch, loss))

    def add(self, it, loss):
        self.steps.append(it)
        self.losses.append(loss)


rec, grown = Recorder(), torch.zeros(0)
means, found = [], []
early = late = n_late = 0
fourth = others = n_others = 0
groups, sums, counts, parts = defaultdict(list), defaultdict(float), Counter(), torch.zeros(3)
rows, made, texts, points, pairs, plain, high = [], [], [], [], [], [], []
log = {"step": [], "loss": []}
curve, table = {}, {}
recent = deque(maxlen=6)
epochs, samples = [], []
step, seen = 0, 0
for epoch in range(2):
    total, first, weighed, weights = 0.0, step, 0.0, 0
    for i, (x, y) in enumerate(loader):
        loss = train(x, y)
        total += loss
        weighed += (i + 1) * loss
        weights += i + 1
        groups[step // 6].append(loss)
        if step < 7:
            early += loss
        else:
            late += loss
            n_late += 1
        if i % 4 == 0:
            fourth += loss
        else:
            others += loss
            n_others += 1
        parity = "odd" if step % 2 else "even"
        groups[parity].append(loss)
        sums["first" if step < 7 else "then"] += loss
        sums[i % 3] += loss
        counts[i % 3] += 1
        parts[i % 3] += loss
        it = epoch * len(loader) + i
        rows.append({"epoch": epoch, "step": i, "loss": loss})
        row = {"it": it, "loss": loss}
        row["epoch"] = epoch
        made.append(row)
        texts.append(f"{step} of {len(loader)}: {loss:.4f}")
        found.append(Found(it, loss))
        points.append(Point(it, loss))
        pairs += [(step, loss)]
        plain.extend([i + 1, loss])
        log["step"].append(step)
        log["loss"].append(loss)
        curve[step] = loss
        table[epoch, i] = loss
        recent.append((step, loss))
        epochs.append(epoch + i / len(loader))
        samples.append(8 * i + epoch * len(loader.dataset))
        if loss > 6:
            high.append(i)
        step += 1
        seen += 8
        rec.push(epoch, loss)
        rec.add(seen, loss)
        grown = torch.cat([grown, torch.tensor([loss])])
    means.append(total / (step - first))
    print(weighed / weights, weighed, weights)
    print(sorted(sums.items(), key=str), sorted(counts.items()), parts.tolist())
    print({k: sum(v) / len(v) for k, v in sorted(groups.items(), key=str)})
print(early, late, n_late)
print(fourth, others, n_others)
n_batches, flat = len(loader), torch.tensor(log["loss"])
print(means, len(log["loss"]) // n_batches, flat.numel() / len(loader))
print(flat.view(-1, n_batches).mean(1).tolist(), [part.mean().item() for part in torch.split(flat, n_batches)])
print(rows[:5], rows[-1], len(rows))
print(found[3], len(found), found[-1].step, sum(f.loss for f in found) / len(found))
print(made[:5], made[-1], max(r["it"] for r in made))
print(texts[:5], texts[-1])
print([tuple(p) for p in points[:5]], points[-1].step)
print(pairs[:5], pairs[-1])
print(plain[:6], plain[-2:])
print(log["step"][:5], log["step"][-1], log["loss"][:5], len(log["step"]))
print(sorted(curve)[:5], len(curve), curve[3], sum(curve.values()))
print(sorted(table)[:5], len(table), table[1, 7])
print(list(recent))
print(epochs[:5], epochs[-1], max(epochs))
print(samples[:5], samples[-1])
print(sorted(high), len(high))
print(rec.rows[:5], rec.rows[-1], rec.step)
print(rec.steps[:5], rec.steps[-1], rec.losses[:5])
print(grown.numel(), grown.shape[0], len(grown), grown.mean().item())
for p in model.parameters():
    print(int(opt.state[p]["step"]))

# Sums that begin in the first iteration.
batches = iter(loader)
for i in range(24):
    try:
        x, y = next(batches)
    except StopIteration:
        batches = iter(loader)
        x, y = next(batches)
    loss = train(x, y)
    if i == 0:
        summed = 0.0
    summed += loss
print("first", summed / 24, i + 1)
for epoch in range(2):
    for i, (x, y) in enumerate(loader):
        loss = train(x, y)
        if i == 0:
            mean, seen = 0.0, 0
        mean += loss * len(x)
        seen += len(x)
    print("first of an epoch", mean / seen, seen, i + 1)

drawn, drawn_total = iter(loader), 0.0
for i in range(len(loader)):
    x, y = drawn.__next__()
    drawn_total += train(x, y)
print("drawn", drawn_total, drawn_total / loader.__len__())
drawn, drawn_total, i = loader.__iter__(), 0.0, 0
while i < len(loader):
    loss = train(*drawn.__next__())
    drawn_total += loss
    i += 1
    if i % 4 == 0:
        print("so far", i, drawn_total / i)
print("drawn", drawn_total)
