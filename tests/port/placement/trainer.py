import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
data = TensorDataset(torch.randn(96, 4), torch.randint(0, 3, (96,)))
loader = DataLoader(data, batch_size=8, shuffle=True)
model = torch.nn.Linear(4, 3)
opt = torch.optim.SGD(model.parameters(), lr=0.0)

val = DataLoader(TensorDataset(torch.randn(40, 4), torch.randint(0, 3, (40,))), batch_size=8)
class Trainer:
    def __init__(self):
        self.history = []
        self.best = None
    def run(self, loader, training):
        total, right, n = 0.0, 0, 0
        for x, y in loader:
            out = model(x)
            loss = F.cross_entropy(out, y)
            if training:
                opt.zero_grad()
                loss.backward()
                opt.step()
            total += loss.item() * y.size(0)
            right += (out.argmax(dim=1) == y).float().sum().item()
            n += y.size(0)
        return {"loss": total / n, "acc": right / n}
    def fit(self, epochs):
        for e in range(epochs):
            tr = self.run(loader, True)
            with torch.no_grad():
                va = self.run(val, False)
            self.history.append({**{"t_" + k: v for k, v in tr.items()}, **{"v_" + k: v for k, v in va.items()}})
            if self.best is None or tr["loss"] < self.best:
                self.best = tr["loss"]
            print(e, " ".join(f"{k}={v:.4f}" for k, v in self.history[-1].items()), f"{self.best:.4f}")
Trainer().fit(2)
