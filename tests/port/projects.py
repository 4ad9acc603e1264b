"""A training script with its loops, loaders and optimizer in local modules, as text by path."""

PROJECT = {
    "train.py": '''
"""Trains a small net on the digits."""
import torch

from lab import engine, utils
from lab.data import loaders
from lab.model import Net


def main():
    torch.manual_seed(0)
    model = Net()
    optimizer = utils.make_optimizer(model, utils.RATE)
    train_loader, test_loader = loaders(64)
    best = 0.0
    for epoch in range(2):
        loss = engine.train_one_epoch(model, optimizer, train_loader)
        accuracy = engine.evaluate(model, test_loader)
        print(f"epoch {epoch}: loss {loss:.4f} accuracy {accuracy:.3f}")
        if accuracy > best:
            best = accuracy
            utils.save(model, "best.pt")
    torch.save(model.state_dict(), "last.pt")


if __name__ == "__main__":
    main()
''',
    "lab/__init__.py": "",
    "lab/data/__init__.py": "from .digits import loaders\n",
    "lab/data/digits.py": """
import torch
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader, TensorDataset


def loaders(batch_size):
    digits = load_digits()
    x, y = torch.tensor(digits.data, dtype=torch.float32) / 16, torch.tensor(digits.target)
    train, test = TensorDataset(x[:1500], y[:1500]), TensorDataset(x[1500:], y[1500:])
    return DataLoader(train, batch_size, shuffle=True), DataLoader(test, batch_size)
""",
    "lab/model.py": """
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))

    def forward(self, x):
        return self.layers(x)
""",
    "lab/engine.py": '''
"""The loops."""
import torch
import torch.nn.functional as F


def train_one_epoch(model, optimizer, loader):
    total = 0.0
    for x, y in loader:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        total += loss.item()
    print("seen", len(loader))
    return total / len(loader)


@torch.no_grad()
def evaluate(model, loader):
    correct = 0
    for x, y in loader:
        correct += (model(x).argmax(1) == y).sum().item()
    return correct / len(loader.dataset)


def never_called(model):
    optimizer = torch.optim.SGD(model.parameters(), lr=1)
    while True:
        model(1).backward()
        optimizer.step()


if __name__ == "__main__":
    torch.save(evaluate(None, None), "alone.pt")
''',
    "lab/utils.py": """
import torch

RATE = 0.05


def make_optimizer(model, lr):
    return torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)


def save(model, path):
    torch.save(model.state_dict(), path)
""",
}


def lay(folder, files=PROJECT):
    """Write ``files`` below ``folder``; return the script's path."""
    for name, text in files.items():
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text.lstrip("\n"))
    return folder / "train.py"
