import json
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
data = TensorDataset(torch.randn(96, 4), torch.randint(0, 3, (96,)))
loader = DataLoader(data, batch_size=8, shuffle=True)
model = nn.Linear(4, 3)
opt = torch.optim.SGD(model.parameters(), lr=0.0)

class MeanMetric:
    def __init__(self): self.reset()
    def reset(self): self.sum = torch.tensor(0.0); self.count = torch.tensor(0)
    def update(self, v, w=1): self.sum += v * w; self.count += w
    def compute(self): return self.sum / self.count
class MetricCollection(dict):
    def update_all(self, **kw):
        for k, v in kw.items(): self[k].update(*v)
    def compute(self): return {k: m.compute().item() for k, m in self.items()}
    def reset(self):
        for m in self.values(): m.reset()
mc = MetricCollection(loss=MeanMetric(), acc=MeanMetric())
for epoch in range(2):
    mc.reset()
    for x, y in loader:
        out = model(x)
        loss = F.cross_entropy(out, y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        mc.update_all(loss=(loss.detach(), len(y)), acc=((out.argmax(1) == y).float().mean(), len(y)))
    r = mc.compute()
    print(f"= {r['loss']:.5f} {r['acc']:.5f}")

class AttrDict(dict):
    __getattr__ = dict.__getitem__
    __setattr__ = dict.__setitem__
s = AttrDict(loss=0.0, n=0)
for epoch in range(2):
    s.loss, s.n = 0.0, 0
    for x, y in loader:
        loss = F.cross_entropy(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        s.loss += loss.item() * len(y)
        s["n"] += len(y)
    print(f"= {s['loss'] / s.n:.5f} {s['n']}")

class History:
    def __init__(self): self.d = {}
    def log(self, **kw):
        for k, v in kw.items(): self.d.setdefault(k, []).append(v)
    def last(self, k): return self.d[k][-1]
    def __getitem__(self, k): return self.d[k]
    def summary(self): return {k: (min(v), max(v), sum(v) / len(v)) for k, v in self.d.items()}
h = History()
for epoch in range(3):
    r = 0.0
    c = 0
    for x, y in loader:
        out = model(x)
        loss = F.cross_entropy(out, y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        r += loss.item()
        c += out.argmax(1).eq(y).sum().item()
        h.log(batch_loss=loss.item())
    h.log(loss=r / len(loader), acc=c / len(data))
    print(f"= {h.last('loss'):.5f} {h['acc'][-1]:.5f} {len(h['batch_loss'])}")
for k, v in h.summary().items(): print("=", k, [round(q, 4) for q in v])

for epoch in range(2):
    s = {"loss": 0.0, "n": 0, "correct": 0}
    for x, y in loader:
        out = model(x)
        loss = F.cross_entropy(out, y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        s = {"loss": s["loss"] + loss.item() * len(y), "n": s["n"] + len(y), "correct": s["correct"] + out.argmax(1).eq(y).sum().item()}
    print("=", json.dumps({"epoch": epoch, "loss": round(s["loss"] / s["n"], 5), "acc": round(s["correct"] / s["n"], 5)}))

class Log:
    def __init__(self): self.data = {}; self.counts = {}
    def __call__(self, **kw):
        for k, v in kw.items():
            if k not in self.data: self.data[k] = 0.0; self.counts[k] = 0
            self.data[k] += v
            self.counts[k] += 1
    def flush(self):
        out = {k: self.data[k] / self.counts[k] for k in self.data}
        self.data = {}
        self.counts = {}
        return out
log = Log()
for epoch in range(2):
    for x, y in loader:
        out = model(x)
        loss = F.cross_entropy(out, y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        log(loss=loss.item(), acc=(out.argmax(1) == y).float().mean().item())
    print("= " + ", ".join(f"{k}: {v:.5f}" for k, v in log.flush().items()))

