"""Train a generator of handwritten digits against a discriminator: two networks, two optimizers."""

import argparse

import torch
from sklearn.datasets import load_digits
from torch import nn, optim
from torch.utils.data import DataLoader, TensorDataset
import dl_comm.torch as dl  # averages gradients over the ranks; without a launcher: one rank

print = dl.print  # only rank 0 prints


class Generator(nn.Module):
    def __init__(self, noise):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(noise, 128), nn.ReLU(), nn.Linear(128, 64), nn.Sigmoid())

    def forward(self, z):
        return self.net(z)


class Discriminator(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(64, 128), nn.LeakyReLU(0.2), nn.Linear(128, 1))

    def forward(self, x):
        return self.net(x)


def main():
    parser = argparse.ArgumentParser(description="a small GAN on scikit-learn's digits")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--noise", type=int, default=16)
    parser.add_argument("--lr", type=float, default=2e-4)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--save", default="generator.pt")
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    images = torch.tensor(load_digits().images, dtype=torch.float32).reshape(-1, 64) / 16
    loader = dl.shard(DataLoader(TensorDataset(images), batch_size=args.batch_size, shuffle=True, drop_last=True))

    netG, netD = Generator(args.noise), Discriminator()
    optimizerG = optim.Adam(netG.parameters(), lr=dl.lr_scale(args.lr), betas=(0.5, 0.999))
    optimizerD = optim.Adam(netD.parameters(), lr=dl.lr_scale(args.lr), betas=(0.5, 0.999))
    criterion = nn.BCEWithLogitsLoss()

    dl.broadcast(netG, netD, optimizerG, optimizerD)  # every rank starts from rank 0's state
    dl.reseed()  # from here on each rank draws random numbers of its own
    for epoch in range(args.epochs):
        for (real,) in loader:
            ones, zeros = torch.ones(len(real), 1), torch.zeros(len(real), 1)
            fake = netG(torch.randn(len(real), args.noise))

            # The discriminator learns from a real and a fake batch: two backward passes, one step.
            optimizerD.zero_grad()
            errD_real = criterion(netD(real), ones)
            errD_real.backward()
            errD_fake = criterion(netD(fake.detach()), zeros)
            errD_fake.backward()
            dl.gradients(optimizerD)  # mean over the ranks
            optimizerD.step()

            optimizerG.zero_grad()
            errG = criterion(netD(fake), ones)
            errG.backward()
            dl.gradients(optimizerG)  # mean over the ranks
            optimizerG.step()
        errD_real, errD_fake, errG = dl.average(errD_real, errD_fake, errG)  # means over the ranks
        print(f"epoch {epoch} loss D {(errD_real + errD_fake).item():.4f} loss G {errG.item():.4f}")
    dl.save(netG.state_dict(), args.save)


if __name__ == "__main__":
    dl.init()  # join the other ranks; this rank's GPU becomes the current one
    main()
    dl.finalize()  # leave together
