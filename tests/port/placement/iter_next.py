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

for epoch in range(2):
    it = iter(loader)
    total, k = 0.0, 0
    while True:
        try:
            x, y = next(it)
        except StopIteration:
            break
        loss, out = step(x, y)
        total += float(loss)
        k += 1
    print(f"a {total / k:.5f} {k} {total:.4f}")
