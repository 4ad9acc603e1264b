import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
data = TensorDataset(torch.randn(96, 4), torch.randint(0, 3, (96,)))
loader = DataLoader(data, batch_size=8, shuffle=True)
model = torch.nn.Linear(4, 3)
opt = torch.optim.SGD(model.parameters(), lr=0.0)

def train():
    for x, y in loader:
        out = model(x)
        loss = F.cross_entropy(out, y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        yield loss.item(), len(y), (out.argmax(1) == y).sum().item()
for epoch in range(2):
    total = seen = right = 0
    for loss, n, r in train():
        total += loss * n
        seen += n
        right += r
    print(f"a {total / seen:.5f} {right}/{seen}")
