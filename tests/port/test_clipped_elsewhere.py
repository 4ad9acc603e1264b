"""Gradients are averaged before a method or a function of the script's own clips or reads them."""

import pytest
from running import started

from dlrun.port import Options, port

CLIPPED = """import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(0)
def clipped(model, most):
    return nn.utils.clip_grad_norm_(model.parameters(), most)
class Trainer:
    def __init__(self, model, opt):
        self.model, self.opt = model, opt
    def clip(self):
        nn.utils.clip_grad_norm_(self.model.parameters(), 0.1)
    def clip_by_function(self):
        return clipped(self.model, 0.1)
    def norm(self):
        return sum(p.grad.norm().item() for p in self.model.parameters())
    def fit(self, loader):
        for x, y in loader:
            loss = nn.functional.cross_entropy(self.model(x), y)
            self.opt.zero_grad()
            loss.backward()
            READ
            self.opt.step()
X = torch.randn(96, 6)
trainer = Trainer(nn.Linear(6, 2), None)
trainer.opt = torch.optim.SGD(trainer.model.parameters(), 0.5)
trainer.fit(DataLoader(TensorDataset(X, (X.sum(1) > 0).long()), 12))
print(*[f"{w:.5f}" for w in trainer.model.weight.flatten().tolist()])
"""


@pytest.mark.parametrize(
    "read", ["self.clip()", "self.clip_by_function()", "norm = self.norm()", "clipped(self.model, 1)"]
)
def test_gradients_are_averaged_before_what_reads_them_out_of_sight(read):
    text = port(CLIPPED.replace("READ", read)).text
    assert f"            dl.gradients(self.opt)  # mean over the ranks\n            {read}\n" in text


def test_what_is_clipped_is_the_mean_as_in_the_serial_run(tmp_path):
    script = CLIPPED.replace("READ", "self.clip()")
    (tmp_path / "train.py").write_text(script)
    (tmp_path / "dist.py").write_text(port(script, Options(batch="global")).text)
    ours, theirs = started(tmp_path, ["dist.py"], ranks=2), started(tmp_path, ["train.py"])
    assert [float(w) for w in ours.split()] == pytest.approx([float(w) for w in theirs.split()], abs=2e-5)


AHEAD = """import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(0)
X = torch.randn(96, 6)
model, other = nn.Linear(6, 2), nn.Linear(6, 2)
opt, last = torch.optim.SGD(model.parameters(), 0.5), torch.optim.SGD(other.parameters(), 0.5)
def perturb():
    norm = torch.norm(torch.stack([p.grad.norm() for p in model.parameters()]))
    moved = [0.05 * p.grad / norm for p in model.parameters()]
    with torch.no_grad():
        for p, by in zip(model.parameters(), moved):
            p.add_(by)
    return moved
def undo(moved):
    with torch.no_grad():
        for p, by in zip(model.parameters(), moved):
            p.sub_(by)
for x, y in DataLoader(TensorDataset(X, (X.sum(1) > 0).long()), 12):
    opt.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    moved = perturb()
    opt.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    undo(moved)
    opt.step()
    loss = nn.functional.cross_entropy(other(x), y)
    grads = torch.autograd.grad(loss, list(other.parameters()))
    norm = sum(g.pow(2).sum() for g in grads).sqrt()
    for p, g in zip(other.parameters(), grads):
        p.grad = g / norm
    last.step()
print(*[f"{w:.5f}" for net in (model, other) for w in net.weight.flatten().tolist()])
"""


def test_gradients_from_which_an_optimizer_looks_ahead_and_those_of_autograd_are_averaged(tmp_path):
    ported = port(AHEAD, Options(batch="global"))
    assert "    dl.gradients(opt)  # mean over the ranks\n    moved = perturb()\n" in ported.text
    assert "    dl.gradients(grads)  # mean over the ranks\n    norm = " in ported.text
    assert not ported.doubts
    (tmp_path / "train.py").write_text(AHEAD)
    (tmp_path / "dist.py").write_text(ported.text)
    ours, theirs = started(tmp_path, ["dist.py"], ranks=2), started(tmp_path, ["train.py"])
    assert [float(w) for w in ours.split()] == pytest.approx([float(w) for w in theirs.split()], abs=2e-5)


@pytest.mark.parametrize(
    ("hook", "told"),
    [
        ("lambda g: g.clamp(-1, 1)", ["changed-early"]),
        ("clamped", ["changed-early"]),
        ("lambda g: -0.5 * g / 3", []),
        ("lambda g: print(g.norm())", []),
        ("shown", []),
    ],
)
def test_a_hook_that_bends_the_gradients_of_a_rank_is_told(hook, told):
    functions = (
        "def clamped(g):\n    return torch.clamp(g, -1, 1)\ndef shown(g):\n    norms.append(g.norm())\nnorms = []\n"
    )
    hooked = f"{functions}for p in model.parameters():\n    p.register_hook({hook})\nfor x, y in"
    doubts = port(AHEAD.replace("for x, y in", hooked)).doubts
    assert [doubt.name for doubt in doubts] == told


DECORATED = """import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
X = torch.randn(96, 6)
model = nn.Linear(6, 2)
opt = torch.optim.SGD(model.parameters(), 0.5)
def updates(find):
    def inner(*batch):
        opt.zero_grad()
        loss = find(*batch)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.05)
        opt.step()
        return loss.item()
    return inner
@updates
def step(x, y):
    return nn.functional.cross_entropy(model(x), y)
total = 0.0
for x, y in DataLoader(TensorDataset(X, (X.sum(1) > 0).long()), 12):
    total += step(x, y)
print(total)
"""


def test_an_update_in_what_a_decorator_puts_around_a_function_is_found():
    text = port(DECORATED).text
    assert "for x, y in dl.shard(DataLoader(" in text and "\ntotal = dl.total(total)" in text
    assert "        dl.gradients(opt)  # mean over the ranks\n        nn.utils.clip_grad_norm_(" in text
