"""Meters that iterations make for the keys that a dict lacks: setdefault(), tests, get()."""
from collections import OrderedDict, deque

import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset


class Meter:
    def __init__(self, window=5):
        self.last = deque(maxlen=window)
        self.reset()

    def reset(self):
        self.total, self.count = 0.0, 0

    def update(self, value, n=1):
        self.total += value * n
        self.count += n
        self.last.append(value)

    @property
    def mean(self):
        return self.total / max(self.count, 1)


class Bag:
    def __init__(self):
        self.meters = OrderedDict()

    def update(self, n=1, **values):
        for key, value in values.items():
            self.meters.setdefault(key, Meter()).update(value, n)

    def add(self, key, value, n):
        if key not in self.meters:
            self.meters[key] = Meter()
        self.meters[key].update(value, n)

    def take(self, values, n):
        for key in values:
            meter = self.meters.get(key)
            if meter is None:
                meter = self.meters[key] = Meter()
            meter.update(values[key], n)

    def reset(self):
        for meter in self.meters.values():
            meter.reset()

    def show(self):
        return {key: (round(meter.mean, 5), meter.count) for key, meter in self.meters.items()}


torch.manual_seed(0)
data = TensorDataset(torch.randn(96, 4), torch.randint(0, 3, (96,)))
loader = DataLoader(data, batch_size=8, shuffle=True)
valid = DataLoader(TensorDataset(*data[:20]), batch_size=8)
model = torch.nn.Linear(4, 3)
opt = torch.optim.SGD(model.parameters(), lr=0.0)
lasting, begun_anew = Bag(), Bag()
for epoch in range(3):
    named, tested, asked, bare = Bag(), Bag(), Bag(), {}
    begun_anew.reset()
    for x, y in loader:
        out = model(x)
        losses = {k: v for k, v in zip(("loss", "size"), (F.cross_entropy(out, y), out.pow(2).mean()))}
        opt.zero_grad()
        losses["loss"].backward()
        opt.step()
        loss, right = losses["loss"].item(), (out.argmax(1) == y).float().mean().item()
        named.update(n=len(x), loss=loss, right=right)
        tested.add("loss", loss, len(x))
        tested.add("right", right, len(x))
        asked.take({k: v.item() for k, v in losses.items()}, len(x))
        for key, value in losses.items():
            bare.setdefault(key, Meter()).update(value.item(), len(x))
        lasting.update(n=len(x), loss=loss, right=right)
        begun_anew.add("loss", loss, len(x))
    with torch.no_grad():
        for x, y in valid:
            begun_anew.add("valid", (model(x).argmax(1) == y).float().mean().item(), len(x))
    print("named", named.show(), named.meters["right"].count)
    print("tested", tested.show())
    print("asked", asked.show())
    print("bare", {key: (round(meter.mean, 5), meter.count) for key, meter in bare.items()})
    print("lasting", lasting.show())
    print("anew", begun_anew.show())
