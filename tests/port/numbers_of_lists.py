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
    sure, wrong, rows, of_samples, by_label = [], [], [], [], collections.defaultdict(list)
    classes, sums, began = collections.Counter(), collections.Counter(), collections.Counter(n=0)
    low, high = 1e9, torch.tensor(-1e9)
    outs, truths, losses, guessed = torch.empty(0, 3), np.array([]), np.array([]), None
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
        for i, (g, a, s) in enumerate(zip(guesses, labels, scores)):
            rows.append([a, g, s])
            by_label[a].append((g, s))
        for one, label in zip(xb, yb):
            of_samples.append({"x": one[0].item(), "label": int(label)})
        classes += collections.Counter(labels)
        sums.update(n=len(yb), hits=(guess == yb).sum().item())
        sums += collections.Counter(l=loss.item() * len(yb))
        began.update({"n": len(yb)})
        low, high = min(low, out.min().item()), torch.max(high, out.max().detach())
        outs = torch.cat([outs, out.detach()], dim=0)
        truths, losses = np.append(truths, yb.numpy()), np.append(losses, loss.item())
        now = guess.numpy()
        guessed = now if guessed is None else np.concatenate((guessed, now))
        last = out.abs().max().item()
        sure += [round(s, 3) for s in scores if s > 0.8]
        wrong.extend([a for g, a in zip(guesses, labels) if g != a])
    print("counts", *counts)
    print("tables", confusion, table.tolist())
    print("kept", dict(sorted(hits.items())), sorted(pairs.items()), named)
    print("lists", len(sure), len(wrong), sorted(sure)[:3], sorted(wrong)[:3])
    print("rows", len(rows), rows[5][:2], round(rows[-1][2], 4), round(sum(r[2] for r in rows), 3))
    print("by label", sorted((label, len(kept), round(sum(s for _, s in kept), 3)) for label, kept in by_label.items()))
    print("of samples", len(of_samples), round(of_samples[9]["x"], 4), sum(row["label"] for row in of_samples))
    print("counters", sorted(classes.items()), sums["hits"] / sums["n"], round(sums["l"] / sums["n"], 5), began["n"])
    print("joined", outs.shape, round(outs[21, 0].item(), 4), (outs.argmax(1).numpy() == truths).sum(), guessed.sum())
    print("losses", losses.shape)
    print("extremes", round(low, 4), round(high.item(), 4), round(last, 4))
