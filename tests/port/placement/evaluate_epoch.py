import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
data = TensorDataset(torch.randn(240, 4), torch.randint(0, 3, (240,)))
loader = DataLoader(data, batch_size=8, shuffle=True)
val_loader = DataLoader(TensorDataset(torch.randn(44, 4), torch.randint(0, 3, (44,))), batch_size=8)
model = torch.nn.Linear(4, 3)
opt = torch.optim.SGD(model.parameters(), lr=0.0)


def run_epoch(loader, train=True):
    model.train(train)
    total, right = 0.0, 0
    with torch.set_grad_enabled(train):
        for x, y in loader:
            out = model(x)
            loss = F.cross_entropy(out, y)
            if train:
                opt.zero_grad()
                loss.backward()
                opt.step()
            total += loss.item()
            right += (out.argmax(1) == y).sum().item()
    return total / len(loader), right / len(loader.dataset)


for epoch in range(3):
    tr, acc = run_epoch(loader)
    va, vacc = run_epoch(val_loader, train=False)
    print(epoch, f"{tr:.5f} {acc:.5f} {va:.5f} {vacc:.5f}")
