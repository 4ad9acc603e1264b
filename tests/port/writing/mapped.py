"""A Trainer class with everything in methods; memmap data; a lock of its own; a results folder by a number."""

import argparse
import json
import os

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset


class Mapped(Dataset):
    def __init__(self, path, n=48):
        if not os.path.isfile(path):
            rows = np.memmap(path, dtype="float32", mode="w+", shape=(n, 5))
            rows[:] = np.random.RandomState(0).rand(n, 5)
            rows.flush()
            del rows
        self.rows = np.memmap(path, dtype="float32", mode="r").reshape(-1, 5)

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        row = torch.tensor(self.rows[i])
        return row[:4], row[4:]


class Trainer:
    def __init__(self, args):
        self.args = args
        n = 0
        while os.path.exists(f"{args.out}{n}"):
            n += 1
        self.folder = f"{args.out}{n}"
        os.makedirs(self.folder)
        json.dump(vars(args), open(f"{self.folder}/args.json", "w"))
        self.data = Mapped(args.data)
        self.model = torch.nn.Linear(4, 1)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=args.lr)

    def epoch(self):
        total = 0
        for x, y in DataLoader(self.data, batch_size=self.args.batch, shuffle=True):
            loss = torch.nn.functional.mse_loss(self.model(x), y)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            total += loss.item() * len(x)
        return total / len(self.data)

    def save(self, name):
        path = os.path.join(self.folder, name)
        tmp = path + ".tmp"
        torch.save(self.model.state_dict(), tmp)
        os.replace(tmp, path)

    def run(self):
        for epoch in range(self.args.epochs):
            loss = self.epoch()
            self.save(f"model{epoch}.pt")
            with open(os.path.join(self.folder, "log.txt"), "a") as f:
                f.write(f"{epoch} {loss}\n")
        self.model.load_state_dict(torch.load(os.path.join(self.folder, f"model{epoch}.pt")))
        print(open(os.path.join(self.folder, "log.txt")).read().count("\n"), sorted(os.listdir(self.folder)))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", default="run")
    parser.add_argument("--data", default="rows.dat")
    parser.add_argument("--lr", type=float, default=0.01)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--epochs", type=int, default=3)
    torch.manual_seed(0)
    Trainer(parser.parse_args()).run()
