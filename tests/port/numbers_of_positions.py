"""Positions in the samples as numbers of iterations: shown, kept and asked for, and phases that are keys of a dict."""

# ruff: noqa

import torch
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
X = torch.randn(96, 5)
Y = X.sum(1, keepdim=True)
model = torch.nn.Linear(5, 1)
opt = torch.optim.SGD(model.parameters(), lr=0.0)
positions, total = [], 0
for epoch in range(2):
    losses = []
    for i in range(0, len(X), 8):
        x, y = X[i : i + 8], Y[i : i + 8]
        opt.zero_grad()
        loss = torch.nn.functional.mse_loss(model(x), y)
        loss.backward()
        opt.step()
        losses.append(loss.item())
        if (i // 8 + 1) % 4 == 0:
            positions.append(i // 8)
            print("position", i, i // 8, i / len(X), f"[{i + len(x)}/{len(X)}]")
        if i // 8 == 11:
            print("last", i // 8)
    print("epoch", sum(losses), len(losses))
print("positions", positions)

loaders = {
    "train": DataLoader(TensorDataset(X, Y), batch_size=8, shuffle=True),
    "val": DataLoader(TensorDataset(X[:40], Y[:40]), batch_size=8),
}
for epoch in range(2):
    for phase in loaders:
        run, seen = 0.0, 0
        for x, y in loaders[phase]:
            loss = torch.nn.functional.mse_loss(model(x), y)
            if phase == "train":
                opt.zero_grad()
                loss.backward()
                opt.step()
            run += loss.item() * len(x)
            seen += len(x)
        print(phase, run / seen, seen)
    for phase in sorted(loaders):
        print(phase, len(loaders[phase].dataset))

# Numbers of a loop over positions that are read behind it alone.
for epoch in range(2):
    for i in range(12):
        x, y = X[i * 8 : (i + 1) * 8], Y[i * 8 : (i + 1) * 8]
        opt.zero_grad()
        torch.nn.functional.mse_loss(model(x), y).backward()
        opt.step()
    print("behind", i, i + 1, (i + 1) * 8, epoch * 12 + i)
    for k in range(0, len(X), 8):
        opt.zero_grad()
        torch.nn.functional.mse_loss(model(X[k : k + 8]), Y[k : k + 8]).backward()
        opt.step()
    print("in strides", k, k + 8, k // 8)
    for j, s in enumerate(range(0, len(X), 8)):
        opt.zero_grad()
        torch.nn.functional.mse_loss(model(X[s : s + 8]), Y[s : s + 8]).backward()
        opt.step()
    print("numbered", j, j + 1)

# Lists of samples beside lists of batches, and beside the data themselves.
for epoch in range(2):
    guesses, goals, batches = [], [], []
    for i in range(12):
        x, y = X[i * 8 : (i + 1) * 8], Y[i * 8 : (i + 1) * 8]
        out = model(x)
        opt.zero_grad()
        torch.nn.functional.mse_loss(out, y).backward()
        opt.step()
        guesses.extend(out[:, 0].tolist())
        goals += y[:, 0].tolist()
        batches.append(y)
    print("errors", (torch.tensor(guesses) - torch.cat(batches)[:, 0]).abs().mean().item(), len(guesses))
    print("same", (torch.tensor(goals) - Y[:, 0]).abs().max().item() < 1e-6, guesses[:9])
