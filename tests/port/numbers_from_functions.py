"""Numbers of an epoch that functions return and objects keep; a rate of 0 keeps the parameters."""

# ruff: noqa

import json
import numpy as np
import torch
import torch.nn.functional as F
from dataclasses import dataclass, field
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
data = TensorDataset(torch.randn(96, 4), torch.randint(0, 3, (96,)))
loader = DataLoader(data, batch_size=8, shuffle=True)
model = torch.nn.Linear(4, 3)
opt = torch.optim.SGD(model.parameters(), lr=0.0)
criterion = torch.nn.CrossEntropyLoss()


@dataclass
class Stats:
    losses: list = field(default_factory=list)
    right: int = 0
    seen: int = 0

    def add(self, loss, out, y):
        self.losses.append(loss.item() * len(y))
        self.right += (out.argmax(1) == y).sum().item()
        self.seen += len(y)

    def mean(self):
        return sum(self.losses) / self.seen

    def acc(self):
        return self.right / self.seen


def train_sum(model, loader):
    total, right = 0.0, 0
    for x, y in loader:
        out = model(x)
        loss = criterion(out, y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        total += loss.item() * x.size(0)
        right += (out.argmax(1) == y).sum().item()
    return total, right


def train_mean(model, loader):
    losses, accs = [], []
    for x, y in loader:
        out = model(x)
        loss = criterion(out, y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        losses.append(loss.item())
        accs.append((out.argmax(1) == y).float().mean().item())
    return np.mean(losses), np.mean(accs)


def train_dict(model, loader):
    metrics = {"loss": 0.0, "acc": 0.0}
    for x, y in loader:
        out = model(x)
        loss = criterion(out, y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        metrics["loss"] += loss.item()
        metrics["acc"] += (out.argmax(1) == y).float().mean().item()
    return {k: v / len(loader) for k, v in metrics.items()}


def train_lists(model, loader):
    losses, hits = [], []
    for x, y in loader:
        out = model(x)
        loss = F.cross_entropy(out, y, reduction="none")
        opt.zero_grad()
        loss.mean().backward()
        opt.step()
        losses += loss.tolist()
        hits += (out.argmax(1) == y).int().tolist()
    return losses, hits


def train_cat(model, loader):
    outs, ys = [], []
    for x, y in loader:
        out = model(x)
        loss = criterion(out, y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        outs.append(out.detach())
        ys.append(y)
    return torch.cat(outs), torch.cat(ys)


class Trainer:
    def __init__(self):
        self.history = {"loss": [], "acc": []}
        self.total = 0.0

    def epoch(self):
        self.total, correct = 0.0, 0
        batch_losses = []
        for x, y in loader:
            out = model(x)
            loss = criterion(out, y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            self.total += loss.item() * len(x)
            batch_losses.append(loss.item())
            correct += out.argmax(1).eq(y).sum().item()
        self.history["loss"].append(self.total / len(data))
        self.history["acc"].append(correct / len(data))
        return sum(batch_losses) / len(batch_losses), correct


for epoch in range(1):
    total, right = train_sum(model, loader)
    print(f"h1 {total / len(data):.5f} {right / len(data):.5f} {right}/{len(data)}")
    loss, acc = train_mean(model, loader)
    print(f"i1 {loss:.5f} {acc:.5f}")
    metrics = train_dict(model, loader)
    print("j1", ", ".join(f"{k}: {v:.5f}" for k, v in metrics.items()))
    losses, hits = train_lists(model, loader)
    print(f"k1 {np.mean(losses):.5f} {sum(hits)} {sum(losses) / len(data):.5f}")
    out, y = train_cat(model, loader)
    print(f"l1 {criterion(out, y):.5f} {(out.argmax(1) == y).float().mean():.5f}")
    trainer = Trainer()
    mean, correct = trainer.epoch()
    print(f"m1 {mean:.5f} {correct} {trainer.total / len(data):.5f}")
    print(f"m2 {trainer.history['loss'][-1]:.5f} {trainer.history['acc'][-1]:.5f}")
    print("m3", json.dumps({k: round(v[-1], 4) for k, v in trainer.history.items()}))
    stats = Stats()
    for x, y in loader:
        out = model(x)
        loss = criterion(out, y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        stats.add(loss, out, y)
    print(f"n1 {stats.mean():.5f} {stats.acc():.5f} {stats.right} {stats.seen}")
    print(f"n2 {stats.right / len(data):.5f}")
