import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)


class Meter:
    def __init__(self):
        self.sum = 0.0
        self.count = 0

    def update(self, value, n=1):
        self.sum += value * n
        self.count += n

    @property
    def avg(self):
        return self.sum / max(self.count, 1)


class Trainer:
    def __init__(self, model, train_loader, val_loader):
        self.model = model
        self.train_loader, self.val_loader = train_loader, val_loader
        self.opt = torch.optim.SGD(model.parameters(), lr=0.0)
        self.scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(self.opt, patience=0)
        self.history = []
        self.best = float("inf")

    def train_epoch(self):
        self.model.train()
        for x, y in self.train_loader:
            self.opt.zero_grad()
            loss = F.cross_entropy(self.model(x), y)
            loss.backward()
            self.opt.step()

    @torch.no_grad()
    def validate(self):
        self.model.eval()
        losses, top = Meter(), Meter()
        confusion = torch.zeros(3, 3, dtype=torch.long)
        worst = 0.0
        for x, y in self.val_loader:
            out = self.model(x)
            loss = F.cross_entropy(out, y)
            losses.update(loss.item(), y.size(0))
            top.update((out.argmax(1) == y).float().mean().item(), y.size(0))
            worst = max(worst, loss.item())
            for t, p in zip(y, out.argmax(1)):
                confusion[t, p] += 1
        return losses.avg, top.avg, confusion, worst

    def fit(self, epochs):
        for epoch in range(epochs):
            self.train_epoch()
            loss, acc, confusion, worst = self.validate()
            self.history.append({"loss": loss, "acc": acc})
            self.scheduler.step(loss)
            if loss < self.best:
                self.best = loss
            print(epoch, f"{loss:.5f} {acc:.5f} {worst:.5f} {self.best:.5f}", confusion.tolist())


data = TensorDataset(torch.randn(96, 4), torch.randint(0, 3, (96,)))
held = TensorDataset(torch.randn(41, 4), torch.randint(0, 3, (41,)))
trainer = Trainer(torch.nn.Linear(4, 3), DataLoader(data, batch_size=8, shuffle=True), DataLoader(held, batch_size=4))
trainer.fit(3)
print([round(h["loss"], 4) for h in trainer.history], [round(h["acc"], 4) for h in trainer.history])
