"""Batches that the script cuts itself: by slices, by an order, by number, and in a generator."""

import numpy as np
import torch
from torch import nn

torch.manual_seed(0)
np.random.seed(0)
X = torch.randn(48, 4)
Y = X.sum(1, keepdim=True)
table, answers = X.numpy(), Y.numpy()
model = nn.Linear(4, 1)
opt = torch.optim.Adam(model.parameters(), lr=0.05)
BATCH = 12


def update(x, y, loss):
    opt.zero_grad()
    loss.backward()
    opt.step()
    return loss.item()


total, seen, losses = 0.0, 0, []
for i in range(0, len(X), BATCH):
    x, y = X[i : i + BATCH], Y[i : i + BATCH]
    losses.append(update(x, y, ((model(x) - y) ** 2).mean()))
    total += losses[-1] * len(x)
    seen += x.size(0)
    if i % 24 == 0:
        print("slices", i)
print("slices", total / seen, seen, np.mean(losses), len(losses))

for epoch in range(2):
    order = torch.randperm(len(X))
    right, summed = 0, 0.0
    for b in range(len(X) // BATCH):
        pick = order[b * BATCH : (b + 1) * BATCH]
        loss = ((model(X[pick]) - Y[pick]) ** 2).sum() / BATCH
        summed += update(X[pick], Y[pick], loss)
        right += ((model(X[pick]) > 0) == (Y[pick] > 0)).sum().item()
    print("order", epoch, summed, right / len(X), b + 1)


def batches(a, b, size):
    order = np.random.permutation(len(a))
    for start in range(0, len(a), size):
        pick = order[start : start + size]
        yield torch.from_numpy(a[pick]), torch.from_numpy(b[pick])


for epoch in range(2):
    count, mean = 0, 0.0
    for step, (x, y) in enumerate(batches(table, answers, BATCH)):
        mean += (update(x, y, nn.functional.mse_loss(model(x), y)) - mean) / (step + 1)
        count += len(x)
    print("generator", epoch, mean, count)

samples = [(X[i], Y[i]) for i in range(len(X))]
for epoch in range(2):
    rows = torch.randperm(len(X)).view(-1, BATCH)
    summed = 0.0
    for row in rows:
        summed += update(X[row], Y[row], nn.functional.mse_loss(model(X[row]), Y[row]))
    print("rows", epoch, summed / len(rows), len(rows))
    total, seen, order = 0.0, 0, list(range(len(samples)))
    np.random.shuffle(order)
    for k in range(0, len(order), BATCH):
        taken = [samples[j] for j in order[k : k + BATCH]]
        x, y = torch.stack([pair[0] for pair in taken]), torch.stack([pair[1] for pair in taken])
        total += update(x, y, nn.functional.mse_loss(model(x), y)) * len(taken)
        seen += len(taken)
    print("samples", epoch, total / seen, seen)
print("weights", model.weight.detach().numpy().ravel(), model.bias.item())
