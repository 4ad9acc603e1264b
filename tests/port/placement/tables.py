import heapq
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
data = TensorDataset(torch.randn(96, 4), torch.randint(0, 3, (96,)))
loader = DataLoader(data, batch_size=8, shuffle=True)
model = nn.Linear(4, 3)
opt = torch.optim.SGD(model.parameters(), lr=0.0)

for epoch in range(2):
    cm = np.zeros((3, 3), dtype=int)
    cmt = torch.zeros(3, 3, dtype=torch.long)
    for x, y in loader:
        out = model(x)
        loss = F.cross_entropy(out, y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        p = out.argmax(1)
        for t, q in zip(y.tolist(), p.tolist()):
            cm[t][q] += 1
        cmt += torch.bincount(y * 3 + p, minlength=9).reshape(3, 3)
    prec = cm.diagonal() / np.maximum(cm.sum(0), 1)
    rec = cmt.diag() / cmt.sum(1).clamp(min=1)
    print("=", cm.tolist(), cmt.tolist(), np.round(prec, 4).tolist(), [round(v, 4) for v in rec.tolist()])

table = np.zeros((2, 3))
counts = np.zeros((2, 3), int)
for epoch in range(2):
    for x, y in loader:
        l = F.cross_entropy(model(x), y, reduction="none")
        opt.zero_grad()
        l.mean().backward()
        opt.step()
        np.add.at(table[epoch], y.numpy(), l.detach().numpy())
        counts[epoch] += np.bincount(y.numpy(), minlength=3)
    print("=", np.round(table[epoch] / counts[epoch], 4).tolist(), counts[epoch].tolist(), counts.sum())

s = torch.zeros(2)
for epoch in range(2):
    s.zero_()
    for x, y in loader:
        loss = F.cross_entropy(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        s += torch.stack([loss.detach(), loss.detach() ** 2])
    m = s[0] / len(loader)
    print(f"= {epoch} {m.item():.5f} {(s[1] / len(loader) - m ** 2).sqrt().item():.5f}")

for epoch in range(2):
    heap = []
    for x, y in loader:
        loss = F.cross_entropy(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        heapq.heappush(heap, -loss.item())
    print("=", [round(-v, 5) for v in heapq.nsmallest(3, heap)], len(heap))

seen = set()
dup = 0
labels = {}
indexed = TensorDataset(torch.arange(96), *data.tensors)
for epoch in range(2):
    for i, x, y in DataLoader(indexed, batch_size=8, shuffle=True):
        out = model(x)
        loss = F.cross_entropy(out, y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        for k, p in zip(i.tolist(), out.argmax(1).tolist()):
            seen.add(k)
            labels[k] = p
    print(f"= {len(seen)} {len(labels)} {sum(labels.values())} {sum(1 for v in labels.values() if v == 0)}")

