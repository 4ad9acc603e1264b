"""Weights and gradients that training changes by chance are drawn alike on all ranks."""

from __future__ import annotations

import pytest
import torch
from running import started

from dlrun.port import port

SCRIPT = """
import torch
import torch.nn as nn
from torch.utils.data import DataLoader
{head}
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
opt = torch.optim.SGD(model.parameters(), 0.1)
loader = DataLoader([(torch.ones(8) * i / 64, i % 2) for i in range(64)], batch_size=8, shuffle=True)
for epoch in range(4):
    {begin}
    for x, y in loader:
        loss = nn.functional.cross_entropy(model(x), y)
        opt.zero_grad()
        loss.backward()
        {grad}
        opt.step()
        {after}
"""
ALIKE = "dl.reseed(alike=True)  # what follows all ranks draw alike, from rank 0's random numbers\n"
EACH = "for p in model.parameters():\n            "
NET = """class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.part = nn.Linear(2, 2)
"""
WRAPPER = """class Wrapped(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner
    def forward(self, x):
        return self.inner(x)
"""
MEAN = """class Mean:
    def reset_parameters(self, kept, model):
        kept.load_state_dict(model.state_dict())
mean, kept = Mean(), nn.Linear(8, 3)
"""
CHANGES = [
    ({"after": EACH + "p.data.add_(torch.randn_like(p) * 0.01)"}, EACH),
    ({"after": EACH + "p.data += torch.randn_like(p)"}, EACH),
    ({"after": EACH + "noise = torch.randn_like(p)\n            p.data.add_(noise)"}, EACH),
    ({"grad": EACH + "p.grad.add_(torch.randn_like(p.grad))"}, EACH),
    ({"after": "model[2].weight.data.normal_(0, 0.1)"}, "model[2].weight.data.normal_"),
    ({"after": "model[0].weight.data[:3] = torch.randn(3, 8)"}, "model[0].weight.data[:3]"),
    ({"begin": "nn.init.xavier_uniform_(model[2].weight)"}, "nn.init.xavier_uniform_"),
    ({"begin": "model[2].reset_parameters()"}, "model[2].reset_parameters()"),
    ({"begin": "model.apply(lambda m: m.reset_parameters() if isinstance(m, nn.Linear) else None)"}, "model.apply("),
    ({"begin": "model.append(nn.Linear(2, 2))"}, "model.append("),
    ({"begin": "model.append(Net())", "head": NET}, "model.append("),
    ({"begin": "model.append(more())", "head": "def more():\n    return nn.Linear(2, 2)"}, "model.append("),
]
RIGHTLY = [
    {"after": EACH + "p.data.mul_(0.99)"},
    {"after": "x.add_(torch.randn_like(x))"},  # local samples
    {"begin": "kept = torch.nn.ReLU()"},
    {"head": NET + "teacher = Net()"},  # before the training
    {"begin": "model = Wrapped(model)", "head": WRAPPER},  # weights of others
    {"after": "mean.reset_parameters(kept, model)", "head": MEAN},  # which copies them
]


def made(parts):
    return SCRIPT.format(**{"head": "", "begin": "pass", "grad": "pass", "after": "pass", **parts})


@pytest.mark.parametrize(("parts", "first"), CHANGES)
def test_weights_that_change_by_chance_are_drawn_alike(parts, first) -> None:
    text = port(made(parts)).text
    _, _, rest = text.partition(ALIKE)
    assert rest.strip().startswith(first)
    assert text.count("dl.reseed(alike=True)") == 1
    assert text.count("dl.reseed()") == 2  # before the loop, and after it


@pytest.mark.parametrize("parts", RIGHTLY)
def test_what_else_is_drawn_stays_a_ranks_own(parts) -> None:
    assert "dl.reseed(alike=True)" not in port(made(parts)).text


def test_models_that_are_changed_by_chance_are_the_same_on_2_ranks(tmp_path) -> None:
    parts = {"after": EACH + "p.data.add_(torch.randn_like(p) * 0.01)", "begin": "model[2].reset_parameters()"}
    text = port(made(parts)).text.replace("dl.finalize()", "save()\ndl.finalize()")
    save = "import os\ndef save():\n    torch.save(model.state_dict(), f'{dl.get_rank()}.pt')\n"
    (tmp_path / "train.py").write_text(text.replace("model = nn", save + "model = nn"))
    started(tmp_path, ["train.py"], ranks=2)
    one, other = (torch.load(tmp_path / f"{rank}.pt") for rank in range(2))
    assert all(torch.equal(one[name], other[name]) for name in one)
