"""Every few iterations a running accuracy, divided by a batch's size in the ways that people have."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
X = torch.randn(640, 6)
Y = (X.sum(1) > 0).long()
batch_size = 16
loader = DataLoader(TensorDataset(X, Y), batch_size)
model = nn.Linear(6, 2)
opt = torch.optim.SGD(model.parameters(), lr=0.0)
right = 0
for _ in range(2):
    for i, (x, y) in enumerate(loader):
        out = model(x)
        loss = nn.functional.cross_entropy(out, y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        right += (out.argmax(1) == y).sum().item()
        if (i + 1) % 20 == 0:
            print("size", right / 20 / batch_size)
            print("both", right / (20 * batch_size))
            print("own", right / 20 / y.size(0))
            accuracy = right / 20 / y.size(0)
            print("name", accuracy)
            percent = 100 * right / (20 * len(y))
            print(f"percent {percent}")
            right = 0
