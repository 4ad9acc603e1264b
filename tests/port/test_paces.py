"""The next number of a schedule, one a step, is no sample to share; it goes too slowly, and that is said."""

from __future__ import annotations

import pytest

from dlrun.port import Options, port

SCRIPT = """
import numpy as np
import torch
from torch.nn import functional as F
from torch.utils.data import DataLoader


class Schedule:
    def __init__(self, values):
        self.values, self.at = values, 0

    def next(self):
        value = self.values[self.at]
        self.at += 1
        return value


def ramp(n):
    for i in range(10000):
        yield min(1.0, i / n)


model = torch.nn.Linear(4, 1)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
loader = DataLoader([(torch.ones(4) * i / 64, torch.ones(1)) for i in range(64)], batch_size=8, shuffle=True)
made = {made}
for epoch in range(4):
    for x, y in loader:
        out = model(x)
        loss = F.mse_loss(out, y)
        {line}
        opt.zero_grad()
        loss.backward()
        opt.step()
    print(epoch, loss.item())
"""
OWN, RAMP, LIST = "Schedule(np.linspace(0, 1, 64))", "ramp(64)", "iter(np.linspace(0, 1, 64))"
PACED = [
    (OWN, 'opt.param_groups[0]["lr"] = made.next()', "made.next()"),
    (OWN, "loss = loss + made.next() * out.pow(2).mean()", "made.next()"),
    (OWN, "beta = max(made.next(), 0.1)\n        loss += beta * out.pow(2).mean()", "made.next()"),
    (RAMP, "beta = next(made)\n        loss = loss + beta * out.mean()\n        print(f'{beta:.3f}')", "islice(made,"),
    (LIST, 'for group in opt.param_groups:\n            group["lr"] = next(made)', "islice(made,"),
    ("Schedule(list(loader))", "x2, y2 = made.next()\n        loss = loss + F.mse_loss(model(x2), y2)", None),
    ("Schedule(pictures)", "loss = loss + model(made.next() / 255.0).mean()", None),
    ("Schedule(graphs)", "graph = made.next()\n        loss = loss + model(graph.x).mean()", None),
]


@pytest.mark.parametrize(("made", "line", "told"), PACED)
def test_numbers_of_a_schedule_are_no_samples_and_are_doubted(made, line, told) -> None:
    ported = port(SCRIPT.format(made=made, line=line))
    paced = [d for d in ported.doubts if "the next number of a schedule" in d.why]
    assert ("dl.shard(made.next)" in ported.text) is (told is None)
    assert "made = dl.shard" not in ported.text
    assert [(d.danger, told in d.write) for d in paced] == [("high", True)] * (told is not None)


@pytest.mark.parametrize("batch", ["local", "global"])
def test_a_schedule_goes_as_in_the_serial_run_where_the_steps_do(batch) -> None:
    doubts = port(SCRIPT.format(made=RAMP, line="loss = loss + next(made) * out.mean()"), Options(batch=batch)).doubts
    assert any("the next number of a schedule" in d.why for d in doubts) is (batch == "local")


STATE = """
import torch


class Solver:
    def __init__(self, field, start, stops):
        self.field, self.state, self.stops, self.at = field, (start, 0.0), stops, 0

    def step(self, state):
        y, t = state
        stop = self.stops[self.at]
        if t + 0.1 > stop:
            self.at += 1
        return y + 0.1 * self.field(y), min(t + 0.1, stop)

    def solve(self, end):
        while end > self.state[1]:
            self.state = self.step(self.state)
        return self.state[0]


field = torch.nn.Linear(2, 2)
opt = torch.optim.SGD(field.parameters(), lr=0.1)
for step in range(100):
    y = torch.rand(16, 2)
    loss = (Solver(field, y, [0.25, 1.0, 2.0]).solve(1.0) - y.flip(0)).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
"""


def test_a_state_that_is_made_of_the_one_before_is_no_batch() -> None:
    text = port(STATE).text
    assert "self.state = self.step(self.state)" in text
    assert "dl.steps(100)" in text
