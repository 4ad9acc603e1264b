"""With the global batch kept, ranks take parts of the batches that a script draws, and show the serial numbers."""

from __future__ import annotations

import pytest
from running import rounded, started

from dlrun.errors import DlrunError
from dlrun.port import Options, port

HEAD = """import math, random
import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
torch.manual_seed(0); random.seed(0); np.random.seed(0)
X, Y = torch.randn(240, 4), torch.randint(0, 3, (240,))
net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
opt = torch.optim.Adam(net.parameters(), 0.01)
def update(loss):
    opt.zero_grad(); loss.backward(); opt.step()
    return loss.item()
"""
PROGRAMS = {
    "positions in a line": """
losses = []
for step in range(1, 25):
    at = torch.randint(0, len(X), (12,))
    losses.append(update(F.cross_entropy(net(X[at]), Y[at])))
    if step % 8 == 0: print(step, sum(losses[-8:]) / 8, losses[-1])
""",
    "a function, and evaluations that draw": """
def batch(split, size=12):
    rows = X[:180] if split == "train" else X[180:]
    at = torch.randint(len(rows), (size,))
    return rows[at], (Y[:180] if split == "train" else Y[180:])[at]
@torch.no_grad()
def evaluate():
    found = {}
    for split in ("train", "val"):
        losses = torch.stack([F.cross_entropy(net(x), y) for x, y in (batch(split, 20) for _ in range(3))])
        found[split] = losses.mean()
    return found
best, history, recent = math.inf, [], []
for it in range(1, 25):
    x, y = batch("train")
    recent.append(update(F.cross_entropy(net(x), y)))
    if it % 8 == 0:
        found = evaluate()
        if found["val"] < best:
            best = found["val"].item()
            torch.save(net.state_dict(), "best.pt")
        history.append((it, sum(recent) / len(recent), found["train"].item(), best))
        recent = []
for row in history: print(*row)
""",
    "a generator of the script's own": """
rng = np.random.default_rng(3)
seen = 0
for step in range(24):
    at = rng.choice(len(X), 12, replace=False)
    loss = update(F.cross_entropy(net(X[at]), Y[at]))
    seen += len(at)
    if step % 8 == 7: print(seen, loss)
""",
    "an object that keeps its place": """
class Data:
    def __init__(self): self.at, self.epoch, self.order = 0, 0, np.random.permutation(240)
    def next_batch(self, size):
        if self.at + size > 240: self.at, self.epoch, self.order = 0, self.epoch + 1, np.random.permutation(240)
        pick = self.order[self.at : self.at + size]
        self.at += size
        return X[pick], Y[pick]
data, total = Data(), 0.0
for step in range(30):
    x, y = data.next_batch(16)
    total += update(F.cross_entropy(net(x), y))
    if step % 10 == 9: print(step, data.epoch, total / 10); total = 0.0
""",
    "noise, times and numbers for all": """
abar, model = torch.linspace(0.99, 0.5, 50), nn.Linear(5, 4)
opt = torch.optim.Adam(model.parameters(), 0.01)
times = []
for step in range(24):
    x = X[torch.randint(0, len(X), (12,))]
    t, eps = torch.randint(0, 50, (12,)), torch.randn(12, 4)
    scale, skew = random.uniform(0.5, 2), torch.randint(9, (1,)).item()
    noisy = abar[t].sqrt()[:, None] * x + (1 - abar[t]).sqrt()[:, None] * eps * scale
    loss = update((model(torch.cat([noisy, t[:, None] / 50], 1)) - eps).pow(2).mean() + 0.01 * skew)
    times.append(skew)
    if random.random() < 0.3: times.append(100)
    if step % 8 == 7: print(step, loss, scale, sum(times))
""",
    "points of a domain": """
u = nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 1))
opt = torch.optim.Adam(u.parameters(), 0.01)
for step in range(20):
    x, t = torch.rand(24, 1, requires_grad=True), torch.rand(24, 1, requires_grad=True)
    edge = torch.rand(12, 1)
    f = u(torch.cat([x, t], 1))
    f_x, f_t = torch.autograd.grad(f.sum(), (x, t), create_graph=True)
    inside, begins = (f_t + f_x).pow(2).mean(), (u(torch.cat([edge, 0 * edge], 1)) - torch.sin(edge)).pow(2).mean()
    update(inside + 10 * begins)
    if step % 5 == 4: print(step, inside.item(), begins.item())
""",
}


@pytest.mark.parametrize("what", PROGRAMS)
def test_drawn_batches_are_divided(what, tmp_path) -> None:
    program = HEAD + PROGRAMS[what]
    ported = port(program, Options(batch="global"))
    assert not ported.doubts and "dl.part(" in ported.text
    (tmp_path / "train.py").write_text(program)
    (tmp_path / "dist.py").write_text(ported.text)
    serial = started(tmp_path, ["train.py"])
    ranks = 3 if what == "positions in a line" else 2
    mine = started(tmp_path, ["dist.py"], ranks=ranks)
    assert len(serial.splitlines()) >= 3
    assert list(map(rounded, mine.splitlines())) == list(map(rounded, serial.splitlines()))


@pytest.mark.parametrize(
    ("drawn", "batch"),
    [
        ("at = np.random.permutation(len(X))[:12]", "at = dl.part(np.random.permutation(len(X))[:12])"),
        ("order = torch.randperm(len(X)).tolist()\n    at = order[:12]", "at = dl.part(order[:12])"),
        ("order = np.random.permutation(len(X))\n    at = order[5 : 17]", "at = dl.part(order[5 : 17])"),
    ],
)
def test_a_batch_that_is_cut_from_what_is_drawn_is_divided_as_it_is_cut(drawn, batch) -> None:
    program = f"{HEAD}for step in range(24):\n    {drawn}\n    update(F.cross_entropy(net(X[at]), Y[at]))\n"
    text = port(program, Options(batch="global")).text
    assert f"    {batch}\n" in text and text.count("dl.part(") == 1 and text.count("dl.reseed(alike=True)") == 1


def test_one_sample_that_is_drawn_is_no_batch() -> None:
    drawn = "for step in range(9):\n    x = model_data()\n    update(F.cross_entropy(net(x), Y[:4]))\n"
    with pytest.raises(DlrunError):
        port(HEAD + "def model_data(): return X[torch.randint(0, 9, (1,))]\n" + drawn, Options(batch="global"))


WINDOWS = """
from torch.utils.data import DataLoader, TensorDataset
history, running, it = [], [], 0
for epoch in range(3):
    for x, y in DataLoader(TensorDataset(X, Y), 24):
        running.append(update(F.cross_entropy(net(x), y)))
        it += 1
        if it % 4 == 0:
            history.append((it, sum(running) / len(running)))
            running = []
for row in history: print(*row)
"""
BY_THE_CLOCK = """
import time
from torch.utils.data import DataLoader, TensorDataset
best = 1e9
for x, y in DataLoader(TensorDataset(X, Y), 24):
    begun = time.time()
    update(F.cross_entropy(net(x), y))
    took = time.time() - begun
    if took < best:
        best = took
        torch.save(net.state_dict(), "fastest.pt")
"""


def test_windows_that_are_kept_over_epochs_are_those_of_all_ranks(tmp_path) -> None:
    ported = port(HEAD + WINDOWS, Options(batch="global"))
    assert not ported.doubts
    (tmp_path / "train.py").write_text(HEAD + WINDOWS)
    (tmp_path / "dist.py").write_text(ported.text)
    serial, mine = started(tmp_path, ["train.py"]), started(tmp_path, ["dist.py"], ranks=2)
    assert list(map(rounded, mine.splitlines())) == list(map(rounded, serial.splitlines()))


def test_rank_0_decides_by_the_best_of_its_clocks_numbers() -> None:
    assert "dl.agree(took < best)" in port(HEAD + BY_THE_CLOCK).text
