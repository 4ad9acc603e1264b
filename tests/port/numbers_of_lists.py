"""Samples counted in Python: lists of predictions, comprehensions over them, loops through them."""

# ruff: noqa

import collections
import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
x = torch.randn(96, 4)
y = (x.sum(1) > 0).long() + (x[:, 0] > 1).long()
model = nn.Linear(4, 3)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
loader = DataLoader(TensorDataset(x, y), 8)
names = ["a", "b", "c"]
for epoch in range(2):
    counts = [0] * 13
    confusion, table = [[0] * 3 for _ in range(3)], np.zeros((3, 3), int)
    hits, pairs = collections.defaultdict(int), collections.Counter()
    named = {name: 0 for name in names}
    sure, wrong = [], []
    for xb, yb in loader:
        out = model(xb)
        loss = nn.functional.cross_entropy(out, yb)
        opt.zero_grad()
        loss.backward()
        opt.step()
        guess = out.argmax(1)
        scores = out.max(1).values.tolist()
        guesses, labels = guess.tolist(), yb.tolist()
        counts[0] += sum(1 for s in scores if s > 0.3)
        counts[1] += len([s for s in scores if s > 0.3])
        counts[2] += sum(g == a for g, a in zip(guesses, labels))
        counts[3] += sum([int(g == a) for g, a in zip(guess, yb)])
        counts[4] += len([i for i, (g, a) in enumerate(zip(guesses, labels)) if g != a])
        counts[5] += len(list(filter(lambda s: s > 0.3, scores)))
        counts[6] += sum(map(lambda g: g == 1, guesses))
        counts[7] += guesses.count(1) + [g == a for g, a in zip(guesses, labels)].count(True)
        counts[8] += sum(1 for i in range(len(labels)) if guesses[i] == labels[i])
        counts[12] += sum(1 for o, a in zip(out, yb) if o.argmax() == a) + collections.Counter(labels)[0]
        for g, a in zip(guesses, labels):
            if g == a:
                counts[9] += 1
            confusion[a][g] += 1
            table[a, g] += 1
            hits[a] += int(g == a)
            pairs[(a, g)] += 1
        for i in range(len(yb)):
            if guess[i] == yb[i]:
                counts[10] += 1
            named[names[yb[i].item()]] += 1
        for o in out.detach():
            if o[0] > o[1]:
                counts[11] += 1
        sure += [round(s, 3) for s in scores if s > 0.8]
        wrong.extend([a for g, a in zip(guesses, labels) if g != a])
    print("counts", *counts)
    print("tables", confusion, table.tolist())
    print("kept", dict(sorted(hits.items())), sorted(pairs.items()), named)
    print("lists", len(sure), len(wrong), sorted(sure)[:3], sorted(wrong)[:3])
