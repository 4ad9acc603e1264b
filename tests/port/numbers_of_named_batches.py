"""Numbers of batches whose parts have names, handed on with ``**batch``."""

# ruff: noqa

import collections
from dataclasses import dataclass, field
from types import SimpleNamespace

import torch
from torch.utils.data import DataLoader, Dataset

torch.manual_seed(0)


class Rows(Dataset):
    def __init__(self, n):
        self.x = torch.randn(n, 3)
        self.y = self.x.sum(1, keepdim=True) + torch.randn(n, 1)

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return {"inputs": self.x[i], "labels": self.y[i]}


@dataclass
class Batch:
    inputs: torch.Tensor
    labels: torch.Tensor = None

    def __len__(self):
        return len(self.inputs)


@dataclass
class Score:
    parts: dict = field(default_factory=dict)
    n: int = 0


Pair = collections.namedtuple("Pair", "inputs labels")
loader, test = DataLoader(Rows(163), batch_size=10, shuffle=True), DataLoader(Rows(47), batch_size=10)
model = torch.nn.Linear(3, 1)
opt = torch.optim.SGD(model.parameters(), lr=0.0)


def errors(inputs, labels, scale=1.0):
    return scale * (model(inputs) - labels).abs().sum().item(), len(labels)


def gathered(**parts):
    return len(parts["labels"])


class Stage:
    def __init__(self, name):
        self.name = name

    def parts(self, out, y):
        return {"squares": ((out - y) ** 2).sum()}

    def run(self, batches, training=True):
        score = Score()
        for batch in batches:
            out = model(batch["inputs"])
            parts = self.parts(out, batch["labels"])
            if training:
                opt.zero_grad()
                sum(parts.values()).backward()
                opt.step()
            for name, value in parts.items():
                score.parts[name] = score.parts.get(name, 0.0) + value.item()
            score.n += len(batch["labels"])
        print(self.name, training, score.n, *(f"{k} {v / score.n:.5f}" for k, v in score.parts.items()))


for epoch in range(2):
    tuples = objects = spaces = given = taken = wide = 0
    total = 0.0
    for batch in loader:
        pair, own, space = Pair(**batch), Batch(**batch), SimpleNamespace(**batch)
        loss = ((model(own.inputs) - space.labels) ** 2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        tuples += len(pair.labels)
        objects += len(own)
        spaces += len(space.labels)
        error, n = errors(**batch)
        total += error
        given += n
        moved = {k: v.to("cpu") for k, v in batch.items()}
        taken += errors(**moved)[1]
        wide += gathered(**batch)
    print("tuples", tuples)
    print("objects", objects)
    print("spaces", spaces)
    print("given", given, total / given)
    print("taken", taken, wide)
for stage in (Stage("one"), Stage("two")):
    stage.run(loader)
    stage.run(test, training=False)
