"""Tables and ratios of what a loop adds up of a rank's samples: of all ranks behind the loop."""

from __future__ import annotations

import pytest
from running import started

from dlrun.port import port

SCRIPT = """
import numpy as np, torch
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(0)
x = torch.randn(96, 3)
data = TensorDataset(x, (x[:, 0] > 0).long() + (x[:, 1] > 1))
model = torch.nn.Linear(3, 3)
opt = torch.optim.SGD(model.parameters(), RATE)
loader = DataLoader(data, batch_size=8, shuffle=True)
for epoch in range(2):
    BEGIN
    for x, y in loader:
        out = model(x)
        each = torch.nn.functional.cross_entropy(out, y, reduction="none")
        opt.zero_grad()
        each.mean().backward()
        opt.step()
        said = out.argmax(1)
        ADD
    SHOWN
"""
TOTAL = "    {0} = dl.total({0})  # sums over all ranks' samples\n"
ZEROS = "seen = torch.zeros(3, 3)"
READ = "print((seen.diag() / (seen.sum(1) + 1e-9)).tolist())"
COUNTS = "hit, missed = 0, 0"
HITS = "hit += ((said == 1) & (y == 1)).sum().item()\n        missed += ((said != 1) & (y == 1)).sum().item()"
RATIO = "print(hit / (hit + missed), 2 * hit / max(1, 2 * hit + missed))"


def script(begin: str, add: str, shown: str, rate: str = "0.1") -> str:
    named = (("BEGIN", begin), ("ADD", add), ("SHOWN", shown), ("RATE", rate))
    text = SCRIPT
    for name, value in named:
        text = text.replace(name, value)
    return text


ADDED = [
    (ZEROS, "seen += torch.bincount(3 * y + said, minlength=9).view(3, 3)", READ, ["seen"]),
    (ZEROS, "seen = seen + torch.bincount(3 * y + said, minlength=9).view(3, 3)", READ, ["seen"]),
    (ZEROS, "for a, b in zip(y, said):\n            seen[a, b] += 1", READ, ["seen"]),
    ("seen = torch.zeros(3)", "seen.index_add_(0, y, each.detach())", "print((100 * seen).round().tolist())", ["seen"]),
    ("seen = torch.zeros(3)", "seen.scatter_add_(0, y, torch.ones(len(y)))", "print(seen.tolist())", ["seen"]),
    ("seen = np.zeros(3)", "np.add.at(seen, y.numpy(), 1)", "print(seen.tolist())", ["seen"]),
    ("seen = [0] * 3", "for a in y.tolist():\n            seen[a] += 1", "print(seen)", ["seen"]),
    ("seen = {0: 0, 1: 0, 2: 0}", "for a in y.tolist():\n            seen[a] += 1", "print(seen)", ["seen"]),
    (
        "seen = {k: 0 for k in range(3)}",
        "for a, b in zip(y.tolist(), said.tolist()):\n            if a == b:\n                seen[a] += 1",
        "print({k: v / 96 for k, v in seen.items()})",
        ["seen"],
    ),
    (COUNTS, HITS, RATIO, ["hit", "missed"]),
    (
        "total, tokens, seen = 0.0, 0, 0",
        "n = (y > 0).sum().item()\n        total += each[y > 0].sum().item()\n        tokens += n\n"
        "        seen += len(x)",
        "print(round(total / tokens, 4), seen)",
        ["total", "tokens", "seen"],
    ),
]


@pytest.mark.parametrize(("begin", "add", "shown", "names"), ADDED)
def test_what_a_loop_adds_up_of_samples_is_of_all_ranks_behind_it(begin, add, shown, names, tmp_path) -> None:
    ported = port(script(begin, add, shown))
    assert TOTAL.format(", ".join(names)) in ported.text
    assert "dl.average" not in ported.text
    assert not [d for d in ported.doubts if d.name == "unknown-placement"]
    still = script(begin, add, shown, rate="0.0")  # one model throughout: what is shown is of it
    (tmp_path / "train.py").write_text(still)
    (tmp_path / "train_dist.py").write_text(port(still).text)
    assert started(tmp_path, ["train_dist.py"], 3) == started(tmp_path, ["train.py"])


@pytest.mark.parametrize(
    ("begin", "add", "shown", "written"),
    [
        (ZEROS, "seen[y, said] += 1\n        print(seen.sum())", READ, "print(dl.total(seen.sum()))"),
        ("if epoch == 0:\n        " + ZEROS, "seen[y, said] += 1", READ, "seen = dl.total(seen, since=seen_before)"),
        (ZEROS, "seen[y, said] += 1", "print(seen / len(loader))", "print(seen / dl.serial_steps(len(loader)))"),
        (COUNTS, HITS + "\n        print(hit)", RATIO, "print(dl.total(hit))"),
    ],
)
def test_what_is_read_on_the_way_or_goes_on_is_of_all_ranks_too(begin, add, shown, written) -> None:
    ported = port(script(begin, add, shown))
    assert written in ported.text
    assert not [d for d in ported.doubts if d.name == "unknown-placement"]


@pytest.mark.parametrize(
    ("begin", "shown"),
    [
        ("seen.zero_()", READ),
        ("seen[:] = 0", READ),
        ("pass", f"{READ}\n    seen.fill_(0)"),
    ],
)
def test_a_table_that_the_script_empties_in_every_epoch_is_of_all_ranks_behind_the_loop(begin, shown, tmp_path) -> None:
    still = script(begin, "for a, b in zip(y, said):\n            seen[a, b] += 1", shown, rate="0.0")
    still = still.replace("for epoch", f"{ZEROS}\nfor epoch")
    ported = port(still)
    assert "    seen = dl.total(seen" in ported.text
    (tmp_path / "train.py").write_text(still)
    (tmp_path / "train_dist.py").write_text(ported.text)
    assert started(tmp_path, ["train_dist.py"], 3) == started(tmp_path, ["train.py"])


def test_a_table_that_goes_on_over_the_epochs_gets_what_each_epoch_adds_of_all_ranks() -> None:
    goes_on = script("pass", "seen[y, said] += 1", READ).replace("for epoch", f"{ZEROS}\nfor epoch")
    assert "    seen = dl.total(seen, since=seen_before)" in port(goes_on).text


RUN = """
import torch
from torch.utils.data import DataLoader
model = torch.nn.Linear(3, 3)
opt = torch.optim.SGD(model.parameters(), 0.1)
def run(loader, train):
    hit, said = 0, 0
    for x, y in loader:
        out = model(x)
        if train:
            torch.nn.functional.cross_entropy(out, y).backward()
            opt.step()
        hit += ((out.argmax(1) == 1) & (y == 1)).sum().item()
        said += (out.argmax(1) == 1).sum().item()
    return hit / said
for epoch in range(3):
    precision = run(DataLoader(data, batch_size=8, shuffle=True), True)
    held = run(DataLoader(test, batch_size=8), False)
    print(precision, held)
"""


def test_a_function_that_also_evaluates_adds_up_over_the_ranks_where_its_loader_is_a_share() -> None:
    text = port(RUN).text
    assert "    hit, said = dl.total(hit, said" in text
    assert "    print(precision, held)" in text


@pytest.mark.parametrize(
    ("begin", "add", "shown"),
    [
        ("args = argparse.Namespace(hit=0)", "vars(args)['hit'] += (said == y).sum().item()", "print(args.hit)"),
        ("hit = 0", "globals()['hit'] += (said == y).sum().item()", "print(hit)"),
        ("box = Box()", "box.__dict__['hit'] += (said == y).sum().item()", "print(box.hit)"),
    ],
)
def test_what_is_added_to_a_name_by_its_text_is_of_all_ranks(tmp_path, begin: str, add: str, shown: str) -> None:
    made = "import argparse\nclass Box:\n    def __init__(self):\n        self.hit = 0\n"
    text = made + script(begin, add, shown, rate="0.0")
    (tmp_path / "train.py").write_text(text)
    ported = port(text)
    (tmp_path / "dist.py").write_text(ported.text)
    assert not ported.doubts and "dl.total(" in ported.text
    assert started(tmp_path, ["dist.py"], 2) == started(tmp_path, ["train.py"])


@pytest.mark.parametrize(
    ("add", "shown", "told"),
    [
        ("seen.loc[0, 'a'] += each.mean().item()", "print(seen.loc[0, 'a'])", "seen.loc[0, 'a']"),
        ("seen.loc[len(seen)] = [each.mean().item()]", "print(seen)", "seen"),
        ("seen.loc[len(seen)] = [each.mean().item()]", "seen.to_csv('seen.csv')", "seen"),
        ("seen.at[0, 'a'] = seen.at[0, 'a'] + 1", "print(seen.at[0, 'a'])", "seen.at[0, 'a']"),
    ],
)
def test_what_a_librarys_table_keeps_by_place_is_told(add: str, shown: str, told: str) -> None:
    ported = port("import pandas as pd\n" + script("seen = pd.DataFrame({'a': [0.0]})", add, shown))
    doubts = [d.why.partition(":")[0] for d in ported.doubts if d.name == "unknown-placement"]
    assert doubts == [told]


REDRAWN = """import torch
from torch.utils.data import DataLoader, RandomSampler, TensorDataset, WeightedRandomSampler
data = TensorDataset(torch.randn(64, 4), torch.arange(64))
loader = DataLoader(data, batch_size=8, OPTIONS)
net = torch.nn.Linear(4, 1)
opt = torch.optim.SGD(net.parameters(), lr=0.1)
table, it = torch.zeros(64), iter(loader)
for LOOP
    each = net(xb).pow(2).squeeze(1)
    opt.zero_grad()
    each.mean().backward()
    opt.step()
    table[idx] = each.detach()
print(table.sum().item())
"""
ONE = "xb, idx in loader:"
STEPS = "step in range(24):\n    it = it if step % 8 else iter(loader)\n    xb, idx = next(it)"


@pytest.mark.parametrize(
    ("options", "loop", "told"),
    [
        ("shuffle=True", ONE, False),
        ("sampler=RandomSampler(data)", ONE, False),
        ("sampler=WeightedRandomSampler(torch.ones(64), 96)", ONE, True),
        ("sampler=RandomSampler(data, replacement=True)", ONE, True),
        ("shuffle=True", STEPS, True),
    ],
)
def test_entries_of_samples_that_are_drawn_more_than_once_are_told(options, loop, told):
    found = port(REDRAWN.replace("OPTIONS", options).replace("LOOP", loop))
    assert ([d.name for d in found.doubts] == ["unknown-placement"]) is told
    assert ("dl.total(table)" in found.text) is not told
