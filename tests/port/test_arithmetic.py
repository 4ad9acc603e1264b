"""What is computed from counts of iterations is, where it is shown, what the serial script computes from its own."""

from __future__ import annotations

import pytest
from running import started

from dlrun.port import port

SHOWN = (
    *(
        "(epoch * len(loader) + i) % 7",
        "(epoch * len(loader) + i) // 5",
        "step % 5",
        "100 - step",
        "1000 // len(loader)",
    ),
    *("step + 5", "step - 1", "2 * i + 1", "i ** 2", "-step", "i + 1", "len(loader) - i - 1", "divmod(step, 5)"),
    *("int(step / 5)", "round(step / 7, 2)", "min(step, 100)", "epoch * 100 + i", "step / len(loader)", "i * 4"),
    *("f'{step % 7:3d}'", "'%03d' % (step // 5)", "(step % 7) + 1", "i / 4", "total(i)", "float(step)"),
)
HEAD = """
import torch
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(0)
loader = DataLoader(TensorDataset(torch.randn(48, 3), torch.randn(48, 1)), 4)
model = torch.nn.Linear(3, 1)
opt = torch.optim.SGD(model.parameters(), lr=0.0)
step = 0
def total(at):
    return epoch * len(loader) + at
for epoch in range(2):
    for i, (x, y) in enumerate(loader):
        loss = (model(x) - y).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        step += 1
"""
SCRIPT = (
    HEAD
    + """
        if i % 6 == 5:
            print("in", i, (epoch * len(loader) + i) % len(loader), len(loader) - i - 1, (epoch * len(loader) + i) // 4)
            print("step", step, step % 5, 100 - step, step // 4)
"""
    + "".join(f"    print({text!r}, {text})\n" for text in SHOWN)
)


@pytest.fixture(scope="module")
def lines(tmp_path_factory):
    folder = tmp_path_factory.mktemp("arithmetic")
    folder.joinpath("train.py").write_text(SCRIPT)
    ported = port(SCRIPT)
    assert [d for d in ported.doubts if d.danger != "low"] == []
    folder.joinpath("dist.py").write_text(ported.text)
    serial = started(folder, ["train.py"]).splitlines()
    return serial, {n: started(folder, ["dist.py"], n).splitlines() for n in (2, 3)}


def test_remainders_parts_and_differences_of_counts_are_those_of_the_serial_counts(lines) -> None:
    serial, ranks = lines
    assert len(serial) == 2 * len(SHOWN) + 8
    pairs = [(n, mine, line) for n, shown in ranks.items() for mine, line in zip(shown, serial, strict=True)]
    assert [pair for pair in pairs if pair[1] != pair[2]] == []


@pytest.mark.parametrize("text", ["100 - step", "step % 7", "step // 5"])
def test_what_is_computed_from_a_count_and_has_a_name_is_told(text) -> None:
    ported = port(HEAD + f"    left = {text}\n    print(left)\n")
    doubts = [(d.name, d.why.partition(":")[0]) for d in ported.doubts]
    assert doubts == [("unknown-placement", "left")]
