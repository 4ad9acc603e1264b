import torch
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
data = TensorDataset(torch.randn(96, 4), torch.randn(96, 1))
loader = DataLoader(data, batch_size=8, shuffle=True)
model = torch.nn.Linear(4, 1)
opt = torch.optim.SGD(model.parameters(), lr=0.0)


class Record:
    def __init__(self):
        self.step, self.seen, self.loss = 0, 0, 0.0

    def row(self):
        return f"{self.step:4d} {self.seen:5d} {self.loss / max(1, self.step):.4f}"

    def __str__(self):
        return f"steps {self.step:d}, loss {self.loss / self.step:.4f}"


record = Record()
for epoch in range(2):
    for x, y in loader:
        opt.zero_grad()
        loss = (model(x) - y).pow(2).mean()
        loss.backward()
        opt.step()
        record.step += 1
        record.seen += len(x)
        record.loss += loss.item()
    print(record.row(), record.step)
    print("epoch " + record.row())
    text = record.row()
    print(text.strip(), record)
    print(f"{record} and {epoch}")
