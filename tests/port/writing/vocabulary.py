"""A vocabulary saved and read back, pathlib, csv log, best model copied, yaml-like config written."""

import csv
import pickle
import shutil
from pathlib import Path

import torch
from torch.utils.data import DataLoader, TensorDataset

out = Path("out")
out.mkdir(exist_ok=True)
corpus = Path("corpus.txt")
if not corpus.exists():
    corpus.write_text("\n".join(f"w{i % 7} w{i % 5} w{i % 3}" for i in range(64)))


class Vocab:
    def __init__(self):
        self.index = {}

    def build(self, lines):
        for line in lines:
            for w in line.split():
                self.index.setdefault(w, len(self.index))

    def save(self, path):
        with open(path, "wb") as f:
            pickle.dump(self.index, f)

    @classmethod
    def load(cls, path):
        self = cls()
        with open(path, "rb") as f:
            self.index = pickle.load(f)
        return self


lines = corpus.read_text().splitlines()
vocab_file = out / "vocab.pkl"
if vocab_file.exists():
    vocab = Vocab.load(vocab_file)
else:
    vocab = Vocab()
    vocab.build(lines)
    vocab.save(vocab_file)
vocab = Vocab.load(vocab_file)

torch.manual_seed(0)
x = torch.tensor([[vocab.index[w] for w in line.split()] for line in lines])
model = torch.nn.Sequential(torch.nn.Embedding(len(vocab.index), 4), torch.nn.Flatten(), torch.nn.Linear(12, 1))
opt = torch.optim.Adam(model.parameters(), lr=1e-2)
log = open(out / "log.csv", "w", newline="")
writer = csv.writer(log)
writer.writerow(["epoch", "loss"])
best = float("inf")
for epoch in range(3):
    losses = []
    for (a,) in DataLoader(TensorDataset(x), batch_size=8, shuffle=True):
        loss = (model(a) - a.float().sum(1, keepdim=True)).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        losses.append(loss.item())
    mean = sum(losses) / len(losses)
    writer.writerow([epoch, mean])
    log.flush()
    torch.save(model.state_dict(), out / "last.pt")
    if mean < best:
        best = mean
        shutil.copyfile(out / "last.pt", out / "best.pt")
log.close()
model.load_state_dict(torch.load(out / "best.pt"))
rows = list(csv.reader(open(out / "log.csv")))
print(len(rows), best)
