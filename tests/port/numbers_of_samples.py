"""Numbers that are stored in arrays at the places of their samples, however the arrays were made; a rate of 0."""

# ruff: noqa

import copy
import numpy as np
import torch
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
X = torch.randn(40, 4)
Y = (X.sum(1) > 0).long()
loader = DataLoader(TensorDataset(X, Y, torch.arange(40)), batch_size=4)
model = torch.nn.Linear(4, 2)
opt = torch.optim.SGD(model.parameters(), lr=0.0)
weights = torch.ones(40) / 40


def unknown(n):
    return np.full(n, np.nan) * 1.0


def put(array, places, values):
    array[places] = values


class Bank:
    def __init__(self, n):
        self.rows = torch.zeros(n, 2) - 1
        self.seen = np.zeros(n).astype(int)

    def update(self, places, rows):
        self.rows[places] = rows
        self.seen[places.numpy()] += 1


bank = Bank(40)
tables = {"double": torch.zeros(40).double(), "two": (torch.zeros(40) + 2).float()}
for epoch in range(2):
    guessed = torch.zeros(40).long()
    nans, minus, flat = unknown(40), -torch.ones(40), torch.zeros(80).view(40, 2)
    copied, data = copy.deepcopy(minus), torch.zeros(40)
    either = torch.zeros(40) if epoch else torch.ones(40) * 2
    for x, y, at in loader:
        out = model(x)
        each = torch.nn.functional.cross_entropy(out, y, reduction="none")
        opt.zero_grad()
        each.mean().backward()
        opt.step()
        each, out = each.detach(), out.detach()
        guessed[at] = out.argmax(1)
        weights[at] = each
        nans[at.numpy()] = each.numpy()
        put(minus, at, each)
        flat[at] = out
        copied.view(-1)[at] = each
        data.data[at] = each
        either[at] = each
        bank.update(at, out)
        tables["double"][at] = each.double()
        tables["two"][at] = each
    weights = weights / weights.sum()
    print("guessed", (guessed == Y).sum().item())
    print("weights", weights.max().item(), nans.sum())
    print("arrays", minus.sum().item(), flat.sum().item(), copied.sum().item(), data.sum().item(), either.sum().item())
    print("bank", bank.rows.sum().item(), bank.seen.sum(), bank.seen.max())
    print("tables", {name: table.sum().item() for name, table in tables.items()})
