"""What samples keep under keys of theirs, over two epochs: rows, objects, arrays; and lists that each iteration makes anew."""

# ruff: noqa

from collections import defaultdict

import numpy as np
import torch
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
X = torch.randn(96, 5)
Y = X[:, :3].argmax(1)
loader = DataLoader(TensorDataset(torch.arange(96), X, Y), batch_size=12)
model = torch.nn.Linear(5, 3)
opt = torch.optim.SGD(model.parameters(), lr=0.0)


class Row:
    def __init__(self, value, label):
        self.value, self.label = value, label


class Sums:
    def __init__(self):
        self.both = [0, 0.0]

    def put(self, n, value):
        self.both = [self.both[0] + n, self.both[1] + n * value]


rows, pairs, named, kept, joined, united, by_epoch = {}, {}, {}, {}, {}, {}, {}
put, arrays, tensors, cells, got = {}, {}, {}, {}, {}
losses, made, both, table, meter = np.array([]), defaultdict(lambda: np.zeros(2)), [0, 0.0], {"a": [0, 0.0]}, Sums()
for epoch in range(2):
    by_epoch[epoch] = {}
    for i, x, y in loader:
        out = model(x)
        loss = torch.nn.functional.cross_entropy(out, y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        for at, label, value in zip(i.tolist(), y.tolist(), out[:, 0].tolist()):
            rows[at] = [value + epoch, label]
            pairs[at] = (value * (epoch + 1), label)
            named[at] = {"value": value, "epoch": epoch}
            kept[at] = Row(value + 2 * epoch, label)
            by_epoch[epoch][at] = value + epoch
            put.setdefault(label, np.zeros(2))
            put[label] += [1, value]
            if label not in arrays:
                arrays[label] = np.zeros(2)
            arrays[label][0] += 1
            arrays[label][1] += value
            if label not in tensors:
                tensors[label] = torch.zeros(2)
            tensors[label] += torch.tensor([1, value])
            made[label] += [1, value]
            n, total = got.get(label, (0, 0.0))
            got[label] = (n + 1, total + value)
        joined.update({at: [label, 1] for at, label in zip(i.tolist(), y.tolist())})
        united |= dict(zip(i.tolist(), out[:, 1].tolist()))
        both = [both[0] + len(y), both[1] + loss.item() * len(y)]
        table["a"] = [table["a"][0] + len(y), table["a"][1] + loss.item() * len(y)]
        meter.put(len(y), loss.item())
        losses = np.append(losses, loss.item())
    print("rows", len(rows), f"{sum(v for v, _ in rows.values()):.4f}", sum(label for _, label in rows.values()))
    print("pairs", len(pairs), f"{sum(v for v, _ in pairs.values()):.4f}", f"{pairs[5][0]:.4f}")
    print("named", len(named), f"{sum(row['value'] * row['epoch'] for row in named.values()):.4f}")
    print("kept", len(kept), f"{sum(row.value for row in kept.values()):.4f}", kept[7].label)
    print("by epoch", [len(by_epoch[e]) for e in by_epoch], f"{sum(by_epoch[epoch].values()):.4f}")
    print("joined", sum(label for label, _ in joined.values()), f"{sum(united.values()):.4f}", len(united))
    print("put", [(key, f"{put[key][0]:.0f} {put[key][1]:.4f}") for key in sorted(put)])
    print("arrays", [(key, f"{arrays[key][0]:.0f} {arrays[key][1]:.4f}") for key in sorted(arrays)])
    print("tensors", [(key, f"{tensors[key][0]:.0f} {tensors[key][1]:.4f}") for key in sorted(tensors)])
    print("made", [(key, f"{made[key][0]:.0f} {made[key][1]:.4f}") for key in sorted(made)])
    print("got", [(key, got[key][0], f"{got[key][1]:.4f}") for key in sorted(got)])
    print("both", both[0], f"{both[1] / both[0]:.4f}", table["a"][0], f"{table['a'][1]:.4f}")
    print("meter", meter.both[0], f"{meter.both[1] / meter.both[0]:.4f}")
    print("losses", len(losses), f"{losses.mean():.5f}")
