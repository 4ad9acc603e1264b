"""Sums over a rank's samples that a script keeps under keys: ``sums["loss"] += loss.item()``."""

from __future__ import annotations

import pytest
from running import rounded, started

from dlrun.port import Options, port

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
BOTH = 'sums["loss"], sums["right"] = dl.total(sums["loss"], sums["right"])  #'
DICT = 'sums = {"loss": 0.0, "right": 0}'
ADD = 'sums["loss"] += loss.item() * len(x); sums["right"] += (out.argmax(1) == y).sum().item()'
LIST = ADD.replace('"loss"', "0").replace('"right"', "1")


@pytest.mark.parametrize(
    ("begin", "add", "end", "found"),
    [
        (DICT, ADD, 'print(sums["right"] / len(data))', 'sums["right"] = dl.total(sums["right"])'),
        (DICT, ADD, 'print(sums["right"], "of 640")', 'sums["right"] = dl.total(sums["right"])'),
        ("sums = defaultdict(float)", ADD, 'print(sums["loss"] / len(data))', 'sums["loss"] = dl.total(sums["loss"])'),
        ("sums = [0.0, 0]", LIST, "print(sums[1] / len(data))", "sums[1] = dl.total(sums[1])"),
        ("sums = np.zeros(2)", LIST, "print(sums[1] / len(data))", "sums = dl.total(sums)"),
        (DICT, ADD, "print({k: v / len(data) for k, v in sums.items()})", BOTH),
        ("sums = dict(loss=0.0, right=0)", ADD, 'print(sums["loss"] / len(data), sums["right"])', BOTH),
        (DICT, ADD, 'sums["loss"] /= len(data)', 'sums["loss"] = dl.total(sums["loss"])'),
        (DICT, ADD, "for k in sums:\n        sums[k] /= len(data)\n    print(sums)", BOTH),
    ],
)
def test_a_sum_under_a_key_is_that_of_all_ranks(begin: str, add: str, end: str, found: str) -> None:
    text = port(SCRIPT.format(begin=begin, add=add, end=end)).text
    assert f"    {found}" in text and text.count("dl.total(") == 1


@pytest.mark.parametrize("end", ['sums["loss"] /= len(loader)', "for k in sums: sums[k] /= len(loader)"])
def test_what_a_ranks_own_batches_divide_is_divided_by_those_of_all_ranks(end: str) -> None:
    text = port(SCRIPT.format(begin=DICT, add=ADD, end=end + '\n    print(sums["loss"])')).text
    assert "/= dl.serial_steps(len(loader))" in text and 'print(sums["loss"])' in text
    assert ("dl.total(sums" in text) and "dl.average(" not in text


@pytest.mark.parametrize("begun", ["dict(loss=[], right=[])", "defaultdict(list)", "{'loss': [], 'right': []}"])
@pytest.mark.parametrize("saved", ["kept", "dict(kept)"])
def test_lists_of_numbers_by_name_are_saved_with_all_ranks_entries(begun: str, saved: str) -> None:
    add = 'kept["loss"].append(loss.item()); kept["right"].append((out.argmax(1) == y).float().mean().item())'
    source = SCRIPT.format(begin="pass", add=add, end="pass").replace("for epoch", f"kept = {begun}\nfor epoch")
    text = port(f"{source}torch.save({saved}, 'kept.pt')").text
    each = 'kept["loss"], kept["right"] = dl.gather(kept["loss"], kept["right"], since='
    assert each in text and f"dl.save({saved}, 'kept.pt')" in text


MEANS = """for k in sums: sums[k] /= len(loader)
    entry = {"epoch": epoch, **sums}
    log.append(entry)
    print(sums)"""


def test_means_by_name_are_of_all_ranks_where_they_are_kept_or_shown_whole() -> None:
    text = port("log = []" + SCRIPT.format(begin=DICT, add=ADD, end=MEANS)).text
    assert 'sums = {"loss": 0.0, "right": 0}' in text
    assert BOTH in text and "sums[k] /= dl.serial_steps(len(loader))" in text
    assert 'entry = {"epoch": epoch, **sums}' in text and "print(sums)" in text


@pytest.mark.parametrize(
    ("end", "written"),
    [
        ("for k in sums: sums[k] /= len(loader)\n    return sums", "sums[k] /= dl.serial_steps(len(loader))"),
        ("return {k: v / len(loader) for k, v in sums.items()}", "return {k: v / dl.serial_steps(len(loader)) for"),
        ("return {k: v / len(data) for k, v in sums.items()}", "return {k: v / len(data) for"),
    ],
)
def test_means_by_name_that_a_function_returns_are_of_all_ranks_where_they_are_shown(end: str, written: str) -> None:
    source = SCRIPT.format(begin=DICT, add=ADD, end=end).replace("for epoch in range(3)", "def train()")
    text = port(f"{source}for epoch in range(3):\n    print(epoch, train())\n").text
    assert BOTH in text and written in text and "print(epoch, train())" in text


def test_counts_in_a_list_are_of_all_ranks_in_a_row() -> None:
    add = "for i in range(2):\n            sums[i] += (out[:, i] > 0).sum().item()\n        seen += len(x)"
    end = "row = {'epoch': epoch, 'loss': loss.item()}\n    row.update({k: v / seen for k, v in zip('ab', sums)})"
    source = SCRIPT.format(begin="sums, seen = [0] * 2, 0", add=add, end=f"{end}\n    rows.append(row)")
    source = source.replace("for epoch", "import pandas as pd\nrows, other = [], []\nfor epoch")
    text = port(f"{source}print(rows)\n").text
    assert "    sums, seen = dl.total(sums, seen)  #" in text and "    loss = dl.average(loss)  #" in text


@pytest.mark.xfail(strict=True, reason="the mean by group of a data frame is averaged as if it were a number")
def test_a_table_of_pandas_is_no_number() -> None:
    source = SCRIPT.format(begin="pass", add="pass", end="other.append(out)")
    source = source.replace("for epoch", "import pandas as pd\nother = []\nfor epoch")
    text = port(f"{source}print(pd.DataFrame(other).groupby('epoch').loss.mean())\n").text
    assert "print(pd.DataFrame(other).groupby('epoch').loss.mean())" in text


DEFAULTS = """import torch
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(0)
loader = DataLoader(TensorDataset(torch.randn(96, 4), torch.randint(0, 3, (96,))), 8)
model = torch.nn.Linear(4, 3)
opt = torch.optim.SGD(model.parameters(), lr=0.0)
class Steps:
    def make(self, x, y, store={"seen": 0, "loss": 0.0}, at=[0]):
        loss = torch.nn.functional.cross_entropy(model(x), y)
        opt.zero_grad(); loss.backward(); opt.step()
        store["seen"] += len(x)
        store["loss"] += loss.item() * len(x)
        at[0] += len(x)
        return store, at
def tally(y, kinds={}):
    for kind in y.tolist():
        kinds[kind] = kinds.get(kind, 0) + 1
    return kinds
steps = Steps()
for epoch in range(2):
    for x, y in loader:
        store, at = steps.make(x, y)
        kinds = tally(y)
    print(store["seen"], store["loss"] / store["seen"], at[0], *kinds.values())
"""


def test_what_calls_keep_in_an_object_that_a_parameter_defaults_to_is_of_all_ranks(tmp_path) -> None:
    (tmp_path / "train.py").write_text(DEFAULTS)
    ported = port(DEFAULTS)
    (tmp_path / "dist.py").write_text(ported.text)
    assert not ported.doubts
    serial, mine = started(tmp_path, ["train.py"]), started(tmp_path, ["dist.py"], ranks=2)
    assert [rounded(line) for line in mine.splitlines()] == [rounded(line) for line in serial.splitlines()]


def test_a_list_that_a_parameter_defaults_to_is_told() -> None:
    listed = DEFAULTS.replace("at=[0]", "at=[]").replace("at[0] += len(x)", "at.append(loss.item())")
    told = [d.why for d in port(listed.replace("at[0]", "sum(at) / len(at)")).doubts]
    assert told == ["at: local to rank 0: a parameter defaults to it, and calls share it"]


@pytest.mark.parametrize("batch", ["local", "global"])
def test_sums_in_a_list_that_each_iteration_makes_anew_are_told(batch) -> None:
    add = "sums = [a + b for a, b in zip(sums, (loss.item(), (out > 0).sum().item()))]"
    source = SCRIPT.format(begin="sums = [0.0, 0]", add=add, end="print(sums)")
    told = [d.why for d in port(source, Options(batch=batch)).doubts if d.name == "unknown-placement"]
    assert told == ["sums: local to rank 0: it is computed from what this rank has added up so far"]


LISTS = """
import torch
from torch.utils.data import DataLoader, TensorDataset
class Ahead:
    def __init__(self, loader):
        self.loader, self.dataset = loader, loader.dataset
    def __iter__(self):
        for x, y in self.loader:
            yield x, y
torch.manual_seed(0)
x = torch.randn(60, 3)
loader = Ahead(DataLoader(TensorDataset(x[:48], x[:48].sum(1, keepdim=True)), batch_size=6, shuffle=True))
held = Ahead(DataLoader(TensorDataset(x[48:], x[48:].sum(1, keepdim=True)), batch_size=6))
model = torch.nn.Linear(3, 1)
opt = torch.optim.SGD(model.parameters(), lr=0.0)
history = []
def run(loader, train=True):
    total, losses = 0.0, []
    for a, b in loader:
        loss = torch.nn.functional.mse_loss(model(a), b)
        if train:
            opt.zero_grad()
            loss.backward()
            opt.step()
        losses.append(loss.item())
        total += loss.item() * len(a)
    if train:
        history.append(losses)
    return total / len(loader.dataset)
for epoch in range(3):
    print(run(loader), run(held, False), [len(h) for h in history], [sum(h) for h in history])
"""


def test_lists_of_earlier_epochs_stay_and_what_a_wrapper_goes_through_whole_is_added_up_once(tmp_path):
    (tmp_path / "serial.py").write_text(LISTS)
    (tmp_path / "ranks.py").write_text(port(LISTS).text)
    serial = started(tmp_path, ["serial.py"])
    assert [len(line.split()) for line in serial.splitlines()] == [4, 6, 8]
    for two, alone in zip(started(tmp_path, ["ranks.py"], 2).splitlines(), serial.splitlines(), strict=True):
        assert rounded(two) == pytest.approx(rounded(alone), abs=2e-3)


BY_CLASS = """import torch
from torch.utils.data import DataLoader, TensorDataset
loader = DataLoader(TensorDataset(torch.randn(64, 4), torch.randint(0, 3, (64,))), batch_size=4)
model = torch.nn.Linear(4, 3)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
class Meter:
    def __init__(self):
        self.total = 0.0
    def update(self, value):
        self.total += value
for epoch in range(2):
    meters = {}
    for x, y in loader:
        loss = torch.nn.functional.cross_entropy(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        shares = {label: 1.0 for label in y.tolist()}
        for label in shares:
            KEEP.update(shares[label])
    print({label: meter.total for label, meter in meters.items()})
"""


@pytest.mark.parametrize("lines", ["meters.setdefault(label, Meter())", "if label not in meters:", "except KeyError:"])
def test_objects_that_each_rank_makes_for_labels_of_its_own_are_told(lines) -> None:
    keep = "meters.setdefault(label, Meter())"
    if lines.startswith("if"):
        keep = "if label not in meters:\n                meters[label] = Meter()\n            meters[label]"
    if lines.startswith("except"):
        keep = "try:\n                meter = meters[label]\n            except KeyError:\n                meter = "
        keep += "meters[label] = Meter()\n            meter"
    doubts = [d.why for d in port(BY_CLASS.replace("KEEP", keep)).doubts if d.name == "unknown-placement"]
    assert len(doubts) == 1 and "meters.items()" in doubts[0]


BETWEEN = """import numpy as np
import torch
from torch.utils.data import DataLoader, TensorDataset
loader = DataLoader(TensorDataset(torch.randn(96, 4), torch.randn(96, 1)), 8)
model = torch.nn.Linear(4, 1)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
before, sum_of, found = 0.0, 0, []
for x, y in loader:
    loss = (model(x) - y).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    KEEP
    before = loss.item()
print(sum_of, np.mean(found))
"""


@pytest.mark.parametrize(
    "keep",
    [
        "sum_of += abs(loss.item() - before)",
        "sum_of += int(loss.item() > before)",
        "found.append(loss.item() - before)",
    ],
)
def test_what_two_iterations_of_a_rank_differ_by_is_told_where_it_adds_up(keep):
    ported = port(BETWEEN.replace("KEEP", keep))
    assert [doubt.name for doubt in ported.doubts] == ["unknown-placement"]
    assert "dl.total" not in ported.text and "dl.gather" not in ported.text


def test_the_first_of_what_each_key_gets_is_told() -> None:
    keeps = "for key in y[:, 0].round().tolist():\n        if key not in sum_of: sum_of[key] = loss.item()"
    script = BETWEEN.replace("KEEP", keeps).replace("= 0.0, 0, []", "= 0.0, {}, [0]")
    doubts = [doubt.why for doubt in port(script).doubts]
    assert len(doubts) == 1
    assert doubts[0].startswith("sum_of: local to rank 0: it is of the first that this rank finds for a key")


def test_lists_of_keys_that_an_else_begins_are_no_sums() -> None:
    keeps = "for key in y[:, 0].round().tolist():\n        if key in sum_of: sum_of[key] += [key]\n"
    keeps += "        else: sum_of[key] = [key]"
    script = BETWEEN.replace("KEEP", keeps).replace("= 0.0, 0, []", "= 0.0, {}, [0]")
    for shown in ("sum_of", "{key: len(kept) for key, kept in sum_of.items()}"):
        ported = port(script.replace("print(sum_of", f"print({shown}"))
        assert "dl.total" not in ported.text
        assert [doubt.name for doubt in ported.doubts] == ["unknown-placement"]


BY_KEY = [
    "n, hits = sum_of.get(key, [0, 0])\n        sum_of[key] = [n + 1, hits + value]",
    "n, hits = sum_of[key] if key in sum_of else (0, 0)\n        sum_of[key] = n + 1, hits + value",
    "if key not in sum_of or sum_of[key][0] < value: sum_of[key] = [value, 1]",
    "if key not in sum_of: sum_of[key] = {'first': value, 'n': 0}\n        sum_of[key]['n'] += 1",
    "sum_of[key] = [a + b for a, b in zip(sum_of.get(key, [0, 0]), [1, value])]",
    "sum_of.setdefault(key, np.zeros(2))[0] += value",
]


@pytest.mark.parametrize("keep", BY_KEY)
def test_what_is_kept_for_a_key_by_what_was_kept_there_before_is_told(keep) -> None:
    keeps = "for key, value in zip(y[:, 0].round().tolist(), y[:, 0].tolist()):\n        " + keep
    script = BETWEEN.replace("KEEP", keeps).replace("= 0.0, 0, []", "= 0.0, {}, [0]")
    for batch in ("local", "global"):
        ported = port(script, Options(batch=batch))
        assert [doubt.name for doubt in ported.doubts] == ["unknown-placement"]
        assert "dl.gather" not in ported.text and "dl.total" not in ported.text


def test_what_a_counter_takes_the_greatest_of_is_told() -> None:
    keeps = "sum_of |= Counter(y[:, 0].round().tolist())"
    script = "from collections import Counter\n" + BETWEEN.replace("KEEP", keeps).replace(
        "= 0.0, 0, []", "= 0.0, Counter(), [0]"
    )
    for batch in ("local", "global"):
        doubts = [doubt.why for doubt in port(script, Options(batch=batch)).doubts]
        assert doubts == ["sum_of: local to rank 0: each rank has the union, or the difference, of its own counts"]


STATES = """import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
loader = DataLoader(TensorDataset(torch.randn(96, 5, 4), torch.randn(96, 5, 1)), 8)
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm, self.out = nn.LSTM(4, 3, batch_first=True), nn.Linear(3, 1)
    def forward(self, x, states):
        h, states = self.lstm(x, states)
        return self.out(h), states
net = Net()
opt = torch.optim.SGD(net.parameters(), lr=0.1)
states = (torch.zeros(1, 8, 3), torch.zeros(1, 8, 3))
for x, y in loader:
    states = [state.detach() for state in states]
    out, states = net(x, states)
    loss = (out - y).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    print(loss.item())
"""


def test_a_loss_of_states_that_go_on_from_batch_to_batch_is_a_number_of_its_batch() -> None:
    ported = port(STATES)
    assert "print(dl.average(loss.item()))" in ported.text
    assert "unknown-placement" not in [doubt.name for doubt in ported.doubts]
