"""Samples in lists, as objects, dicts and tuples: each iteration chooses some, and reads what they hold."""

# ruff: noqa

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F

torch.manual_seed(0)
X, Y = torch.randn(96, 5), torch.randint(0, 3, (96,))


class Graph:
    def __init__(self, nodes, label):
        self.nodes, self.label, self.pair = nodes, label, (label, len(nodes))


@dataclass
class Item:
    x: torch.Tensor
    meta: dict


graphs = [Graph(x, int(y)) for x, y in zip(X, Y)]
dicts = [{"x": x, "y": int(y)} for x, y in zip(X, Y)]
pairs = [(x, int(y)) for x, y in zip(X, Y)]
items = [Item(x, {"y": int(y)}) for x, y in zip(X, Y)]
model = torch.nn.Linear(5, 3)
opt = torch.optim.SGD(model.parameters(), lr=0.0)


def loss_of(xs, ys):
    return F.cross_entropy(model(torch.stack(xs)), torch.tensor(ys))


def train(order):
    worst, least, first, losses = [0.0] * 4, 9.0, 0, []
    for i in range(0, 96, 8):
        chosen = order[i : i + 8]
        a, b = [graphs[k] for k in chosen], [dicts[k] for k in chosen]
        c, d = [pairs[k] for k in chosen], [items[k] for k in chosen]
        loss = loss_of([g.nodes for g in a], [g.label for g in a])
        opt.zero_grad()
        loss.backward()
        opt.step()
        least = min(least, loss.item())
        first = max(first, graphs[chosen[0]].pair[0] + 0.1 * graphs[chosen[1]].label)
        worst[0] = max(worst[0], loss.item())
        worst[1] = max(worst[1], loss_of([g["x"] for g in b], [g["y"] for g in b]).item())
        worst[2] = max(worst[2], loss_of([x for x, _ in c], [g[1] for g in c]).item())
        worst[3] = max(worst[3], loss_of([g.x for g in d], [g.meta["y"] for g in d]).item())
        loss = loss.detach().numpy()
        losses.append(float(loss))
    print("least", least, "first", first, "sum", sum(losses), len(losses))
    return worst


for epoch in range(3):
    worst = train(np.random.RandomState(epoch).permutation(96))
    for kind, value in zip(("objects", "dicts", "pairs", "fields"), worst):
        print(kind, value)

means = []
for epoch in range(2):
    np.random.RandomState(epoch).shuffle(pairs)
    running, n = 0.0, 0
    for start in range(0, len(pairs), 8):
        chunk = pairs[start : start + 8]
        loss = loss_of([pair[0] for pair in chunk], [y for _, y in chunk])
        opt.zero_grad()
        loss.backward()
        opt.step()
        running += loss.item()
        n += 1
    means.append(running / n)
    print("slices of pairs", means[-1], n)
