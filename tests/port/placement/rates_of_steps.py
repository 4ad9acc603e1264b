"""Rates, weights and saves by counts of steps that scripts keep in many ways; a rate is shown beside the first one."""

import math

import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
EPOCHS, BATCH = 4, 8
data = TensorDataset(torch.randn(96, 4), torch.randint(0, 3, (96,)))
loader = DataLoader(data, batch_size=BATCH, shuffle=True)
iters = 96 // BATCH


def made(rate=0.08):
    model = torch.nn.Linear(4, 3)
    return model, torch.optim.SGD(model.parameters(), lr=rate)


def train(model, opt, x, y):
    opt.zero_grad()
    F.cross_entropy(model(x), y).backward()
    opt.step()


def until():
    model, opt = made()
    schedule = torch.optim.lr_scheduler.ExponentialLR(opt, 0.9)
    for e in range(EPOCHS):
        for i, (x, y) in enumerate(loader):
            train(model, opt, x, y)
            if e * len(loader) + i + 1 <= 24:
                schedule.step()
        print("until", e, f"{opt.param_groups[0]['lr'] / opt.param_groups[0]['initial_lr']:.5f}")


def halved():
    model, opt = made()
    schedule, step = torch.optim.lr_scheduler.StepLR(opt, 12, 0.5), 0
    first = schedule.get_last_lr()[0]
    for e in range(EPOCHS):
        for x, y in loader:
            train(model, opt, x, y)
            step += 1
            if step <= 24:
                schedule.step()
        print("halved", e, f"{schedule.get_last_lr()[0] / first:.4f}")


def fractions():
    model, opt = made()
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(opt, EPOCHS)
    first = opt.param_groups[0]["lr"]
    for e in range(EPOCHS):
        for i, (x, y) in enumerate(loader):
            train(model, opt, x, y)
            schedule.step(e + (i + 1) / iters)
        print("fractions", e, f"{opt.param_groups[0]['lr'] / first:.4f}")


def warm():
    model, opt = made()
    step, first = 0, opt.param_groups[0]["lr"]
    for e in range(EPOCHS):
        for x, y in loader:
            opt.param_groups[0]["lr"] = 0.08 * min(1.0, (step + 1) / 24)
            train(model, opt, x, y)
            step += 1
        print("warm", e, step, f"{opt.param_groups[0]['lr'] / first:.4f}")


def closure(base, every):
    calls = 0

    def rate():
        nonlocal calls
        calls += 1
        return base * 0.5 ** (calls // every)

    return rate


def called():
    model, opt = made()
    first, rate = opt.param_groups[0]["lr"], closure(0.08, 12)
    for e in range(EPOCHS):
        for x, y in loader:
            opt.param_groups[0]["lr"] = rate()
            train(model, opt, x, y)
        print("called", e, f"{opt.param_groups[0]['lr'] / first:.4f}")


def table():
    model, opt = made()
    weights, k = [1 / (1 + s) for s in range(49)], 0
    for e in range(EPOCHS):
        for x, y in loader:
            train(model, opt, x, y)
            k += 1
        print("table", e, k, f"{weights[k]:.5f} {weights[k - 1]:.5f} {0.1 + 0.9 * math.exp(-k / 24):.5f} {math.sqrt(k):.4f}")


def phases():
    model, opt = made()
    step, weight = 0, 0.0
    for e in range(EPOCHS):
        for x, y in loader:
            weight = 1.0 if step >= 24 else 0.1
            if step > 24:
                train(model, opt, x, y)
            train(model, opt, x, y)
            step += 1
        print("phases", e, weight, step)


for part in (until, halved, fractions, warm, called, table, phases):
    part()
