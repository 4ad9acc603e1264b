import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
data = TensorDataset(torch.randn(96, 4), torch.randint(0, 3, (96,)))
loader = DataLoader(data, batch_size=8, shuffle=True)
model = nn.Linear(4, 3)
opt = torch.optim.SGD(model.parameters(), lr=0.0)

def run(loader):
    for x, y in loader:
        out = model(x)
        loss = F.cross_entropy(out, y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        yield {"loss": loss.item(), "hits": (out.argmax(1) == y).sum().item(), "n": len(y)}
for epoch in range(2):
    parts = list(run(loader))
    tot = {k: sum(p[k] for p in parts) for k in parts[0]}
    print(f"= {tot['loss'] / len(parts):.5f} {tot['hits'] / tot['n']:.5f} {tot['n']}")

for epoch in range(2):
    avg, k = 0.0, 0
    for x, y in loader:
        loss = F.cross_entropy(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        k += 1
        avg += (loss.item() - avg) / k
    print(f"= {epoch} {avg:.5f} {k}")

acts = []
model.register_forward_hook(lambda m, i, o: acts.append(o.detach().abs().mean().item()))
for epoch in range(2):
    acts.clear()
    for x, y in loader:
        loss = F.cross_entropy(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
    print(f"= {sum(acts) / len(acts):.5f} {len(acts)}")

