"""Numbers under keys of all kinds: of dicts in dicts, tuples, enumerations, counted from the end; and objects replaced."""

# ruff: noqa

import collections
import dataclasses
import enum

import torch
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
X = torch.randn(96, 5)
loader = DataLoader(TensorDataset(X, X.sum(1, keepdim=True)), batch_size=8)
model = torch.nn.Linear(5, 1)
opt = torch.optim.SGD(model.parameters(), lr=0.0)


class Part(enum.Enum):
    LOSS = "loss"
    N = "n"


class Level(enum.IntEnum):
    LOW = 0
    HIGH = 1


class Name(str, enum.Enum):
    LOSS = "loss"
    N = "n"


class Nine(enum.Enum):
    A = 1
    B = 2
    C = 3
    D = 4
    E = 5
    F = 6
    G = 7
    H = 8
    I = 9


class Average:
    def __init__(self):
        self.reset()

    def reset(self):
        self.sum, self.n = 0.0, 0

    def add(self, value, k=1):
        self.sum += value * k
        self.n += k

    @property
    def mean(self):
        return self.sum / max(self.n, 1)


@dataclasses.dataclass(frozen=True)
class State:
    n: int = 0
    loss: float = 0.0


METRICS = {}


def metric(name):
    def keep(function):
        METRICS[name] = function
        return function

    return keep


@metric("mae")
def mae(out, y):
    return (out - y).abs().sum().item()


@metric("squares")
def squares(out, y):
    return ((out - y) ** 2).sum().item()


def registered(metrics):
    sums, seen = {name: 0.0 for name in ["loss", *metrics]}, 0
    for x, y in loader:
        out = model(x)
        loss = torch.nn.functional.mse_loss(out, y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        sums["loss"] += loss.item() * len(x)
        for name, function in metrics.items():
            sums[name] += function(out.detach(), y)
        seen += len(x)
    return {name: value / seen for name, value in sums.items()}


table = collections.defaultdict(lambda: collections.defaultdict(float))
deep = collections.defaultdict(lambda: collections.defaultdict(lambda: [0, 0.0]))
parts, pairs, last = {Part.LOSS: 0.0, Part.N: 0}, {("train", "loss"): 0.0, ("train", "n"): 0}, [0.0, 0]
united, state = dict(n=0), State()
averages = {phase: {name: Average() for name in ("loss", "mae")} for phase in ("train", "val")}
counts = collections.defaultdict(collections.Counter)
levels, named, nine = [0, 0.0], {"loss": 0.0, "n": 0}, {each: 0 for each in Nine}
for epoch in range(2):
    for phase in averages:
        for average in averages[phase].values():
            average.reset()
        for x, y in loader:
            if phase == "train":
                opt.zero_grad()
                loss = torch.nn.functional.mse_loss(model(x), y)
                loss.backward()
                opt.step()
            else:
                with torch.no_grad():
                    loss = torch.nn.functional.mse_loss(model(x), y)
            deep[phase][epoch][0] += 1
            deep[phase][epoch][1] += loss.item()
            averages[phase]["loss"].add(loss.item(), len(x))
            averages[phase]["mae"].add((model(x) - y).abs().mean().item(), len(x))
        print("deep", phase, deep[phase][epoch][0], deep[phase][epoch][1])
        print("averages", phase, *(f"{k}={m.mean:.4f} of {m.n}" for k, m in averages[phase].items()))
    for x, y in loader:
        opt.zero_grad()
        loss = torch.nn.functional.mse_loss(model(x), y)
        loss.backward()
        opt.step()
        table["train"]["n"] += 1
        table["train"]["loss"] += loss.item()
        parts[Part.LOSS] += loss.item()
        parts[Part.N] += 1
        pairs["train", "loss"] += loss.item()
        pairs[("train", "n")] += 1
        last[-1] += 1
        last[-2] += loss.item()
        united |= {"n": united["n"] + 1}
        state = dataclasses.replace(state, n=state.n + 1, loss=state.loss + loss.item())
        levels[Level.LOW] += 1
        levels[Level.HIGH] += loss.item()
        named[Name.LOSS] += loss.item()
        named[Name.N] += 1
        for each in Nine:
            nine[each] += 1
        counts["train"]["batches"] += 1
        counts["train"]["samples"] += len(x)
    print("table", table["train"]["n"], table["train"]["loss"])
    print("parts", parts[Part.LOSS] / parts[Part.N], parts[Part.N])
    for part in Part:
        print("part", part.name, parts[part])
    print("pairs", pairs["train", "loss"] / pairs["train", "n"], pairs["train", "n"])
    print("last", last[-1], last[0], united["n"])
    print("state", state.n, state.loss, state.loss / state.n, state)
    print("levels", levels[0], levels[1], levels[Level.LOW] + Level.HIGH, named["loss"], named["n"])
    print("nine", sum(nine.values()), nine[Nine.I])
    print("counts", counts["train"]["batches"], counts["train"]["samples"])
    row = {f"train_{name}": value for name, value in registered({name: METRICS[name] for name in METRICS}).items()}
    print("registered", {name: round(value, 4) for name, value in row.items()})

# Tables of classes that are filled sample by sample, under keys that nobody knows before.
tables, begun, counts, rows, told, asked, there, either, tried, back = {}, {}, {}, {}, {}, {}, {}, {}, {}, {}
for x, y in loader:
    out = model(x)
    loss = (out - y).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    for true, value in zip(y[:, 0].round().tolist(), out[:, 0].tolist()):
        pred = round(value)
        tables.setdefault(true, {}).setdefault(pred, 0)
        tables[true][pred] += 1
        if true not in begun:
            begun[true] = {"n": 0, "ok": 0}
        begun[true]["n"] += 1
        begun[true]["ok"] += int(pred == true)
        if not pred in counts:
            counts[pred] = 0
        counts[pred] += 1
        row = rows.get(true)
        if row is None:
            row = rows[true] = {}
        row[pred] = row.get(pred, 0) + 1
        entry = told.setdefault(true, {"n": 0, "sum": 0.0})
        entry["n"] += 1
        entry["sum"] += value
        if asked.get(true) is None:
            asked[true] = {"n": 0}
        asked[true]["n"] += 1
        if true not in there.keys():
            there[true] = {}
        if pred not in there[true]:
            there[true][pred] = 0
        there[true][pred] += 1
        if true in either:
            either[true] += value
        else:
            either[true] = value
        try:
            tried[pred] += 1
        except KeyError:
            tried[pred] = 1
        held = back.get(true, {"n": 0})
        held["n"] += 1
        back[true] = held
print("tables", [(key, sorted(tables[key].items())) for key in sorted(tables)])
print("begun", sorted((key, row["ok"] / row["n"]) for key, row in begun.items()))
print("counts", sorted(counts.items()))
print("rows", [(key, sorted(rows[key].items())) for key in sorted(rows)])
print("told", [(key, f"{told[key]['sum'] / told[key]['n']:.4f}") for key in sorted(told)])
print("asked", sorted((key, row["n"]) for key, row in asked.items()))
print("there", sum(len(row) for row in there.values()), max(max(row.values()) for row in there.values()))
print("either", [(key, f"{either[key]:.4f}") for key in sorted(either)], sorted(tried.items()))
print("back", sorted((key, row["n"]) for key, row in back.items()))
