"""Losses that are means, sums, roots of means, and one for each sample: of modules, moved to a device, and of functions."""

# ruff: noqa

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
X = torch.randn(96, 5)
loader = DataLoader(TensorDataset(X, X.sum(1, keepdim=True)), batch_size=12)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Error(nn.Module):
    def __init__(self, p=2, reduction="mean"):
        super().__init__()
        self.p, self.reduction = p, reduction

    def forward(self, out, y):
        error = (out - y).abs() ** self.p
        if self.reduction == "sum":
            return error.sum()
        return error.mean() if self.reduction == "mean" else error


class Wrapped(nn.Module):
    def __init__(self, reduction):
        super().__init__()
        self.reduction = reduction

    def forward(self, out, y):
        return F.mse_loss(out, y, reduction=self.reduction)


class Book:
    def __init__(self):
        self.losses = {"own": Error(1, "sum").to(device), "l1": nn.L1Loss(reduction="sum").to(device).float()}
        self.huber = nn.HuberLoss(reduction="sum").to(device=device)
        self.sums = {name: 0.0 for name in self.losses}

    def add(self, out, y):
        for name, loss in self.losses.items():
            self.sums[name] += loss(out, y).item()


model = nn.Linear(5, 1).to(device)
scale = torch.full((1,), 0.5)
criterion = nn.MSELoss(reduction="sum").to(device)
each, own_each = nn.MSELoss(reduction="none").to(device), Error(1, "none")
own, wrapped, wrapped_mean = Error(1).to(device), Wrapped("sum"), Wrapped("mean")
l1 = nn.L1Loss(reduction="sum")
if torch.cuda.is_available():
    l1 = l1.cuda()
opt = torch.optim.SGD(model.parameters(), lr=0.001)
for epoch in range(2):
    book = Book()
    hits, kinds, by_epoch, squares = np.zeros(2), np.zeros(2), np.zeros(2), torch.zeros(1)
    total = total_l1 = by_sample = own_by_sample = mean = summed = meaned = huber = n = elements = 0
    for x, y in loader:
        out = model(x)
        scales = scale.expand(out.size(0), 1)
        loss = criterion(out * scales, y * scales)
        opt.zero_grad()
        loss.backward()
        opt.step()
        total += loss.item()
        with torch.no_grad():
            total_l1 += l1(out, y).item()
            by_sample += each(out, y).sum().item()
            own_by_sample += own_each(out, y).sum().item()
            mean += own(out, y).item()
            summed += wrapped(out, y).item()
            meaned += wrapped_mean(out, y).item()
            huber += book.huber(out, y).item()
            book.add(out, y)
            squares.add_((out**2).sum(0))
            kind, found = (y[:, 0] > 0).long().numpy(), (out[:, 0] > 0).long().numpy()
            np.add.at(kinds, kind, 1)
            np.add.at(hits, kind[kind == found], 1)
            np.add.at(by_epoch, epoch, loss.item())
        n += x.size(0)
        elements += (out - y).detach().numpy().size
    print("sums", total / n, total_l1 / n, by_sample / n, own_by_sample / n)
    print("own", mean / len(loader), summed / n, meaned / len(loader))
    print("book", elements, huber, book.sums)
    print("added", kinds, hits, by_epoch, squares / n)
