"""Counts beside means in rows that become a table, lists that are cut by them, and one function that trains and evaluates."""
import numpy as np
import pandas as pd
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
x, y = torch.randn(120, 4), torch.randint(0, 3, (120,))
train, val = DataLoader(TensorDataset(x[:96], y[:96]), 4, shuffle=True), DataLoader(TensorDataset(x[96:], y[96:]), 4)
model = nn.Linear(4, 3)
opt = torch.optim.SGD(model.parameters(), 0.0)
every, step, rows, pairs = [], 0, [], []

class Step:
    def __init__(self): self.calls = 0
    def __call__(self, x, y):
        loss = nn.functional.cross_entropy(model(x), y)
        opt.zero_grad(); loss.backward(); opt.step(); self.calls += 1
        return loss.item()

def run(batches, training):
    global step
    right = seen = 0
    for i, (a, b) in enumerate(batches, 1):
        out = model(a); loss = nn.functional.cross_entropy(out, b)
        if training: opt.zero_grad(); loss.backward(); opt.step(); step += 1; every.append(loss.item())
        right += (out.argmax(1) == b).sum().item(); seen += len(b)
        if i % 2 == 0 and i == len(batches): print("= so far", seen, right)
    return right, seen

taken = Step()
for epoch in range(2):
    losses = []
    for a, b in train: losses.append(taken(a, b))
    rows.append({"epoch": epoch, "loss": np.mean(losses), "n": len(losses), "calls": taken.calls})
    pairs.append((epoch, taken.calls, np.max(losses) >= np.mean(losses)))
    right, seen = run(train, True)
    others, n = run(val, False)
    last = every[-len(train):]
    print(f"= {right}/{seen} {others}/{n} {step} {len(last)} {sum(last) / len(last):.5f} {sum(every[:len(train)]):.5f}")
table = pd.DataFrame(rows)
print(f"= {table.loss.min():.5f} {table.n.sum()} {table.calls.max()} {pairs}")

where = torch.full((96,), float("nan"))
numbered = DataLoader(TensorDataset(x[:96], y[:96], torch.arange(96)), 4, shuffle=True)
for a, b, i in numbered:
    wrong = nn.functional.cross_entropy(model(a), b, reduction="none")
    opt.zero_grad(); wrong.mean().backward(); opt.step()
    where[i] = wrong.detach()
print(f"= {where.mean():.5f} {int(where.argmax())}")
