"""Sums and meters that some runs bind and others do not."""
import sys

import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
data = TensorDataset(torch.randn(96, 4), torch.randint(0, 3, (96,)))
loader = DataLoader(data, batch_size=8, shuffle=True)
model = torch.nn.Linear(4, 3)
opt = torch.optim.SGD(model.parameters(), lr=0.0)
extra = "--no-such-option" in sys.argv
task = "regression" if extra else "classification"


class AverageMeter:
    def __init__(self):
        self.reset()

    def reset(self):
        self.avg = 0
        self.sum = 0
        self.count = 0

    def update(self, val, n=1):
        self.sum += val * n
        self.count += n
        self.avg = self.sum / self.count


def train():
    stats = {"loss": 0.0}
    losses = AverageMeter()
    if task == "regression":
        errors = AverageMeter()
        stats["square"] = 0.0
    else:
        accuracies = AverageMeter()
        stats["right"] = 0
    for x, y in loader:
        out = model(x)
        loss = F.cross_entropy(out, y)
        losses.update(loss.item(), len(y))
        stats["loss"] += loss.item()
        if task == "regression":
            errors.update((out.sum(1) - y).abs().mean().item(), len(y))
            stats["square"] += ((out.sum(1) - y) ** 2).sum().item()
        else:
            accuracies.update((out.argmax(1) == y).float().mean().item(), len(y))
            stats["right"] += (out.argmax(1) == y).sum().item()
        opt.zero_grad()
        loss.backward()
        opt.step()
    if task == "regression":
        print(f"a {losses.avg:.5f} {errors.avg:.5f} {stats['square']:.5f}")
    else:
        print(f"a {losses.avg:.5f} {accuracies.avg:.5f} {stats['right']}")
    print(f"b {stats['loss']:.5f}")


train()
for epoch in range(2):
    total = 0.0
    if extra:
        second = 0
    if not extra:
        first = 0
    for x, y in loader:
        out = model(x)
        loss = F.cross_entropy(out, y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        total += loss.item()
        if extra:
            second += (out.topk(2)[1] == y[:, None]).sum().item()
        else:
            first += (out.argmax(1) == y).sum().item()
    print(f"c {total:.5f} {second if extra else first}")


def evaluate(keep=False):
    total = 0.0
    if keep:
        scores, classes = [], []
    with torch.no_grad():
        for x, y in loader:
            out = model(x)
            total += F.cross_entropy(out, y).item()
            if keep:
                scores += out.max(1).values.tolist()
                classes += y.tolist()
    if keep:
        print(f"d {sum(scores):.5f} {len(scores)} {sum(classes)}")
    return total / len(loader)


print(f"e {evaluate():.5f}")
print(f"e {evaluate(keep=True):.5f}")
