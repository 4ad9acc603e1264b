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

best, bad, stopped = float("inf"), 0, None
for epoch in range(6):
    running = 0.0
    for i, (x, y) in enumerate(loader, 1):
        loss, out = step(x, y)
        running += (loss.item() - running) / i
    if running < best - 1e-4:
        best, bad = running, 0
    else:
        bad += 1
    if bad >= 2:
        stopped = epoch
        break
print("a", stopped, f"{running:.5f} {best:.5f}", i)
