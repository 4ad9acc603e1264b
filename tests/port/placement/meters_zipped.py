"""Meters in a list, each updated beside its number."""
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
data = TensorDataset(torch.randn(96, 4), torch.randint(0, 3, (96,)))
loader = DataLoader(data, batch_size=8, shuffle=True)
val = DataLoader(TensorDataset(torch.randn(52, 4), torch.randint(0, 3, (52,))), batch_size=8)
model = torch.nn.Linear(4, 3)
opt = torch.optim.SGD(model.parameters(), lr=0.0)
class AverageMeter:
    def __init__(self, name, fmt=":f"):
        self.name, self.fmt = name, fmt
        self.reset()
    def reset(self):
        self.val = self.avg = self.sum = self.count = self.sq = 0
        self.max = -1e9
    def update(self, val, n=1):
        self.val = val
        self.sum += val * n
        self.sq += val * val * n
        self.count += n
        self.avg = self.sum / self.count
        self.max = max(self.max, val)
    @property
    def std(self):
        return (self.sq / self.count - self.avg ** 2) ** 0.5
    def __str__(self):
        return f"{self.name} {self.avg:.5f} +- {self.std:.5f} max {self.max:.5f}"
def accuracy(output, target, topk=(1,)):
    maxk = max(topk)
    _, pred = output.topk(maxk, 1, True, True)
    pred = pred.t()
    correct = pred.eq(target.view(1, -1).expand_as(pred))
    return [correct[:k].reshape(-1).float().sum(0, keepdim=True).mul_(100.0 / target.size(0)) for k in topk]
def train():
    meters = [AverageMeter("loss"), AverageMeter("top1"), AverageMeter("top2")]
    for x, y in loader:
        out = model(x)
        loss = F.cross_entropy(out, y)
        p1, p2 = accuracy(out, y, (1, 2))
        for m, v in zip(meters, (loss.item(), p1.item(), p2.item())):
            m.update(v, x.size(0))
        opt.zero_grad()
        loss.backward()
        opt.step()
    print("\t".join(str(m) for m in meters))
    return [m.avg for m in meters]
best = 0
for epoch in range(2):
    r = train()
    is_best = r[1] > best
    best = max(r[1], best)
    print(is_best, f"{best:.5f}")
