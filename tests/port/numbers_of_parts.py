"""Losses of several parts, several models, and sums kept by their names in dicts; a rate of 0 keeps the parameters."""

# ruff: noqa

import json
import torch
import torch.nn.functional as F
from collections import defaultdict
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
data = TensorDataset(torch.randn(96, 4), torch.randint(0, 3, (96,)))
loader = DataLoader(data, batch_size=8, shuffle=True)
D = nn.Sequential(nn.Linear(4, 8), nn.LeakyReLU(0.2), nn.Linear(8, 1), nn.Sigmoid())
G = nn.Linear(4, 4)
opt_d, opt_g = (torch.optim.SGD(net.parameters(), lr=0.0) for net in (D, G))
model = nn.Linear(4, 3)
opt = torch.optim.SGD(model.parameters(), lr=0.0)
weights = {"ce": 1.0, "size": 0.5}


def gan():
    d_sum = g_sum = dx = 0.0
    real_right = fake_right = count = 0
    for i, (real, _) in enumerate(loader):
        n = len(real)
        ones, zeros, fake = torch.ones(n, 1), torch.zeros(n, 1), G(real * 0.5)
        out_real, out_fake = D(real), D(fake.detach())
        d_loss = F.binary_cross_entropy(out_real, ones) + F.binary_cross_entropy(out_fake, zeros)
        opt_d.zero_grad()
        d_loss.backward()
        opt_d.step()
        opt_g.zero_grad()
        g_loss = F.binary_cross_entropy(D(fake), ones)
        g_loss.backward()
        opt_g.step()
        d_sum += d_loss.item() * n
        g_sum += g_loss.item() * n
        dx += out_real.mean().item()
        real_right += (out_real > 0.5).sum().item()
        fake_right += (out_fake < 0.5).sum().item()
        count += n
    print("gan", d_sum / len(data), g_sum / len(loader.dataset), dx / len(loader), dx / (i + 1), real_right, fake_right)
    print("both", (real_right + fake_right) / (2 * len(data)), (real_right + fake_right) / 2 / count)
    print("twice", d_sum / 2 / len(data), 100 * (real_right / 2) / count, d_sum / count / 2)


def losses_of(x, y):
    out = model(x)
    losses = {"ce": F.cross_entropy(out, y), "size": out.pow(2).mean()}
    loss = sum(weights[k] * losses[k] for k in losses)
    opt.zero_grad()
    loss.backward()
    opt.step()
    return loss, losses, (out.argmax(1) == y).sum().item()


for epoch in range(2):
    gan()
    sums = {k: 0.0 for k in weights}
    parts = {"all": 0.0, "right": 0}
    shares = {"all": 0.0, "right": 0}
    named, means = defaultdict(float), defaultdict(float)
    for x, y in loader:
        loss, losses, right = losses_of(x, y)
        for k in losses:
            sums[k] += losses[k].item()
        for k, v in (("ce", losses["ce"]), ("size", losses["size"])):
            means[k] += v.item() / len(loader)
        parts["all"] += loss.item() * len(x)
        parts["right"] += right
        shares["all"] += loss.item() * len(x)
        shares["right"] += right
        named["all"] += loss.item() * len(x)
        named["right"] += right
    print(
        "sums", {k: v / len(loader) for k, v in sums.items()}, {k: round(v / len(loader), 4) for k, v in sums.items()}
    )
    print(
        "parts",
        {k: round(v / len(data), 4) for k, v in parts.items()},
        [f"{v / len(data):.4f}" for v in parts.values()],
    )
    print("text", " ".join(f"{k}: {v / len(loader):.4f}" for k, v in sums.items()))
    for k in sums:
        print("key", k, sums[k] / len(loader))
    for k, v in sums.items():
        print("item", k, v / len(loader))
    for k, v in parts.items():
        print("share", k, v / len(data), f"{v / len(data):.4f}")
    print("means", means["ce"], means["size"])
    print("named", {k: round(v / len(data), 4) for k, v in named.items()})
    for k in named:
        named[k] /= len(loader.dataset)
    print("divided", " ".join(f"{k}: {v:.4f}" for k, v in named.items()))
    shares["all"] /= len(data)
    shares["right"] = shares["right"] / len(data)
    print("shares", shares["all"], shares["right"], json.dumps(shares))


class Trainer:
    def __init__(self):
        self.state = {"loss": 0.0, "right": 0, "seen": 0, "batches": 0}
        self.best = {"right": 0}
        self.total = 0.0
        self.parts = {"loss": 0.0}

    def epoch(self):
        self.state["loss"], self.total = 0.0, 0.0
        self.state["right"] = 0
        self.state["seen"] = 0
        self.state["batches"] = 0
        self.parts["loss"] = 0.0
        for x, y in loader:
            loss, _, right = losses_of(x, y)
            self.state["loss"] += loss.item() * len(y)
            self.state["right"] += right
            self.state["seen"] += len(y)
            self.state["batches"] += 1
            self.total += loss.item() * len(y)
            self.parts["loss"] += loss.item() * len(y)
        self.total /= len(data)
        self.parts["loss"] /= len(data)
        return {"loss": self.state["loss"] / self.state["seen"], "right": self.state["right"]}

    def log(self, result):
        print("result", result["loss"], result["right"])
        print("state", self.state["loss"] / len(data), self.state["right"], self.state["right"] / len(data))
        print(
            "seen", self.state["seen"], self.state["loss"] / self.state["batches"] / 8, self.total, self.parts["loss"]
        )
        if self.state["right"] > self.best["right"]:
            self.best["right"] = self.state["right"]
            print("best", self.best["right"])

    def fit(self):
        for _ in range(2):
            self.log(self.epoch())


Trainer().fit()


def epoch():
    total, right, seen = 0.0, 0, 0
    for x, y in loader:
        loss, _, ok = losses_of(x, y)
        total += loss.item() * len(x)
        right += ok
        seen += len(y)
    return total / seen, right / seen, right


class Writer:
    def __init__(self):
        self.rows = []

    def add(self, tag, value, at):
        self.rows.append([tag, value, at])


writer, level, best_right, rights, best = Writer(), 0, 0, [], {}
for at in range(2):
    loss, acc, right = epoch()
    writer.add("right", right, at)
    if right > best_right:
        best_right = right
        best["right"], best["epoch"] = right, at
    if right > 20:
        level += 1
    if acc > 0.2 and loss > 1.0:
        level += 10
    rights.append(right)
    torch.save({"loss": loss, "acc": acc, "right": right}, f"at_{at}_{right}.pt")
    with open("log.txt", "w") as f:
        f.write(f"{at} {loss:.4f} {right}\n")
    print("level", level, best_right, best, rights, loss, acc)
    print("written", writer.rows[-1][1:], open("log.txt").read())
