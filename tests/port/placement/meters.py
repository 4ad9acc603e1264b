"""Zoo of in-loop things."""
import math

import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
data = TensorDataset(torch.randn(96, 4), torch.randint(0, 3, (96,)))
loader = DataLoader(data, batch_size=8, shuffle=True)
model = torch.nn.Linear(4, 3)
opt = torch.optim.SGD(model.parameters(), lr=0.0)
class AverageMeter:
    def __init__(self):
        self.reset()
    def reset(self):
        self.val = self.avg = self.sum = self.count = 0
    def update(self, val, n=1):
        self.val = val
        self.sum += val * n
        self.count += n
        self.avg = self.sum / self.count
grand = 0.0
worst, at = 0.0, -1
log = []
counts = {}
def evaluate(loader):
    model.eval()
    total = 0.0
    for x, y in loader:
        total += F.cross_entropy(model(x), y).item()
    return total / len(loader)
for epoch in range(2):
    meter = AverageMeter()
    running = 0.0
    outs, labels = [], []
    for i, (x, y) in enumerate(loader):
        out = model(x)
        loss = F.cross_entropy(out, y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        meter.update(loss.item(), len(y))
        running += loss.item()
        grand += loss.item()
        outs.append(out.argmax(1))
        labels += y.tolist()
        for c in y.tolist():
            counts[c] = counts.get(c, 0) + 1
        if loss.item() > worst:
            worst, at = loss.item(), i
        if (i + 1) % 6 == 0:
            print(f"w {epoch} {running / 6:.5f}")
            running = 0.0
        if math.isnan(loss.item()):
            break
    outs = torch.cat(outs)
    print(f"a {meter.avg:.5f} {meter.count} {grand:.4f} {len(outs)} {sum(labels)} {worst:.5f} {sorted(counts.items())}")
    log.append({"avg": meter.avg, "n": meter.count})
    print(log[-1])
print(evaluate(loader))
