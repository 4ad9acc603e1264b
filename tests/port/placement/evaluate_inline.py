import numpy as np
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
data = TensorDataset(torch.randn(96, 4), torch.randn(96, 1))
loader = DataLoader(data, batch_size=8, shuffle=True)
val_loader = DataLoader(TensorDataset(torch.randn(44, 4), torch.randn(44, 1)), batch_size=8)
test_loader = DataLoader(TensorDataset(torch.randn(20, 4), torch.randn(20, 1)), batch_size=20)
model = torch.nn.Linear(4, 1)
opt = torch.optim.SGD(model.parameters(), lr=0.0)
val_losses, best = [], None
for epoch in range(3):
    for x, y in loader:
        opt.zero_grad()
        F.mse_loss(model(x), y).backward()
        opt.step()
    batch_losses = []
    total = torch.zeros(1)
    with torch.no_grad():
        for i, (x, y) in enumerate(val_loader):
            loss = F.mse_loss(model(x), y)
            batch_losses.append(loss.item())
            total += loss * len(x)
    val_losses.append(np.mean(batch_losses))
    if best is None or val_losses[-1] < best:
        best = val_losses[-1]
    print(epoch, f"{val_losses[-1]:.5f} {np.std(batch_losses):.5f} {total.item() / len(val_loader.dataset):.5f} {best:.5f}")
squares, targets, outputs = 0, [], []
for x, y in test_loader:
    out = model(x).detach()
    squares = squares + ((out - y) ** 2).sum()
    outputs.append(out.numpy())
    targets.append(y.numpy())
outputs, targets = np.concatenate(outputs), np.concatenate(targets)
print(f"{(squares / len(test_loader.dataset)).sqrt().item():.5f}", np.round(np.corrcoef(outputs.T, targets.T), 4).tolist())
