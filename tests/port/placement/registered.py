"""Metrics of several classes that a registry makes, and functions hooked to events, which keep what they see."""
from collections import defaultdict
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

METRICS = {}
def register(name):
    def deco(cls):
        METRICS[name] = cls
        return cls
    return deco

class Metric:
    def __init__(self): self.reset()

@register("acc")
class Accuracy(Metric):
    def reset(self): self.hits = self.seen = 0
    def update(self, out, y): self.hits += int((out.argmax(-1) == y).sum()); self.seen += y.numel()
    def compute(self): return self.hits / max(1, self.seen)

@register("f1")
class F1(Metric):
    def reset(self): self.tp, self.fp, self.fn = 0, 0, 0
    def update(self, out, y):
        p, t = out.argmax(-1) == 1, y == 1
        self.tp += (p & t).sum().item(); self.fp += (p & ~t).sum().item(); self.fn += (~p & t).sum().item()
    def compute(self): return 2 * self.tp / max(1, 2 * self.tp + self.fp + self.fn)

@register("sure")
class Sure(Metric):
    def reset(self): self.all = []
    def update(self, out, y): self.all.append(out.softmax(-1).max(-1).values)
    def compute(self): return torch.cat(self.all).median().item()

class Numbered(Dataset):
    def __init__(self, n): self.x = torch.randn(n, 4); self.y = (torch.rand(n) > 0.4).long()
    def __len__(self): return len(self.x)
    def __getitem__(self, i): return {"x": self.x[i], "y": self.y[i], "idx": i}

class Trainer:
    def __init__(self, names, model):
        self.model, self.metrics, self.hooks = model, {name: METRICS[name]() for name in names}, defaultdict(list)
        self.opt = torch.optim.SGD(model.parameters(), lr=0.0)
    def on(self, event):
        def deco(fn): self.hooks[event].append(fn); return fn
        return deco
    def emit(self, event, **kw):
        for hook in self.hooks[event]: hook(self, **kw)
    def go(self, batches, train):
        for m in self.metrics.values(): m.reset()
        total = 0.0
        for batch in batches:
            with torch.set_grad_enabled(train):
                out = self.model(batch["x"]); loss = nn.functional.cross_entropy(out, batch["y"])
            if train: self.opt.zero_grad(); loss.backward(); self.opt.step()
            total += loss.item() * len(batch["y"])
            for m in self.metrics.values(): m.update(out.detach(), batch["y"])
            if train: self.emit("batch", loss=loss, batch=batch)
        return {**{k: m.compute() for k, m in self.metrics.items()}, "loss": total / len(batches.dataset)}

torch.manual_seed(0)
trainer = Trainer(("acc", "f1", "sure"), nn.Linear(4, 2))
seen, most = set(), 0.0

@trainer.on("batch")
def collect(trainer, loss, batch):
    seen.update(batch["idx"].tolist())

@trainer.on("epoch")
def show(trainer, now, then):
    print("= " + " ".join(f"{k} {v:.5f}" for k, v in now.items()), "| " + " ".join(f"{v:.5f}" for v in then.values()))
    print("=", len(seen))

train, val = DataLoader(Numbered(72), batch_size=6, shuffle=True), DataLoader(Numbered(30), batch_size=5)
for epoch in range(2):
    trainer.emit("epoch", now=trainer.go(train, True), then=trainer.go(val, False))
