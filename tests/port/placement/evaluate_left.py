import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
data = TensorDataset(torch.randn(96, 4), torch.randn(96, 1))
held = TensorDataset(torch.randn(44, 4), torch.randn(44, 1))
loader = DataLoader(data, batch_size=8, shuffle=True)
val = DataLoader(held, batch_size=8)
net = torch.nn.Linear(4, 1)
opt = torch.optim.SGD(net.parameters(), lr=0.0)


def slots():
    preds, start = torch.zeros(44), 0
    for x, y in val:
        preds[start : start + len(x)] = net(x).detach().squeeze(1)
        start += len(x)
    return preds


def by_index():
    preds = torch.zeros(48)
    for i, (x, y) in enumerate(val):
        preds[i * 8 : i * 8 + len(x)] = net(x).detach().squeeze(1)
    return preds


def last():
    for x, y in val:
        out = net(x)
    return out.mean().item()


def state():
    h = torch.zeros(1)
    total = 0.0
    for x, y in val:
        h = 0.5 * h + net(x).mean().detach()
        total += h.item()
    return total


def ends():
    total = 0.0
    for i, (x, y) in enumerate(val):
        if i == 3:
            break
        total += net(x).sum().item()
    return total


def some():
    seen, total = 0, 0.0
    for x, y in val:
        if seen < 20:
            total += net(x).sum().item()
        seen += len(x)
    return total


def shows():
    total = 0.0
    for i, (x, y) in enumerate(val):
        total += F.mse_loss(net(x), y).item()
        if i % 2 == 0:
            print(f"{total:.4f}")
    return total


def smooth():
    avg = 0.0
    for x, y in val:
        avg = 0.9 * avg + 0.1 * F.mse_loss(net(x), y).item()
    return avg


def caught():
    total = 0.0
    try:
        for x, y in val:
            total += net(x).sum().item()
    except ValueError:
        pass
    return total


def noise():
    torch.manual_seed(3)
    total = 0.0
    for x, y in val:
        total += net(x + 0 * torch.randn_like(x)).sum().item()
    return total


def numbered():
    total = 0.0
    for i, (x, y) in enumerate(val):
        total += F.mse_loss(net(x), y).item()
    return total / (i + 1)


for epoch in range(2):
    for x, y in loader:
        opt.zero_grad()
        F.mse_loss(net(x), y).backward()
        opt.step()
    print([round(v, 4) for v in slots().tolist()])
    print([round(v, 4) for v in by_index().tolist()])
    print(f"{last():.4f} {state():.4f} {ends():.4f} {some():.4f} {smooth():.4f} {caught():.4f} {noise():.4f}")
    print(f"{shows():.4f} {numbered():.4f}")
