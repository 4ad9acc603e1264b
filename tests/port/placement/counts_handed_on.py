"""Counts of steps that functions get beside other values, by ``*values`` and ``**values``, in dicts and lists."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
EPOCHS, EVERY = 3, 12
x = torch.randn(96, 4)
loader = DataLoader(TensorDataset(x, (x.sum(1) > 0).long()), batch_size=8, shuffle=True)
model = nn.Linear(4, 2)
opt = torch.optim.SGD(model.parameters(), lr=0.0)
sched = torch.optim.lr_scheduler.LambdaLR(opt, lambda step: 1.0)


def rounded(*values):
    print(*[round(float(v), 4) for v in values])


def plain(*values):
    print(*values)


def named(**values):
    print(" ".join(f"{k}={v}" for k, v in values.items()))


def row(values):
    print({k: round(float(v), 3) for k, v in values.items()})


joined = lambda *values: print(" ".join(str(v) for v in values))


class Log:
    def __init__(self):
        self.kept = {}

    def add(self, **values):
        for k, v in values.items():
            self.kept.setdefault(k, []).append(v)


step, log, behind = 0, Log(), Log()
for epoch in range(EPOCHS):
    for a, b in loader:
        loss = nn.functional.cross_entropy(model(a), b)
        opt.zero_grad()
        loss.backward()
        opt.step()
        sched.step()
        step += 1
        if step % EVERY == 0:
            rounded(epoch, step)
            plain(epoch, step)
            named(epoch=epoch, step=step)
            row({"epoch": epoch, "step": step})
            joined(epoch, step)
            log.add(epoch=epoch, step=step)
    rounded(epoch, sched.last_epoch)
    plain(epoch, sched.last_epoch)
    named(epoch=epoch, step=sched.last_epoch)
    row(dict(epoch=epoch, step=sched.last_epoch))
    joined(epoch, step)
    behind.add(epoch=epoch, step=step)
print(log.kept, behind.kept)

# An index and a count beside each other, by a test of the count, and by numbers kept beside a length.
settings = {"total": EPOCHS * len(loader), "every": EVERY}
step, saved = 0, []
for epoch in range(EPOCHS):
    for i, (a, b) in enumerate(loader):
        opt.zero_grad()
        nn.functional.cross_entropy(model(a), b).backward()
        opt.step()
        step += 1
        if step % settings["every"] == 0 or step == settings["total"]:
            print("reached", step, i, 100 * step // settings["total"])
            saved.append(step)
        if step % EVERY == EVERY - 1:
            print("before", step)
        if (step + 1) % EVERY == 0:
            print("before", step)
        if i % EVERY == EVERY - 1:
            print("last", step, i)
print(saved)
