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

from collections import deque

window = deque(maxlen=4)
ema = None
for epoch in range(2):
    run_loss, run_right, run_n = 0.0, 0, 0
    for i, (x, y) in enumerate(loader):
        loss, out = step(x, y)
        run_loss += loss.item()
        run_right += (out.argmax(1) == y).sum().item()
        run_n += y.shape[0]
        if (i + 1) % 6 == 0:
            print(f"[{epoch + 1}, {i + 1:5d}] loss: {run_loss / 6:.3f} acc {100 * run_right / run_n:.2f} {run_n}")
            run_loss, run_right, run_n = 0.0, 0, 0
    print(f"= {epoch}")
