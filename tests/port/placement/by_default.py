"""Meters that a dict makes for keys that it lacks, lists that it is given for them, and loops over a generator."""
from collections import defaultdict, deque
import torch
from torch import nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
data = TensorDataset(torch.randn(96, 4), torch.randint(0, 3, (96,)))
loader = DataLoader(data, batch_size=8, shuffle=True)
val = DataLoader(TensorDataset(torch.randn(36, 4), torch.randint(0, 3, (36,))), batch_size=9)
model = nn.Linear(4, 3)
opt = torch.optim.SGD(model.parameters(), lr=0.0)

class Meter:
    def __init__(self, window=3): self.deque = deque(maxlen=window); self.total = 0.0; self.count = 0
    def update(self, value, n=1): self.deque.append(value); self.total += value * n; self.count += n
    @property
    def mean(self): return self.total / self.count

class Meters:
    def __init__(self): self.meters = defaultdict(Meter)
    def update(self, **values):
        for name, value in values.items(): self.meters[name].update(value.item())
    def __getattr__(self, name): return self.meters[name]
    def going_through(self, batches):
        for batch in batches: yield batch  # noqa: UP028

def train(epoch):
    m = Meters()
    for x, y in m.going_through(loader):
        out = model(x); loss = F.cross_entropy(out, y)
        opt.zero_grad(); loss.backward(); opt.step()
        m.update(loss=loss, top=out.mean())
        m.meters["acc"].update((out.argmax(1) == y).float().mean().item(), n=x.shape[0])
    print(f"= {m.loss.mean:.5f} {m.loss.count} {m.meters['acc'].mean:.5f} {m.acc.count} {m.top.mean:.5f}")

class Net(nn.Module):
    def __init__(self): super().__init__(); self.l = nn.Linear(4, 3); self.logged = {}
    def note(self, name, value, n):
        s = self.logged.setdefault(name, [0.0, 0])
        s[0] += float(value) * n
        s[1] += n
    def step(self, x, y):
        out = self.l(x); loss = F.cross_entropy(out, y)
        self.note("loss", loss, len(x)); self.note("acc", (out.argmax(1) == y).float().mean(), len(x))
        return loss

net = Net()
its = torch.optim.SGD(net.parameters(), lr=0.0)

def fitted():
    net.logged = {}
    for x, y in loader:
        loss = net.step(x, y); its.zero_grad(); loss.backward(); its.step()
    print("= " + " ".join(f"{k} {a / n:.5f} {n}" for k, (a, n) in net.logged.items()))

def passed(batches, opt=None):
    losses, sizes = [], []
    for x, y in batches:
        loss = F.cross_entropy(model(x), y)
        if opt: opt.zero_grad(); loss.backward(); opt.step()
        losses.append(loss.item()); sizes.append(len(y))
    return sum(a * b for a, b in zip(losses, sizes)) / sum(sizes), len(losses)

def going_on(batches):
    for number, batch in enumerate(batches): yield batch

for epoch in range(2):
    train(epoch)
    fitted()
    mean, n = passed(going_on(loader), opt)
    with torch.no_grad(): other, m = passed(val)
    print(f"= {mean:.5f} {n} {other:.5f} {m}")
    kept = {}
    for x, y in loader:
        loss = F.cross_entropy(model(x), y)
        opt.zero_grad(); loss.backward(); opt.step()
        for name, value in dict(loss=loss, mean=x.mean()).items(): kept.setdefault(name, []).append(value.item())
    print("= " + " ".join(f"{name} {len(values)} {sum(values):.5f}" for name, values in kept.items()))
