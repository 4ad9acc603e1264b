# ruff: noqa: UP032 - templates are what it is about
import time

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

# Meters whose fields a template reads while the loop goes on, as the ImageNet example had it.
torch.manual_seed(0)
loader = DataLoader(TensorDataset(torch.randn(96, 4), torch.randint(0, 3, (96,))), batch_size=8)
model = nn.Linear(4, 3)
opt = torch.optim.SGD(model.parameters(), lr=0.0)


class AverageMeter:
    def __init__(self):
        self.val = self.avg = self.sum = self.count = 0

    def update(self, val, n=1):
        self.val = val
        self.sum += val * n
        self.count += n
        self.avg = self.sum / self.count


for epoch in range(2):
    losses, top1, batch_time = AverageMeter(), AverageMeter(), AverageMeter()
    end = time.time()
    for i, (x, y) in enumerate(loader):
        out = model(x)
        loss = F.cross_entropy(out, y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        losses.update(loss.item(), x.size(0))
        top1.update((out.argmax(1) == y).float().mean().item(), x.size(0))
        batch_time.update(time.time() - end)
        end = time.time()
        if (i + 1) % 6 == 0:
            print("= [{0}][{1}/{2}]\t"
                  'Loss {loss.avg:.5f} of {loss.count:d}\t'
                  "{{top1.avg}} {top1.avg:.4f} {3.avg:.5f}".format(
                      epoch, i + 1, len(loader), losses, loss=losses, top1=top1))
            slow = "Time {time.val:.0f} ({time.avg:.0f})".format(time=batch_time)
            print("= timed", len(slow.split()))
