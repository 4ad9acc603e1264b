import pandas as pd
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
data = TensorDataset(torch.randn(96, 4), torch.randint(0, 3, (96,)))
loader = DataLoader(data, batch_size=8, shuffle=True)
model = nn.Linear(4, 3)
opt = torch.optim.SGD(model.parameters(), lr=0.0)

recs = []
for epoch in range(2):
    for x, y in loader:
        out = model(x)
        loss = F.cross_entropy(out, y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        recs.append({"epoch": epoch, "loss": loss.item(), "acc": (out.argmax(1) == y).float().mean().item()})
df = pd.DataFrame(recs)
print("=", df.groupby("epoch").mean().round(5).to_string())
print("=", len(df), round(df.loss.median(), 5), df.shape[0])
print(f"= {df['loss'].max():.5f} {df['acc'].std():.5f}")

frames = []
for epoch in range(2):
    for i, (x, y) in enumerate(loader):
        out = model(x)
        l = F.cross_entropy(out, y, reduction="none")
        opt.zero_grad()
        l.mean().backward()
        opt.step()
        frames.append(pd.DataFrame({"epoch": epoch, "y": y.numpy(), "loss": l.detach().numpy(), "hit": (out.argmax(1) == y).numpy()}))
df = pd.concat(frames, ignore_index=True)
print("=", len(df), df.pivot_table(index="epoch", columns="y", values="loss").round(4).values.tolist(), round(df.hit.mean(), 5))
print("=", df.groupby("y")["hit"].agg(["mean", "count"]).round(4).values.tolist(), round(df.loss.quantile(.9), 4))

