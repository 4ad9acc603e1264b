"""Decisions by which the training goes on: a curriculum's level, a weight that doubles, what is frozen."""

from __future__ import annotations

import pytest

from dlrun.port import port

SCRIPT = """
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, Subset, TensorDataset
model = torch.nn.Linear(8, 2)
opt = torch.optim.SGD(model.parameters(), 0.1)
loader = DataLoader(TensorDataset(X, Y), batch_size=16, shuffle=True)
weight, level, phase, std, shown = 1.0, 1, 1, 0.5, "low"
for epoch in range(4):
    total = correct = n = 0
    {begin}
    for x, y in loader:
        out = model(x + std * torch.randn_like(x))
        near = out.pow(2).mean()
        loss = F.cross_entropy(out, y) + weight * near
        {inner}
        opt.zero_grad()
        loss.backward()
        opt.step()
        total += loss.item()
        correct += (out.argmax(1) == y).sum().item()
        n += len(y)
    accuracy = correct / n
    {end}
    print(epoch, shown)
"""
MEAN = "correct, n = dl.total(correct, n)"  # the accuracy that decides is of all ranks' samples
MORE = "loader = DataLoader(Subset(TensorDataset(X, Y), range(80 * level)), batch_size=16, shuffle=True)"
PHASE = "if phase == 2: loss = loss * 2"


@pytest.mark.parametrize(
    ("begin", "inner", "end", "written"),
    [
        (MORE, "pass", "if accuracy > .6: level = level + 1", MEAN),
        (MORE, "pass", "if accuracy > .6: level += 1", MEAN),
        ("pass", "pass", "if accuracy > .6: std *= .5", MEAN),
        ("pass", "pass", "std = std * .5 if accuracy > .6 else std", MEAN),
        ("pass", "pass", "weight = 2.0 if accuracy > .6 else 1.0", MEAN),
        ("pass", PHASE, "if accuracy > .6: phase = 2", MEAN),
        ("pass", PHASE.replace("== 2", "> 1"), "if accuracy > .6: phase += 1", MEAN),
        ("pass", "pass", "if accuracy > .6: " + MORE.replace("level", "2"), MEAN),
        ("pass", "pass", "if accuracy > .6: model.weight.requires_grad_(False)", MEAN),
        ("pass", "pass", "if total / len(loader) < .6: std *= .5", "if total / dl.serial_steps(len(loader)) < .6: std"),
        ("pass", "if near.item() > 9: model.load_state_dict(good)", "pass", "if dl.average(near.item()) > 9: model"),
        ("pass", "if near.item() > .1: weight *= 2", "pass", "if dl.average(near.item()) > .1: weight *= 2"),
    ],
)
def test_what_the_training_goes_on_by_is_decided_alike(begin, inner, end, written) -> None:
    text = port(SCRIPT.format(begin=begin, inner=inner, end=end)).text
    assert written in text
    assert text.count("dl.average(") == written.count("dl.average(")


@pytest.mark.parametrize(
    ("inner", "end"),
    [
        ("part = .1 if loss.item() > 9 else 1.; loss = part * loss", "pass"),  # of this batch alone
        ("pass", 'shown = "high" if accuracy > .6 else "low"'),  # for show
        ("if near.item() > 3: shown = str(n)", "pass"),
    ],
)
def test_what_is_chosen_for_one_batch_or_for_show_stays_a_ranks_own(inner, end) -> None:
    assert "dl.average(" not in port(SCRIPT.format(begin="pass", inner=inner, end=end)).text


OBJECT = """
class Levels:
    def __init__(self):
        self.level = 1
    def raised(self):
        self.level = self.level + 1
    def step(self, accuracy):
        if accuracy > .6:
            {what}
levels = Levels()
"""


@pytest.mark.parametrize("what", ["self.level = self.level + 1", "self.raised()"])
def test_what_an_object_keeps_for_the_batches_to_come_is_decided_alike(what) -> None:
    begin = MORE.replace("level", "levels.level")
    script = OBJECT.format(what=what) + SCRIPT.format(begin=begin, inner="pass", end="levels.step(accuracy)")
    assert MEAN in port(script).text


PSEUDO = """import copy
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

loader = DataLoader(TensorDataset(torch.randn(32, 4)), 8, shuffle=True)
model = torch.nn.Linear(4, 3)
teacher = copy.deepcopy(model)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(2):
    for (x,) in loader:
        with torch.no_grad(): sure, y = teacher(x).softmax(1).max(1); mask = sure > 0.5
        loss = (F.cross_entropy(model(x), y, reduction="none") * mask).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
print("kept", int(mask.sum()) >= 0)
"""


def test_a_mask_of_this_batchs_samples_is_neither_averaged_nor_doubted():
    ported = port(PSEUDO)
    assert "mask = sure > 0.5\n" in ported.text
    assert not [d for d in ported.doubts if "weighs later losses" in d.why]


@pytest.mark.parametrize(
    ("kept", "written"),
    [
        ("std = near.item()", "std = dl.average(near.item())"),
        ("std.data = near.detach()", "std.data = dl.average(near.detach())"),
        ("std.copy_(near.detach())", "std.copy_(dl.average(near.detach()))"),
        ("std.fill_(near.item())", "std.fill_(dl.average(near.item()))"),
    ],
)
def test_what_a_tensor_is_set_to_in_place_and_weighs_later_losses_is_the_same_on_all_ranks(kept, written) -> None:
    script = SCRIPT.replace("0.5, ", "torch.tensor(0.5), ").replace("+ weight * near", "+ std * near")
    assert (
        written
        in port(script.format(begin="pass", inner="pass", end="pass").replace("step()", f"step()\n        {kept}")).text
    )


KEPT = """
import torch
from torch.utils.data import DataLoader, TensorDataset
class Box:
    radius = 0.5
class Loss(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.radius = torch.tensor(0.5)
    def forward(self, distances):
        return (distances - self.radius).clamp(min=0).mean()
    def shrink(self, radius):
        self.radius = radius
def made():
    radius = 0.5
    def get():
        return radius
    def put(value):
        nonlocal radius
        radius = value
    return get, put
box, states, loss_of = Box(), {{"radius": 0.5}}, Loss()
get, put = made()
model = torch.nn.Linear(8, 2)
opt = torch.optim.SGD(model.parameters(), 0.1)
for x, y in DataLoader(TensorDataset(X, Y), batch_size=16):
    distances = model(x).square().sum(1)
    loss = {loss}
    opt.zero_grad()
    loss.backward()
    opt.step()
    found = distances.detach().quantile(0.9)
    {kept}
"""
RADIUS = "(distances - {}).clamp(min=0).mean()"
OWN = "loss_of(distances)"


@pytest.mark.parametrize(
    ("loss", "kept", "told"),
    [
        (RADIUS.format("box.radius"), "box.radius = found.item()", True),
        (RADIUS.format("box.radius"), "setattr(box, 'radius', found)", True),
        (RADIUS.format("states['radius']"), "states.update(radius=found.item())", True),
        (RADIUS.format("get()"), "put(found.item())", True),
        (OWN, "loss_of.radius = found", True),
        (OWN, "loss_of.shrink(found)", True),
        (OWN, "loss_of.radius.copy_(found)", True),
        (OWN, "loss_of.shown = found", False),
        (RADIUS.format("0.5"), "box.radius = found.item()", False),
        (RADIUS.format("distances.detach().mean()"), "box.radius = found.item()", False),
    ],
)
def test_a_number_of_an_earlier_iteration_that_weighs_a_loss_is_told(loss, kept, told) -> None:
    doubts = port(KEPT.format(loss=loss, kept=kept)).doubts
    assert any("the ranks weigh it apart" in d.why for d in doubts) == told


CYCLED = """import itertools, torch
from torch.utils.data import DataLoader, TensorDataset
loader = DataLoader(TensorDataset(torch.randn(64, 4), torch.randint(0, 2, (64,))), batch_size=4)
model = torch.nn.Linear(4, 2)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
pool = torch.randn(32, 4)
for turn in range(3):
    unlabelled = DataLoader(TensorDataset(pool), batch_size=4, shuffle=True)
    more = itertools.cycle(unlabelled)
    for (x, y), (u,) in zip(loader, more):
        loss = torch.nn.functional.cross_entropy(model(x), y) + model(u).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
    pool = pool[model(pool).max(1).values < 0.5]
"""


def test_what_samples_come_from_weighs_no_loss() -> None:
    assert not [doubt for doubt in port(CYCLED).doubts if doubt.why.startswith("more")]
