"""Lists and tuples that are given anew, windows and objects set back within a loop, rows kept at a last iteration,
positions as numbers, texts of several numbers: whatever the structure around them."""

# ruff: noqa

import json
from collections import deque, namedtuple
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
X = torch.randn(96, 5)
Y = X.sum(1, keepdim=True)
data = TensorDataset(X, Y)
loader = DataLoader(data, batch_size=8)
model = torch.nn.Linear(5, 1)
opt = torch.optim.SGD(model.parameters(), lr=0.0)


@dataclass
class Stats:
    loss: float = 0.0
    n: int = 0

    @property
    def mean(self):
        return self.loss / max(self.n, 1)


def train(x, y):
    opt.zero_grad()
    loss = torch.nn.functional.mse_loss(model(x), y)
    loss.backward()
    opt.step()
    return loss.item()


def anew(kept, texts):
    for x, y in loader:
        loss = train(x, y)
        kept = kept + [loss]
        texts.append(f"{loss:.3f}")
    return kept, texts


kept, texts, step = [], [], 0
for epoch in range(2):
    kept, texts = anew(kept, texts)
    print("anew", len(kept), sum(kept), len(texts))

losses = ()
for epoch in range(2):
    for x, y in loader:
        losses = losses + (train(x, y),)
    print("tuple", len(losses), sum(losses))

marks, numbers, at_last = [], [], 0
for epoch in range(2):
    window, stats, seen = deque(), Stats(), 0
    i = 0
    for x, y in loader:
        loss = train(x, y)
        window.append(loss)
        stats.loss += loss * len(x)
        stats.n += 1
        seen += len(x)
        step += 1
        if i % 4 == 3:
            numbers.append(i)
            line = "window: " + ", ".join(map(str, [sum(window) / len(window), step]))
            print(line)
            print("stats %s" % stats.loss, stats.mean)
            window, stats = deque(), Stats()
        i += 1
    for i, (x, y) in enumerate(loader):
        loss = train(x, y)
        if i == len(loader) - 1:
            marks.append(i)
            at_last += 1
    print(" ".join("{:.3f}".format(e) for e in (epoch, step, seen)), json.dumps([str(e) for e in (epoch, step)]))
print("marks", marks, len(marks), at_last, numbers)

Track = namedtuple("Track", "losses counts")


class Typed(NamedTuple):
    losses: list
    sums: np.ndarray


@dataclass(frozen=True)
class Frozen:
    losses: list = field(default_factory=list)
    total: dict = field(default_factory=dict)


indexed = DataLoader(TensorDataset(X, Y, torch.arange(96)), batch_size=8)
for epoch in range(2):
    pair, arrays = ([], []), (np.zeros(2), torch.zeros(1))
    track, typed, frozen = Track([], {"n": 0}), Typed([], np.zeros(2)), Frozen()
    nested = {"train": ([], [0])}
    pred, found, like = torch.empty(96), np.empty((96, 1), dtype=np.float32), torch.empty_like(Y).to("cpu")
    elements = 0
    for x, y, at in indexed:
        loss = train(x, y)
        pair[0].append(loss)
        pair[1].extend(at.tolist())
        arrays[0][0] += loss
        arrays[1].add_(loss)
        track.losses.append(loss)
        track.counts["n"] += len(x)
        typed.losses.append(loss)
        typed.sums[1] += len(x)
        frozen.losses.append(loss)
        frozen.total["n"] = frozen.total.get("n", 0) + len(x)
        nested["train"][0].append(loss)
        nested["train"][1][0] += len(x)
        with torch.no_grad():
            out = model(x)
            pred[at] = out[:, 0]
            found[at.numpy()] = out.numpy()
            like[at] = out
            elements += out.numpy().size
    print("pairs", sum(pair[0]), len(pair[0]), sum(pair[1]), arrays[0].sum(), arrays[1].item())
    print("named", sum(track.losses), track.counts["n"], len(typed.losses), typed.sums.sum())
    print("frozen", max(frozen.losses), frozen.total["n"], nested["train"][0][3], nested["train"][1][0])
    print("filled", pred.sum().item(), found.sum(), found.max(), like.mean().item(), elements)
