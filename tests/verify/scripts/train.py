"""A small classifier, as people write them: dropout, clipping, early stopping, a checkpoint."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=0.1)
parser.add_argument("--dropout", type=float, default=0.0)
parser.add_argument("--samples", type=int, default=96)
args = parser.parse_args()

torch.manual_seed(0)
x = torch.randn(args.samples + 31, 8)
y = (x.sum(dim=1) > 0).long()
train_set = TensorDataset(x[: args.samples], y[: args.samples])
test_set = TensorDataset(x[args.samples :], y[args.samples :])
train_loader = DataLoader(train_set, batch_size=8, shuffle=True)
test_loader = DataLoader(test_set, batch_size=10)

model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 2))
if args.dropout:
    model.append(nn.Dropout(args.dropout))
optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)

best, bad = float("inf"), 0
for epoch in range(20):
    model.train()
    for inputs, targets in train_loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(inputs), targets)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()

    model.eval()
    total, correct = 0.0, 0
    with torch.no_grad():
        for inputs, targets in test_loader:
            output = model(inputs)
            total += nn.functional.cross_entropy(output, targets, reduction="sum").item()
            correct += (output.argmax(dim=1) == targets).sum().item()
    val_loss = total / len(test_set)
    accuracy = correct / len(test_set)
    print(f"epoch {epoch}: loss {val_loss:.5f}, accuracy {accuracy:.5f}")
    if val_loss < best:
        best, bad = val_loss, 0
        torch.save(model.state_dict(), "model.pt")
    else:
        bad += 1
        if bad > 5:
            break
