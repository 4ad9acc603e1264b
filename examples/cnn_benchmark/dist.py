"""Measure how many synthetic images a second a convolutional network trains on: a small one, or ResNet-50."""

import argparse
import statistics
import time

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
import dl_comm.torch as dl  # averages gradients over the ranks; without a launcher: one rank

print = dl.print  # only rank 0 prints


class SmallNet(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 32, 3, padding=1)
        self.conv2 = nn.Conv2d(32, 64, 3, padding=1)
        self.fc1 = nn.Linear(64 * 16, 128)
        self.fc2 = nn.Linear(128, classes)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.adaptive_avg_pool2d(F.relu(self.conv2(x)), 4)
        return self.fc2(F.relu(self.fc1(torch.flatten(x, 1))))


class Bottleneck(nn.Module):
    def __init__(self, inputs, width, stride):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(inputs, width, 1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
            nn.Conv2d(width, width, 3, stride, 1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
            nn.Conv2d(width, 4 * width, 1, bias=False),
            nn.BatchNorm2d(4 * width),
        )
        self.shortcut = nn.Sequential()
        if stride != 1 or inputs != 4 * width:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inputs, 4 * width, 1, stride, bias=False), nn.BatchNorm2d(4 * width)
            )

    def forward(self, x):
        return F.relu(self.body(x) + self.shortcut(x))


class ResNet50(nn.Module):
    """He et al., arXiv 1512.03385: 161 parameters with 25 557 032 elements at 1000 classes."""

    def __init__(self, classes):
        super().__init__()
        layers = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(True), nn.MaxPool2d(3, 2, 1)]
        inputs = 64
        for blocks, width, stride in ((3, 64, 1), (4, 128, 2), (6, 256, 2), (3, 512, 2)):
            for block in range(blocks):
                layers.append(Bottleneck(inputs, width, stride if block == 0 else 1))
                inputs = 4 * width
        self.features = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.fc = nn.Linear(inputs, classes)

    def forward(self, x):
        return self.fc(self.features(x))


MODELS = {"small": SmallNet, "resnet50": ResNet50}


def synthetic_images(count, size, classes):
    """Noise, brighter the higher the class: something that can be learned."""
    generator = torch.Generator().manual_seed(1)
    labels = torch.randint(classes, (count,), generator=generator)
    images = torch.randn(count, 3, size, size, generator=generator) + labels[:, None, None, None] / classes
    return TensorDataset(images, labels)


def main():
    parser = argparse.ArgumentParser(description="images per second, PyTorch")
    parser.add_argument("--model", choices=list(MODELS), default="small")
    parser.add_argument("--images", type=int, default=512, help="images in an epoch")
    parser.add_argument("--size", type=int, default=32, help="pixels along each side")
    parser.add_argument("--classes", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--epochs", type=int, default=6, help="the first one warms up and is not counted")
    parser.add_argument("--lr", type=float, default=0.01)
    args = parser.parse_args()

    torch.manual_seed(1)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    images = synthetic_images(args.images, args.size, args.classes)
    loader = dl.shard(DataLoader(images, batch_size=args.batch_size, shuffle=True))
    model = MODELS[args.model](args.classes).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=dl.lr_scale(args.lr), momentum=0.9)

    rates = []
    dl.broadcast(model, optimizer)  # every rank starts from rank 0's state
    dl.reseed()  # from here on each rank draws random numbers of its own
    for epoch in range(args.epochs):
        start = time.perf_counter()
        for data, target in loader:
            data, target = data.to(device), target.to(device)
            optimizer.zero_grad()
            loss = F.cross_entropy(model(data), target)
            loss.backward()
            dl.gradients(optimizer)  # mean over the ranks
            optimizer.step()
        loss = dl.average(loss)  # means over the ranks
        rates.append(len(images) / (time.perf_counter() - start))
        print(f"epoch {epoch + 1}: loss {loss.item():.6f}, {rates[-1]:.1f} images/s")
    counted = rates[1:] or rates
    print(f"images/s: mean {statistics.mean(counted):.1f}, standard deviation {statistics.pstdev(counted):.1f}")


if __name__ == "__main__":
    dl.init()  # join the other ranks; this rank's GPU becomes the current one
    main()
    dl.finalize()  # leave together
