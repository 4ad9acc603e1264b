import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
data = TensorDataset(torch.randn(96, 4), torch.randint(0, 3, (96,)))
loaders = {"train": DataLoader(data, batch_size=8, shuffle=True), "test": DataLoader(data, batch_size=16)}
model = torch.nn.Linear(4, 3)
opt = torch.optim.SGD(model.parameters(), lr=0.0)

class Scores:
    def __init__(self):
        self.seen, self.right, self.losses = 0, 0, []
    def add(self, out, y, loss):
        self.seen += len(y)
        self.right += (out.argmax(1) == y).sum().item()
        self.losses.append(loss)

def step(phase, x, y):
    out = model(x)
    loss = F.cross_entropy(out, y)
    if phase == "train":
        opt.zero_grad()
        loss.backward()
        opt.step()
    return out, loss.item()

for epoch in range(2):
    scores = {"train": Scores(), "test": Scores()}
    kept = {"train": [], "test": []}
    for phase, loader in (("train", loaders["train"]), ("test", loaders["test"])):
        for x, y in loader:
            out, loss = step(phase, x, y)
            scores[phase].add(out, y, loss)
            kept[phase].append(loss)
    for phase, score in scores.items():
        mean = sum(score.losses) / len(score.losses)
        print(f"a {phase} {mean:.5f} {len(score.losses)} {score.right}/{score.seen} {sum(kept[phase]):.5f}")

stats = {}

def run(phase):
    for x, y in loaders[phase]:
        loss = step(phase, x, y)[1]
        stats[phase]["loss"] += loss * len(y)
        stats[phase]["seen"] += len(y)

for epoch in range(2):
    for phase in ("train", "test"):
        stats[phase] = {"loss": 0.0, "seen": 0}
    run("train")
    run("test")
    for phase, held in stats.items():
        print(f"b {phase} {held['loss'] / held['seen']:.5f} {held['seen']}")
