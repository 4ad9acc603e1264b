"""Train a small convolutional network on handwritten digits, in one process.

Without --data: the 1797 digits (8 x 8 pixels) that scikit-learn carries. With --data FOLDER: the MNIST IDX files
(train-images-idx3-ubyte and so on, gzipped or not) in that folder.
"""

import argparse
import gzip
import time
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn, optim
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DataLoader, TensorDataset
import dl_comm.torch as dl  # averages gradients over the ranks; without a launcher: one rank

print = dl.print  # only rank 0 prints


class Net(nn.Module):
    def __init__(self, side):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 16, 3, padding=1)
        self.conv2 = nn.Conv2d(16, 32, 3, padding=1)
        self.dropout = nn.Dropout(0.25)
        self.fc1 = nn.Linear(32 * (side // 2) ** 2, 64)
        self.fc2 = nn.Linear(64, 10)

    def forward(self, x):
        x = F.relu(self.conv1(x))
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        x = self.dropout(torch.flatten(x, 1))
        return self.fc2(F.relu(self.fc1(x)))


def read_idx(path):
    """Return the array in an IDX file: two zero bytes, a type, the number of axes, their lengths, the data."""
    if not path.exists():
        path = path.with_name(path.name + ".gz")
    with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
        raw = file.read()
    shape = np.frombuffer(raw, ">i4", raw[3], 4)
    return np.frombuffer(raw, np.uint8, offset=4 + 4 * len(shape)).reshape(shape)


def load_digits(folder):
    """Return (images, labels) for training and for testing; images are float32 in 0..1 with one channel."""
    if folder:
        folder = Path(folder)
        parts = []
        for part in ("train", "t10k"):
            images = read_idx(folder / f"{part}-images-idx3-ubyte") / np.float32(255)
            parts.append((images, read_idx(folder / f"{part}-labels-idx1-ubyte")))
    else:
        from sklearn.datasets import load_digits

        digits = load_digits()
        images, labels = (digits.images / 16).astype(np.float32), digits.target
        order = np.random.RandomState(0).permutation(len(images))
        train, test = order[:1536], order[1536:]
        parts = [(images[train], labels[train]), (images[test], labels[test])]
    return [TensorDataset(torch.tensor(x)[:, None], torch.tensor(y, dtype=torch.long)) for x, y in parts]


def train(args, model, device, train_loader, optimizer, epoch):
    model.train()
    for batch_idx, (data, target) in enumerate(train_loader):
        data, target = data.to(device), target.to(device)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(data), target)
        loss.backward()
        dl.gradients(optimizer)  # mean over the ranks
        optimizer.step()
        if batch_idx % dl.steps(args.log_interval) == 0:
            print(f"epoch {epoch} batch {dl.serial_steps(batch_idx)}/{dl.serial_steps(len(train_loader))} loss {dl.average(loss.item()):.6f}")


def test(model, device, test_loader):
    model.eval()
    test_loss, correct = 0.0, 0
    with torch.no_grad():
        for data, target in dl.shard(test_loader, whole="batches"):
            data, target = data.to(device), target.to(device)
            output = model(data)
            test_loss += F.cross_entropy(output, target, reduction="sum").item()
            correct += (output.argmax(dim=1) == target).sum().item()
        test_loss, correct = dl.total(test_loss, correct)  # sums over all ranks' samples
    return test_loss / len(test_loader.dataset), correct / len(test_loader.dataset)


def main():
    parser = argparse.ArgumentParser(description="handwritten digits, PyTorch")
    parser.add_argument("--data", default="", help="folder of MNIST IDX files (default: scikit-learn's digits)")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--gamma", type=float, default=0.9, help="factor on the learning rate after each epoch")
    parser.add_argument("--dropout", type=float, default=0.25)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--log-interval", type=int, default=100)
    parser.add_argument("--save", default="digits.pt", help="where to save the best weights")
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    train_set, test_set = load_digits(args.data)
    train_loader = dl.shard(DataLoader(train_set, batch_size=args.batch_size, shuffle=True))
    test_loader = DataLoader(test_set, batch_size=500)

    model = Net(side=train_set.tensors[0].shape[-1]).to(device)
    model.dropout.p = args.dropout
    optimizer = optim.SGD(model.parameters(), lr=dl.lr_scale(args.lr), momentum=0.9)
    scheduler = StepLR(optimizer, step_size=1, gamma=args.gamma)

    best = 0.0
    dl.broadcast(model, optimizer)  # every rank starts from rank 0's state
    dl.reseed()  # from here on each rank draws random numbers of its own
    for epoch in range(1, args.epochs + 1):
        start = time.perf_counter()
        train(args, model, device, train_loader, optimizer, epoch)
        rate = len(train_set) / (time.perf_counter() - start)
        loss, accuracy = test(model, device, test_loader)
        print(f"epoch {epoch} of {args.epochs}: test loss {loss:.6f}, accuracy {accuracy:.4f}, {rate:.0f} samples/s")
        scheduler.step()
        if accuracy > best:
            best = accuracy
            dl.save(model.state_dict(), args.save)
        if dl.should_stop():  # the scheduler ends the job: this was its last checkpoint
            break
    print(f"best accuracy {best:.4f}")


if __name__ == "__main__":
    dl.init()  # join the other ranks; this rank's GPU becomes the current one
    main()
    dl.finalize()  # leave together
