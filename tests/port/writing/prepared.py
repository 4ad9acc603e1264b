"""A data set that a constructor downloads and processes, under a lock; settings and predictions that are read back."""

import json
import os
import os.path as osp
import tempfile
import time
from pathlib import Path

import pandas as pd
import torch
from torch.utils.data import DataLoader, Dataset, TensorDataset


class Lock:
    def __init__(self, path):
        self.path = path

    def __enter__(self):
        while True:
            try:
                self.fd = os.open(self.path, os.O_CREAT | os.O_EXCL)
                return self
            except FileExistsError:
                time.sleep(0.01)

    def __exit__(self, *exc):
        os.close(self.fd)
        os.remove(self.path)


class Shapes(Dataset):
    def __init__(self, root, download=False):
        self.root = root
        if download:
            self.download()
        if not self.is_there():
            raise RuntimeError("not found")
        self.x, self.y = torch.load(osp.join(self.root, "processed", "train.pt"))

    def is_there(self):
        return osp.exists(osp.join(self.root, "processed", "train.pt"))

    def download(self):
        if self.is_there():
            return
        os.makedirs(osp.join(self.root, "raw"), exist_ok=True)
        os.makedirs(osp.join(self.root, "processed"), exist_ok=True)
        chance = torch.Generator().manual_seed(0)
        with open(osp.join(self.root, "raw", "rows.txt"), "w") as f:
            for _ in range(48):
                f.write(" ".join(f"{v:.5f}" for v in torch.randn(3, generator=chance)) + "\n")
        self.process()

    def process(self):
        rows = [[float(v) for v in line.split()] for line in open(osp.join(self.root, "raw", "rows.txt"))]
        x = torch.tensor(rows)
        torch.save((x, (x.sum(1) > 0).long()), osp.join(self.root, "processed", "train.pt"))

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return self.x[i], self.y[i]


class Parts:
    def __init__(self, folder, n=3):
        os.makedirs(folder, exist_ok=True)
        with Lock(osp.join(folder, ".lock")):
            if len(os.listdir(folder)) < n + 1:
                for i in range(n):
                    (Path(folder) / f"part{i}.txt").write_text(str(i))
        self.files = sorted(f for f in os.listdir(folder) if f.endswith(".txt"))


class Settings:
    def __init__(self, **values):
        self.values = values

    @property
    def folder(self):
        path = Path("exp") / self.values["name"]
        path.mkdir(parents=True, exist_ok=True)
        return path

    def dump(self):
        (self.folder / "settings.json").write_text(json.dumps(self.values))

    @classmethod
    def load(cls, path):
        return cls(**json.loads(Path(path).read_text()))


def scratch():
    with tempfile.TemporaryDirectory() as tmp:
        path = Path(tmp) / "x.pt"
        torch.save(torch.arange(3), path)
        return torch.load(path).sum().item()


def evaluate(model, loader, tmp_path):
    found = []
    with torch.no_grad():
        for i, (x, _) in enumerate(loader):
            found += [(i, p) for p in model(x).argmax(1).tolist()]
    pd.DataFrame(found, columns=["batch", "label"]).to_csv(tmp_path, index=False)


settings = Settings(name="base", parts=len(Parts("parts").files))
settings.dump()
settings = Settings.load(settings.folder / "settings.json")
torch.manual_seed(0)
data = Shapes("shapes", download=True)
model = torch.nn.Linear(3, 2)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(2):
    for x, y in DataLoader(data, batch_size=8, shuffle=True):
        opt.zero_grad()
        torch.nn.functional.cross_entropy(model(x), y).backward()
        opt.step()
    evaluate(model, DataLoader(TensorDataset(data.x, data.y), 8), f"exp/labels{epoch}.csv")
    print(len(pd.read_csv(f"exp/labels{epoch}.csv")), scratch(), settings.values["parts"])
