"""Numbers of an epoch that are added up over the epochs, and handed to objects that keep them; a rate of 0."""

# ruff: noqa

import json
import sqlite3
import torch
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
data = TensorDataset(torch.randn(96, 4), torch.randint(0, 3, (96,)))
loader = DataLoader(data, batch_size=8, shuffle=True)
model = torch.nn.Linear(4, 3)
opt = torch.optim.SGD(model.parameters(), lr=0.0)
criterion = torch.nn.CrossEntropyLoss()


@dataclass
class Stats:
    losses: list = field(default_factory=list)
    seen: int = 0


class Log:
    def __init__(self):
        self.rows = []
        self.by_name = {}
        self.losses = []

    def add(self, **row):
        self.rows.append(row)

    def push(self, epoch, loss, right):
        self.rows.append({"epoch": epoch, "loss": loss, "right": right})

    def put(self, name, value):
        self.by_name.setdefault(name, []).append(value)

    def keep(self, loss):
        self.losses.append(loss)

    def all(self, values):
        for name, value in values.items():
            self.by_name.setdefault(name, []).append(value)

    def text(self):
        return json.dumps([self.rows, self.by_name, self.losses])


def step(x, y):
    opt.zero_grad()
    out = model(x)
    loss = criterion(out, y)
    loss.backward()
    opt.step()
    return loss.item(), (out.argmax(1) == y).sum().item(), out.argmax(1)


named, pushed, put, given = Log(), Log(), Log(), Log()
grand, hits = 0.0, 0
totals = defaultdict(float)
tally = {"loss": 0.0, "right": 0}
for epoch in range(2):
    running, right, losses = 0.0, 0, []
    stats = Stats()
    counter, predicted, labels = Counter(), [], []
    for x, y in loader:
        loss, ok, found = step(x, y)
        running += loss * len(x)
        right += ok
        losses.append(loss)
        counter.update(y.tolist())
        predicted.append(found)
        labels.append(y)
        stats.losses.append(loss * len(x))
        stats.seen += len(x)
    print("stats", sum(stats.losses) / stats.seen, sum(stats.losses), len(stats.losses))
    p, t = torch.cat(predicted), torch.cat(labels)
    print("arrays", len(p), t.shape[0], (p == t).sum().item(), sorted(counter.items()), counter.most_common(1)[0][1])
    grand += running
    hits += right
    totals["loss"] += running
    totals["right"] += right
    totals["epochs"] += 1
    tally["loss"] += running / len(data)
    tally["right"] += right
    print("grand", grand, hits)
    print("totals", totals["loss"], totals["right"], totals["right"] / totals["epochs"])
    print("tally", tally["loss"], tally["right"])
    mean = sum(losses) / len(losses)
    named.add(epoch=epoch, loss=mean, right=right)
    pushed.push(epoch, mean, right)
    put.put("loss", mean)
    put.put("right", right)
    put.keep(mean)
    given.all({"loss": mean, "right": right})
by_key = {}
for epoch in range(2):
    for x, y in loader:
        loss, ok, found = step(x, y)
        row = json.loads(json.dumps({"loss": loss, "right": ok}))
        for name, value in row.items():  # names that only a run tells
            by_key.setdefault(name, []).append(value)
paired, both, lasting = {"loss": (0.0, 0)}, defaultdict(lambda: (0.0, 0)), (0.0, 0, 0)
for epoch in range(2):
    fresh = 0.0, 0
    for x, y in loader:
        loss, ok, found = step(x, y)
        fresh = fresh[0] + loss * len(x), fresh[1] + len(x)
        total, n = paired["loss"]
        paired["loss"] = (total + loss, n + 1)
        for name, value in (("loss", loss), ("right", ok)):
            total, n = both[name]
            both[name] = (total + value * len(x), n + len(x))
        total, n, steps = lasting
        lasting = (total + loss * len(x), n + len(x), steps + 1)
    print("tuples", fresh[0] / fresh[1], paired, lasting, lasting[0] / lasting[1])
    print("means", {name: total / n for name, (total, n) in both.items()})
table, found_rows, taken = sqlite3.connect(":memory:"), [], 0
table.execute("create table epochs (epoch int, steps int)")
for epoch in range(2):
    for x, y in loader:
        step(x, y)
        taken += 1
    entry = {"epoch": epoch, "steps": taken}
    print(entry, f"{entry}", json.dumps(entry))
    pair = [epoch, taken]
    print("pair", pair)
    found_rows.append(entry)
    table.executemany("insert into epochs values (?, ?)", [(epoch, taken)])
print("rows", found_rows, table.execute("select * from epochs").fetchall())


class Rows:
    def __init__(self):
        self.rows = []

    def log(self, **row):
        self.rows.append(
            {"i": len(self.rows), **{k: round(v, 4) if isinstance(v, float) else v for k, v in row.items()}}
        )

    def show(self, row):
        print(" ".join(f"{k}={v:.5g}" for k, v in row.items()))


logged, total_steps = Rows(), 0
for epoch in range(2):
    losses = []
    for x, y in loader:
        losses.append(step(x, y)[0])
        total_steps += 1
    row = {"epoch": epoch, "step": total_steps, "loss": sum(losses) / len(losses)}
    row.update({"most": max(losses)})
    row["least"] = min(losses)
    logged.log(epoch=epoch, step=total_steps, loss=sum(losses) / len(losses))
    logged.rows.append(row)
    logged.show(row)
print("logged", [(row["step"], round(row["loss"], 4)) for row in logged.rows])
rates, at, rows = [], [], []
for epoch in range(2):
    for i, (x, y) in enumerate(loader):
        loss, ok, found = step(x, y)
        if i % 4 == 0:  # as often as in the serial run, and so as many
            rates.append(opt.param_groups[0]["lr"])
            at.append(epoch)
            rows.append({"epoch": epoch, "rate": 0.5})
print("every", len(rates), rates, at, len(rows))
print("keys", {name: (len(values), sum(values)) for name, values in sorted(by_key.items())})
print("share", grand / 2 / len(data), hits / (2 * len(data)))
for log in (named, pushed, put, given):
    print(log.text())
