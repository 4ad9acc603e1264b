import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
data = TensorDataset(torch.randn(96, 4), torch.randint(0, 3, (96,)))
loader = DataLoader(data, batch_size=8, shuffle=True)
model = torch.nn.Linear(4, 3)
opt = torch.optim.SGD(model.parameters(), lr=0.0)

def step(x, y):
    out = model(x)
    loss = F.cross_entropy(out, y)
    opt.zero_grad()
    loss.backward()
    opt.step()
    return loss, out

import csv
import json

import pandas as pd

rows = []
with open("log.csv", "w", newline="") as f:
    writer = csv.writer(f)
    for epoch in range(2):
        losses, hits = [], 0
        for x, y in loader:
            loss, out = step(x, y)
            losses.append(loss.item())
            hits += int((out.argmax(1) == y).sum())
        writer.writerow([epoch, sum(losses) / len(losses), hits])
        rows.append(dict(epoch=epoch, loss=sum(losses) / len(losses), hits=hits, n=len(losses)))
frame = pd.DataFrame(rows)
frame.to_csv("frame.csv")
json.dump(rows, open("rows.json", "w"))
print("a", frame.loss.mean().round(5), frame.hits.sum(), frame.n.tolist())
print("b", [(r["epoch"], round(r["loss"], 5)) for r in rows])
