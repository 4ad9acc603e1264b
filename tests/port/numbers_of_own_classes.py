"""Classes of the script's with special methods, and objects that functions of libraries hand on."""

# ruff: noqa

import collections
import contextlib
import copy
import functools
import itertools
import operator

import torch
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
X = torch.randn(96, 5)
loader = DataLoader(TensorDataset(X, X.sum(1, keepdim=True)), batch_size=8)
model = torch.nn.Linear(5, 1)
opt = torch.optim.SGD(model.parameters(), lr=0.0)


class Meter:
    def __init__(self):
        self.n, self.sum = 0, 0.0

    def put(self, value):
        self.n += 1
        self.sum += value
        return self


class Fields:
    def __init__(self):
        self.held = {"loss": 0.0, "n": 0}

    def __getitem__(self, key):
        return self.held[key]

    def __setitem__(self, key, value):
        self.held[key] = value


class Meters:
    def __init__(self):
        self.held = {}

    def __getitem__(self, key):
        if key not in self.held:
            self.held[key] = Meter()
        return self.held[key]

    def __iter__(self):
        return iter(self.held.values())

    def __len__(self):
        return len(self.held)

    def __contains__(self, key):
        return key in self.held


class Group:
    def __init__(self, *meters):
        self.meters = meters

    def __iter__(self):
        for meter in self.meters:
            yield meter


class OneByOne:
    def __init__(self, *meters):
        self.meters, self.at = meters, 0

    def __iter__(self):
        self.at = 0
        return self

    def __next__(self):
        if self.at >= len(self.meters):
            raise StopIteration
        self.at += 1
        return self.meters[self.at - 1]


class Default(dict):
    def __missing__(self, key):
        self[key] = [0.0, 0]
        return self[key]


class Log:
    one = None

    def __new__(cls):
        if cls.one is None:
            cls.one = super().__new__(cls)
            cls.one.n = 0
        return cls.one


class History(list):
    def __init__(self):
        super().__init__()
        self.n = 0

    def append(self, value):
        self.n += 1
        super().append(value)


class Bare(list):
    __slots__ = ()


class Counted:
    total = 0

    @classmethod
    def tick(cls):
        cls.total += 1


class Average:
    def __init__(self):
        self.sum, self.n = 0.0, 0

    def __iadd__(self, value):
        self.sum += value
        self.n += 1
        return self

    def __format__(self, spec):
        return format(self.sum / max(self.n, 1), spec)


fields, meters, group, each = Fields(), Meters(), Group(Meter(), Meter()), OneByOne(Meter(), Meter())
default, history, counted, average, bare = Default(), History(), Counted(), Average(), Bare()
several, pair, named = [Meter(), Meter()], (Meter(), Meter()), {"a": Meter(), "b": Meter()}
lazy = collections.defaultdict(Meter)
for epoch in range(2):
    for x, y in loader:
        opt.zero_grad()
        loss = torch.nn.functional.mse_loss(model(x), y)
        loss.backward()
        opt.step()
        value = loss.item()
        fields["loss"] += value
        fields["n"] += len(x)
        meters["a"].put(value)
        meters["b"].put(2.0)
        for meter in group:
            meter.put(value)
        for meter in each:
            meter.put(value)
        default["loss"][0] += value
        default["loss"][1] += 1
        Log().n += 1
        history.append(value)
        bare.append(value)
        counted.tick()
        average += value
        lazy["a"].put(value)
        lazy["b"].put(1.0)
        for meter in itertools.chain(several, pair[:1]):
            meter.put(value)
        for meter in itertools.chain.from_iterable([several, pair]):
            meter.put(value)
        for one, other in itertools.product(several, pair):
            one.put(value)
        functools.reduce(lambda a, b: b.put(1.0), several, None)
        operator.itemgetter(0)(pair).put(value)
        first, *rest = several
        rest[0].put(value)
        type(pair[0]).put(pair[1], value)
        max(named.values(), key=lambda m: m.n).put(value)
        for meter in dict.values(named):
            meter.put(value)
        for meter in collections.ChainMap(named).values():
            meter.put(value)
        for k, meter in list(enumerate(several)):
            meter.put(value * k)
    print("fields", fields["loss"], fields["n"])
    print("meters", meters["a"].n, meters["a"].sum, meters["b"].sum, len(meters), "a" in meters)
    for meter in meters:
        print("of meters", meter.n, meter.sum)
    print("groups", [m.n for m in group], sum(m.sum for m in group), [m.n for m in each], sum(m.sum for m in each))
    print("default", default["loss"], len(default), Log().n, Counted.total, type(counted).total)
    print("history", history.n, sum(history) / len(history), len(history), f"{average:.4f}")
    print("bare", sum(bare), len(bare), type(bare).__name__)
    for name, meter in lazy.items():
        print("lazy", name, meter.n, meter.sum)
    print("several", sum(m.n for m in several), sum(m.sum for m in several))
    print("pair", sum(m.n for m in pair), sum(m.sum for m in pair), sum(m.n for m in named.values()))


# Objects that earlier epochs have left in a list, beside the one that this epoch fills; and those replaced by others.
class Row:
    def __init__(self, epoch):
        self.epoch, self.sum, self.n = epoch, 0.0, 0


Result = collections.namedtuple("Result", "sum n")
rows, tables, last = [], [], Row(-1)
for epoch in range(2):
    rows.append(Row(epoch))
    table = {"epoch": epoch, "sum": 0.0, "n": 0}
    tables.append(table)
    result = Result(0.0, 0)
    for x, y in loader:
        value = torch.nn.functional.mse_loss(model(x), y).item()
        rows[-1].sum += value
        rows[-1].n += 1
        table["sum"] += value
        table["n"] += 1
        result = result._replace(sum=result.sum + value * len(x), n=result.n + len(x))
        following = copy.copy(last)
        following.sum += value
        following.n += 1
        last = following
        with contextlib.suppress(ValueError):
            for v in y.squeeze(1).tolist():
                if v < 0:
                    raise ValueError
    print("result", result.sum / result.n, *result, last.n if epoch == 0 else "", last.sum)
    print("rows", [(r.epoch, r.sum / r.n, r.n) for r in rows], tables)


# Heirs whose sums have other names, and a data set that the loop fills by the numbers of its samples.
class Plain:
    names = ("mse",)

    def __init__(self):
        self.parts = {name: 0.0 for name in self.names}

    def losses(self, x, y):
        return {"mse": torch.nn.functional.mse_loss(model(x), y)}

    def run(self):
        for x, y in loader:
            for name, loss in self.losses(x, y).items():
                self.parts[name] += loss.item()
        return self.parts


class Taught(Plain):
    names = ("mse", "mae")

    def losses(self, x, y):
        return {**super().losses(x, y), "mae": (model(x) - y).abs().mean()}


class Hard(torch.utils.data.Dataset):
    def __init__(self):
        self.losses, self.seen = torch.zeros(96), 0

    def __len__(self):
        return 96

    def __getitem__(self, i):
        return X[i], X[i].sum(0, keepdim=True), i


for kind in (Plain, Taught):
    print("heir", kind.__name__, kind().run())
numbered = DataLoader(Hard(), batch_size=8)
for epoch in range(2):
    for x, y, numbers in numbered:
        opt.zero_grad()
        each = (model(x) - y).pow(2).squeeze(1)
        each.mean().backward()
        opt.step()
        numbered.dataset.losses[numbers] = each.detach()
        numbered.dataset.seen += len(x)
    print("hard", numbered.dataset.losses.mean().item(), numbered.dataset.losses.max().item(), numbered.dataset.seen)
