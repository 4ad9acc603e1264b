"""Sums over a rank's samples that a script keeps under keys: ``sums["loss"] += loss.item()``."""

from __future__ import annotations

import pytest

from dlrun.port import port

SCRIPT = """
import numpy as np, torch
from collections import defaultdict
from torch.utils.data import DataLoader, TensorDataset
data = TensorDataset(torch.rand(640, 10), torch.randint(2, (640,)))
loader = DataLoader(data, batch_size=32, shuffle=True)
model = torch.nn.Linear(10, 2)
opt = torch.optim.SGD(model.parameters(), 0.1)
ce = torch.nn.CrossEntropyLoss()
for epoch in range(3):
    {begin}
    for x, y in loader:
        out = model(x)
        loss = ce(out, y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        {add}
    {end}
"""
DICT = 'sums = {"loss": 0.0, "right": 0}'
ADD = 'sums["loss"] += loss.item() * len(x); sums["right"] += (out.argmax(1) == y).sum().item()'
LIST = ADD.replace('"loss"', "0").replace('"right"', "1")


@pytest.mark.parametrize(
    ("begin", "add", "end", "found"),
    [
        (DICT, ADD, 'print(sums["right"] / len(data))', 'print(dl.total(sums["right"]) / len(data))'),
        (DICT, ADD, 'print(sums["right"], "of 640")', 'print(dl.total(sums["right"]), "of 640")'),
        ("sums = defaultdict(float)", ADD, 'print(sums["loss"] / len(data))',
         'print(dl.total(sums["loss"]) / len(data))'),
        ("sums = [0.0, 0]", LIST, "print(sums[1] / len(data))", "print(dl.total(sums[1]) / len(data))"),
        ("sums = np.zeros(2)", LIST, "print(sums[1] / len(data))", "print(dl.total(sums[1]) / len(data))"),
        (DICT, ADD, "print({k: v / len(data) for k, v in sums.items()})",
         "print({k: dl.total(v) / len(data) for k, v in sums.items()})"),
        ("sums = dict(loss=0.0, right=0)", ADD, 'print(sums["loss"] / len(data), sums["right"])',
         'print(dl.total(sums["loss"]) / len(data), dl.total(sums["right"]))'),
        (DICT, ADD, 'sums["loss"] /= len(data)', 'sums["loss"] = dl.total(sums["loss"])'),
        (DICT, ADD, "for k in sums:\n        sums[k] /= len(data)", "sums[k] = dl.total(sums[k])"),
    ],
)  # fmt: skip
def test_a_sum_under_a_key_is_that_of_all_ranks(begin: str, add: str, end: str, found: str) -> None:
    text = port(SCRIPT.format(begin=begin, add=add, end=end)).text
    assert found in text


@pytest.mark.parametrize("end", ['sums["loss"] /= len(loader)', "for k in sums: sums[k] /= len(loader)"])
def test_what_a_ranks_own_batches_divide_is_a_mean(end: str) -> None:
    text = port(SCRIPT.format(begin=DICT, add=ADD, end=end + '\n    print(sums["loss"])')).text
    assert 'print(dl.average(sums["loss"]))' in text and "dl.total" not in text


@pytest.mark.parametrize("begun", ["dict(loss=[], right=[])", "defaultdict(list)", "{'loss': [], 'right': []}"])
@pytest.mark.parametrize(("saved", "written"), [("kept", "dl.average(kept)"), ("dict(kept)", "dict(dl.average(kept))")])
def test_lists_of_numbers_by_name_are_saved_as_means_over_the_ranks(begun: str, saved: str, written: str) -> None:
    add = 'kept["loss"].append(loss.item()); kept["right"].append((out.argmax(1) == y).float().mean().item())'
    source = SCRIPT.format(begin="pass", add=add, end="pass").replace("for epoch", f"kept = {begun}\nfor epoch")
    text = port(f"{source}torch.save({saved}, 'kept.pt')").text
    assert f"dl.save({written}, 'kept.pt')" in text


MEANS = """for k in sums: sums[k] /= len(loader)
    entry = {"epoch": epoch, **sums}
    log.append(entry)
    print(sums)"""


def test_means_by_name_are_of_all_ranks_where_they_are_kept_or_shown_whole() -> None:
    text = port("log = []" + SCRIPT.format(begin=DICT, add=ADD, end=MEANS)).text
    assert 'sums = {"loss": 0.0, "right": 0}' in text
    assert 'entry = {"epoch": epoch, **dl.average(sums)}' in text and "print(dl.average(sums))" in text


@pytest.mark.parametrize(
    ("end", "written"),
    [
        ("for k in sums: sums[k] /= len(loader)\n    return sums", "return dl.average(sums)"),
        ("return {k: v / len(loader) for k, v in sums.items()}", "return {k: dl.average(v / len(loader)) for"),
        ("return {k: v / len(data) for k, v in sums.items()}", "return {k: dl.total(v) / len(data) for"),
    ],
)
def test_means_by_name_that_a_function_returns_are_of_all_ranks_where_they_are_shown(end: str, written: str) -> None:
    source = SCRIPT.format(begin=DICT, add=ADD, end=end).replace("for epoch in range(3)", "def train()")
    assert written in port(f"{source}for epoch in range(3):\n    print(epoch, train())\n").text


def test_counts_in_a_list_are_of_all_ranks_in_a_row_and_a_table_of_pandas_is_no_number() -> None:
    add = "for i in range(2):\n            sums[i] += (out[:, i] > 0).sum().item()\n        seen += len(x)"
    end = "row = {'epoch': epoch, 'loss': loss.item()}\n    row.update({k: v / seen for k, v in zip('ab', sums)})"
    source = SCRIPT.format(begin="sums, seen = [0] * 2, 0", add=add, end=f"{end}\n    rows.append(row)")
    source = source.replace("for epoch", "import pandas as pd\nrows, other = [], []\nfor epoch")
    text = port(f"{source}    other.append(out)\nprint(pd.DataFrame(other).groupby('epoch').loss.mean())\n").text
    assert "row.update({k: dl.average(v / seen) for k, v in zip('ab', sums)})" in text
    assert "print(pd.DataFrame(other).groupby('epoch').loss.mean())" in text
