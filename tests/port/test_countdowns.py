"""Counts that go on from a number: where they start they are divided, but for those of the first iteration."""

from __future__ import annotations

import pytest

from dlrun.port import port

SCRIPT = """
import torch
from torch.utils.data import DataLoader
model = torch.nn.Linear(8, 2)
opt = torch.optim.SGD(model.parameters(), 0.1)
{start}
for x, y in DataLoader(data, batch_size=16):
    opt.zero_grad()
    torch.nn.functional.cross_entropy(model(x), y).backward()
    opt.step()
    {move}
    if {test}:
        print(count)
"""


@pytest.mark.parametrize(
    ("start", "move", "test", "written"),
    [
        ("count = 100", "count -= 1", "count == 0", "count = dl.steps(100)"),
        ("count = 100", "count += 1", "count % 10 == 0", "count = dl.steps(100)"),
        ("count = -1", "count += 1", "count % 10 == 0", "count = -1\n"),  # the first is number 0
        ("seen, count = 0, -1", "count += 1", "count % 10 == 0", "seen, count = 0, -1\n"),
        ("count = 1", "count += 1", "count % 10 == 0", "count = 1\n"),
    ],
)
def test_counts_are_divided_where_they_start(start, move, test, written):
    text = port(SCRIPT.format(start=start, move=move, test=test)).text
    assert written in text
    assert "dl.serial_steps(count)" in text
