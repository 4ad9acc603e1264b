"""What objects of a script's own count among the samples of an epoch, and make of it; a rate of 0 keeps the parameters."""

# ruff: noqa

import numpy as np
import torch
import torch.nn.functional as F
from collections import Counter, OrderedDict, defaultdict
from dataclasses import dataclass, field
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
data = TensorDataset(torch.randn(96, 4), torch.randint(0, 3, (96,)))
loader = DataLoader(data, batch_size=8, shuffle=True)
model = torch.nn.Linear(4, 3)
opt = torch.optim.SGD(model.parameters(), lr=0.0)


class Confusion:
    def __init__(self, n):
        self.mat = np.zeros((n, n), dtype=int)

    def update(self, labels, found):
        for a, b in zip(labels, found):
            self.mat[a, b] += 1

    def acc(self):
        return np.trace(self.mat) / self.mat.sum()

    def per_class(self):
        return self.mat.diagonal() / self.mat.sum(1)


class Matrix:
    def __init__(self, n):
        self.mat, self.n = None, n

    def update(self, a, b):
        if self.mat is None:
            self.mat = torch.zeros((self.n, self.n), dtype=torch.int64)
        self.mat += torch.bincount(self.n * a + b, minlength=self.n**2).reshape(self.n, self.n)

    def compute(self):
        h = self.mat.float()
        return (torch.diag(h).sum() / h.sum()).item(), (torch.diag(h) / h.sum(1)).tolist()

    def reset(self):
        self.mat.zero_()


class Binary:
    def __init__(self):
        self.reset()

    def reset(self):
        self.tp = self.fp = self.tn = self.fn = 0

    def update(self, found, labels):
        self.tp += ((found == 1) & (labels == 1)).sum().item()
        self.fp += ((found == 1) & (labels != 1)).sum().item()
        self.fn += ((found != 1) & (labels == 1)).sum().item()
        self.tn += ((found != 1) & (labels != 1)).sum().item()

    def compute(self):
        precision = self.tp / (self.tp + self.fp + 1e-9)
        recall = self.tp / (self.tp + self.fn + 1e-9)
        return {
            "precision": precision,
            "recall": recall,
            "f1": 2 * precision * recall / (precision + recall + 1e-9),
            "acc": (self.tp + self.tn) / (self.tp + self.tn + self.fp + self.fn),
        }


class Stats:
    def __init__(self):
        self.by_class = {}
        self.counter = Counter()
        self.right = defaultdict(int)
        self.wrong = self.seen = self.tp = 0
        self.each = [0] * 3

    def add(self, found, labels):
        for p, t in zip(found.tolist(), labels.tolist()):
            self.by_class[t] = self.by_class.get(t, 0) + 1
            self.counter[t] += 1
            self.each[t] += 1
            self.seen += 1
            if p == t:
                self.right[t] += 1
            else:
                self.wrong += 1
            if p == t == 1:
                self.tp += 1

    @property
    def rate(self):
        return self.wrong / self.seen

    def shares(self):
        return [round(self.each[c] / self.seen, 4) for c in range(3)]


@dataclass
class Counts:
    right: int = 0
    seen: int = 0
    by: dict = field(default_factory=dict)

    def accuracy(self):
        return self.right / self.seen


class Speed:
    def __init__(self):
        self.samples = 0

        self.labels = []

    def tick(self, x, y):
        self.samples += len(x)
        self.labels.extend(y.tolist())


class Trainer:
    def __init__(self):
        self.matrix, self.binary = Matrix(3), Binary()
        self.best = 0.0

    def epoch(self):
        self.stats, self.confusion, self.counts, self.speed = Stats(), Confusion(3), Counts(), Speed()
        self.binary.reset()
        for x, y in loader:
            out = model(x)
            opt.zero_grad()
            F.cross_entropy(out, y).backward()
            opt.step()
            found = out.argmax(1)
            self.stats.add(found, y)
            self.confusion.update(y.tolist(), found.tolist())
            self.matrix.update(y, found)
            self.binary.update(found, y)
            self.speed.tick(x, y)
            self.counts.right += (found == y).sum().item()
            self.counts.seen += len(y)
            for b in y.tolist():
                self.counts.by[b] = self.counts.by.get(b, 0) + 1

    def log(self):
        print("classes", sorted(self.stats.by_class.items()), sorted(self.stats.counter.items()))
        print("right", sorted(self.stats.right.items()), self.stats.each, self.stats.shares(), self.stats.tp)
        print("rate", self.stats.rate, self.stats.wrong, self.stats.wrong / len(data), self.stats.seen)
        print("confusion", self.confusion.acc(), self.confusion.per_class(), self.confusion.mat.sum())
        print("table", self.confusion.mat.tolist())
        print("matrix", *self.matrix.compute(), self.matrix.mat.sum().item())
        self.matrix.reset()
        print("binary", " ".join(f"{k} {v:.4f}" for k, v in self.binary.compute().items()))
        print("counted", self.binary.tp, self.binary.fp, self.binary.fn, self.binary.tn)
        print("counts", self.counts.accuracy(), self.counts.right, self.counts.seen, sorted(self.counts.by.items()))
        print("samples", self.speed.samples, len(self.speed.labels), sum(self.speed.labels))
        if self.stats.rate > self.best:
            self.best = self.stats.rate
            print("worst", self.best)


trainer = Trainer()
for epoch in range(2):
    trainer.epoch()
    trainer.log()
    tp = fp = fn = tn = 0
    for x, y in loader:
        out = model(x)
        opt.zero_grad()
        F.cross_entropy(out, y).backward()
        opt.step()
        found = out.argmax(1)
        tp += ((found == 1) & (y == 1)).sum().item()
        fp += ((found == 1) & (y != 1)).sum().item()
        fn += ((found != 1) & (y == 1)).sum().item()
        tn += ((found != 1) & (y != 1)).sum().item()
    precision, recall = tp / (tp + fp), tp / (tp + fn)
    print(
        "ratios",
        precision,
        recall,
        2 * precision * recall / (precision + recall),
        (tp + tn) / len(data),
        tp,
        fp,
        fn,
        tn,
    )

REGISTRY = {}


def register(name):
    def keep(cls):
        REGISTRY[name] = cls
        return cls

    return keep


@register("hits")
class Hits:
    def __init__(self):
        self.right, self.seen = 0, 0

    def update(self, found, labels):
        self.right += (found == labels).sum().item()
        self.seen += len(labels)

    def compute(self):
        return self.right / self.seen


@register("ones")
class Ones(Hits):
    def update(self, found, labels):
        self.right += (found == 1).sum().item()
        self.seen += len(found)


class Spread:
    def __init__(self):
        self.total, self.weight, self.right = 0.0, 0, 0

    def add(self, value, weight, right):
        self.total += value * weight
        self.weight += weight
        self.right += right

    def _hits(self):
        return self.right

    mean = property(lambda self: self.total / max(self.weight, 1))
    share = lambda self: self.right / self.weight
    hits = property(_hits)


class Engine:
    def __init__(self, names):
        self.named = OrderedDict((name, REGISTRY[name]()) for name in names)
        self.paired = dict([("hits", Hits()), ("ones", Ones())])
        self.two = {name: Hits() for name in names}
        self.one = {name: Hits() for name in names[:1]}


class Tally:
    total, names = 0.0, []

    @classmethod
    def add(cls, value, number):
        cls.total += value * number
        return cls

    @classmethod
    def note(cls, name, *, number=1):
        cls.add(number, 1).names.append(name)


engine = Engine(["hits", "ones"])
for epoch in range(2):  # what they count goes on
    spread = Spread()
    for x, y in loader:
        out = model(x)
        opt.zero_grad()
        F.cross_entropy(out, y).backward()
        opt.step()
        spread.add(out.mean().item(), len(y), (out.argmax(1) == y).sum().item())
        Tally.add(out.mean().item(), len(y))
        Tally.note(int(y.max()), number=len(y))
        for m in engine.named.values():
            m.update(out.argmax(1), y)
        for m in engine.paired.values():
            m.update(out.argmax(1), y)
        for k in engine.two:
            engine.two[k].update(out.argmax(1), y)
        for one in engine.one.values():
            one.update(out.argmax(1), y)
    for held in (engine.named, engine.paired, engine.two, engine.one):
        print({k: (m.compute(), m.right, m.seen) for k, m in held.items()})
    print(spread.mean, spread.share(), spread.hits)
    print(f"{Tally.total:.5f}", len(Tally.names), sum(Tally.names))
