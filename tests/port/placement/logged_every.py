"""Meters that a dict makes beside one that is put there, in a logger whose generator training and tests go through."""
from collections import defaultdict, deque

import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset


class Smoothed:
    def __init__(self, window=5):
        self.last = deque(maxlen=window)
        self.total, self.count = 0.0, 0

    def update(self, value, n=1):
        self.last.append(value)
        self.total += value * n
        self.count += n


class Logger:
    def __init__(self):
        self.meters = defaultdict(Smoothed)

    def update(self, **values):
        for key, value in values.items():
            self.meters[key].update(value)

    def add_meter(self, name, meter):
        self.meters[name] = meter

    def log_every(self, batches, every, header):
        i = 0
        for batch in batches:
            yield batch
            if i % every == 0 or i == len(batches) - 1:
                line = f"{header} {i} of {len(batches)}"
                if header == "test":
                    print(line)
            i += 1


def train(model, opt, batches):
    logger = Logger()
    logger.add_meter("rate", Smoothed(window=1))
    for x, y in logger.log_every(batches, 6, "train"):
        loss = F.cross_entropy(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        logger.update(loss=loss.item(), size=y.float().mean().item())
        logger.update(rate=opt.param_groups[0]["lr"])
    return logger


def test(model, batches):
    logger, worst = Logger(), []
    with torch.no_grad():
        for x, y in logger.log_every(batches, 3, "test"):
            logger.update(loss=F.cross_entropy(model(x), y).item())
            worst = sorted([*worst, x.abs().max().item()])[-2:]
    return logger, worst


torch.manual_seed(0)
data = TensorDataset(torch.randn(96, 4), torch.randint(0, 3, (96,)))
loader = DataLoader(data, batch_size=8, shuffle=True)
valid = DataLoader(TensorDataset(*data[:20]), batch_size=4)
model = torch.nn.Linear(4, 3)
opt = torch.optim.SGD(model.parameters(), lr=0.0)
for epoch in range(2):
    trained = train(model, opt, loader)
    tested, worst = test(model, valid)
    print(epoch, {name: (round(m.total / m.count, 5), m.count) for name, m in trained.meters.items()})
    print(tested.meters["loss"].count, round(tested.meters["loss"].total, 5), [round(w, 5) for w in worst])
