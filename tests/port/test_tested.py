"""Counts of local samples: one by one under a test, by masks, in functions of the script and outside of them."""

import pytest
from running import joined

from dlrun.port import port

SCRIPT = """import json
import torch
from torch.utils.data import DataLoader, TensorDataset
data = TensorDataset(torch.rand(640, 10), torch.randint(2, (640,)))
loader = DataLoader(data, batch_size=32, shuffle=True)
model = torch.nn.Linear(10, 2)
opt = torch.optim.SGD(model.parameters(), 0.1)


def judged(found, y):
    {body}


for epoch in range(3):
    right, mean = 0, 0.0
    for x, y in loader:
        out = model(x)
        loss = torch.nn.functional.cross_entropy(out, y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        found = out.argmax(1)
        {count}
        mean += judged(found, y)
    print({shown})
"""
IN_TURN = "for f, label in zip(found, y):\n            if f == label:\n                right += 1"
BY_NUMBER = "for i in range(len(y)):\n            if y[i] >= 0 and found[i] == y[i]: right = right + 1"
FUNCTION = "n = 0\n    for f, label in zip(found, y):\n        if f == label: n += 1\n    return n / len(y)"
MASK = "hit = torch.zeros(len(y))\n    hit[found == y] = 1\n    return hit.mean().item()"


@pytest.mark.parametrize(
    "count",
    [
        IN_TURN,
        BY_NUMBER,
        "right += sum(1 for f, t in zip(found, y) if f == t)",
        "right += sum(1 if f == t else 0 for f, t in zip(found, y))",
        "right += sum(f == t for f, t in zip(found, y))",
    ],
)
def test_samples_that_are_counted_one_by_one_are_those_of_all_ranks(count) -> None:
    shown = "right, right / len(data), right / len(loader)"
    text = port(SCRIPT.format(body="return 0.0", count=count, shown=shown)).text
    assert "    right = dl.total(right)" in text
    assert "print(right, right / len(data), right / dl.serial_steps(len(loader)))" in text


@pytest.mark.parametrize("body", [FUNCTION, MASK, "return sum(f == t for f, t in zip(found, y)) / len(y)"])
def test_what_a_function_counts_of_a_batch_is_a_mean_over_the_ranks(body) -> None:
    text = port(SCRIPT.format(body=body, count="pass", shown="mean / len(loader), judged(found, y)")).text
    assert "    mean = dl.total(mean)" in text
    assert "print(mean / dl.serial_steps(len(loader)), dl.average(judged(found, y)))" in text


def test_what_epochs_are_tested_for_is_no_count_of_samples() -> None:
    count = "late = 1 if epoch > 1 else 0\n        if epoch > 1: right += 1"
    text = port(SCRIPT.format(body="return 0.0", count=count, shown="right, late")).text
    assert "print(right, late)" in text


SPLITS = """import json
import torch
from torch.utils.data import DataLoader
loaders = {"train": DataLoader(data, batch_size=8, shuffle=True), "valid": DataLoader(other, batch_size=8)}
model = torch.nn.Linear(2, 1)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(3):
    for split in ("train", "valid"):
        kept = {"found": []}
        losses = []
        for x, y in loaders[split]:
            out = model(x)
            loss = (out - y).pow(2).mean()
            if split == "train":
                opt.zero_grad()
                loss.backward()
                opt.step()
            ADD
            losses.append(loss.item())
        SAVE
"""


@pytest.mark.parametrize(
    ("add", "save"),
    [
        ('kept["found"] += out.tolist()', 'json.dump(kept, open("found.json", "w"))'),
        ('kept["found"].append(out.detach())', 'torch.save(torch.cat(kept["found"]), "found.pt")'),
        ('kept["found"] += out.tolist()', 'torch.save({"n": len(kept["found"])}, "n.pt")'),
    ],
)
def test_samples_that_were_gathered_and_are_saved_are_those_of_all_ranks(add, save) -> None:
    ported = port(SPLITS.replace("ADD", add).replace("SAVE", save))
    assert 'kept["found"] = dl.gather(kept["found"]' in ported.text
    assert not [d for d in ported.doubts if d.name == "unknown-placement"]


TABLE = """import torch
from collections import defaultdict
from torch.utils.data import DataLoader
NAMES = ["near", "far"]
loader = DataLoader(data, batch_size=8, shuffle=True)
model = torch.nn.Linear(2, 1)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
def count(found, y, sums):
    for f, label in zip(found, y):
        error = abs(float(f) - float(label))
        if error < 1:
            sums["near"] += 1
        sums["far"] += error
def epoch():
    sums = defaultdict(float)
    met = {"loss": 0.0, "n": 0}
    for x, y in loader:
        out = model(x)
        loss = (out - y).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        met["loss"] += loss.item() * len(x)
        met["n"] += len(x)
        count(out, y, sums)
    print(" ".join(f"{k}={sums[k] / met['n']:.3f}" for k in TURNS))
    return {k: v / met["n"] for k, v in met.items() if k != "n"}
for turn in range(3):
    shown = epoch()
    print(", ".join(f"{k}={v:.4f}" for k, v in shown.items()))
"""


@pytest.mark.parametrize("turns", ['("near", "far")', "NAMES"])
def test_numbers_by_name_that_functions_fill_and_return_are_sums_over_all_ranks(turns) -> None:
    text = port(TABLE.replace("TURNS", turns)).text
    names = """met["loss"], met["n"], sums["near"], sums["far"]"""
    assert f"    {names} = dl.total({names})" in joined(text)
    assert "dl.average(" not in text


def test_the_best_so_far_and_when_it_was_may_be_kept_in_one_tuple():
    script = """import torch
from torch.utils.data import DataLoader, TensorDataset
loader = DataLoader(TensorDataset(torch.randn(96, 4)), 8)
held = torch.randn(16, 4)
model = torch.nn.Linear(4, 1)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
best, step = (float("inf"), -1), 0
for x, in loader:
    loss = model(x).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    step += 1
    if step % 4 == 0:
        score = model(held).pow(2).mean().item()
        if score < best[0]:
            best = (score, step)
            torch.save({"step": step, "model": model.state_dict()}, "best.pt")
"""
    found = port(script)
    assert '"step": dl.serial_steps(step)' in found.text and not found.doubts
