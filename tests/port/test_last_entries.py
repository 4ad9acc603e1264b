"""What an iteration has just put into a list, a dict or an array, and shows from there, is that of all ranks."""

from __future__ import annotations

import pytest
from running import rounded, started

from dlrun.port import Options, port

HEAD = """import collections
import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(0)
X, Y = torch.randn(144, 4), torch.randint(0, 3, (144,))
net = nn.Linear(4, 3)
opt = torch.optim.SGD(net.parameters(), 0.0)
class History:
    def __init__(self): self.losses = []
    def add(self, loss): self.losses.append(loss)
    def last(self): return self.losses[-1]
history = History()
"""
LOOP = """
for i, (x, y) in enumerate(DataLoader(TensorDataset(X, Y), 12)):
    loss = F.cross_entropy(net(x), y)
    opt.zero_grad(); loss.backward(); opt.step()
"""
SHOWN = {  # what is made before the loop, what an iteration does with its loss, and what it shows
    "a list": ("losses = []", "losses.append(loss.item())", "losses[-1]"),
    "a list with a first entry": ("losses = [0.0]", "losses.append(loss.item())", "losses[-1]"),
    "a list by its number": ("losses = []", "losses.append(loss.item())", "losses[i]"),
    "added to": ("losses = []", "losses += [loss.item()]", "losses[-1]"),
    "made anew": ("losses = []", "losses = losses + [loss.item()]", "losses[-1]"),
    "extended": ("losses = []", "losses.extend([loss.item()])", "losses[-1]"),
    "a deque": ("losses = collections.deque(maxlen=50)", "losses.append(loss.item())", "losses[-1]"),
    "in a dict": ("hist = collections.defaultdict(list)", "hist['loss'].append(loss.item())", "hist['loss'][-1]"),
    "in an object": ("pass", "history.add(loss.item())", "history.last()"),
    "two sites": (
        "losses = []",
        "losses.append(loss.item()) if i % 2 else losses.append(0 - loss.item())",
        "losses[-1]",
    ),
    "a name for it": ("losses = []", "losses.append(loss.item()); last = losses[-1]", "last"),
    "taken out": ("losses = []", "losses.append(loss.item())", "losses.pop()"),
    "a row that is a dict": ("rows = []", "rows.append({'loss': loss.item(), 'i': i})", "rows[-1]['loss']"),
    "a row that is a tuple": ("rows = []", "rows.append((i, loss.item()))", "rows[-1][1]"),
    "a row that is a list": ("rows = []", "rows.append([loss.item(), i])", "rows[-1][0]"),
    "an array": ("log = np.zeros(100)", "log[i] = loss.item()", "log[i]"),
    "a tensor": ("log = torch.zeros(100)", "log[i] = loss.item()", "log[i]"),
}


def _script(name: str) -> str:
    before, kept, shown = SHOWN[name]
    return HEAD + before + LOOP + f"    {kept}\n    print({shown})\n"


@pytest.mark.parametrize("batch", ["local", "global"])
@pytest.mark.parametrize("name", SHOWN)
def test_the_entry_of_an_iteration_is_averaged(name, batch) -> None:
    ported = port(_script(name), Options(batch=batch))
    assert "dl.average(" in ported.text and "dl.total(" not in ported.text


def test_a_row_of_counts_and_losses_is_told() -> None:
    script = HEAD + "rows = []" + LOOP + "    rows.append({'loss': loss.item(), 'i': i})\n    print(rows[-1])\n"
    assert "unknown-placement" in [d.name for d in port(script).doubts]


def test_entries_by_the_number_of_a_step_are_those_of_one_process(tmp_path) -> None:
    parts = ("a list", "made anew", "a row that is a tuple", "an array", "a dict")
    more = {**SHOWN, "a dict": ("table = {}", "table[i] = loss.item()", "table[i]")}
    begun = "\n".join(more[name][0] for name in parts)
    body = "".join(f"    {more[name][1]}\n" for name in parts)
    shown = ", ".join(more[name][2] for name in parts)
    script = HEAD + begun + LOOP + body + f"    print({shown})\n"
    ported = port(script, Options(batch="global"))
    assert not ported.doubts
    (tmp_path / "train.py").write_text(script)
    (tmp_path / "dist.py").write_text(ported.text)
    serial, mine = started(tmp_path, ["train.py"]), started(tmp_path, ["dist.py"], ranks=2)
    assert list(map(rounded, mine.splitlines())) == list(map(rounded, serial.splitlines()))


IN_AN_ORDER = {  # what no reduction of the ranks' numbers makes, within the loop
    "where the least is": ("losses = []", "losses.append(loss.item())", "losses.index(min(losses))"),
    "where an array has it": ("losses = []", "losses.append(loss.item())", "np.array(losses).argmin()"),
    "the largest of a sorted list": ("losses = []", "losses.append(loss.item())", "sorted(losses)[-1]"),
    "the most common": ("kinds = collections.Counter()", "kinds.update(y.tolist())", "kinds.most_common(1)[0][1]"),
    "how many kinds": ("kinds = set()", "kinds.update(y.tolist())", "len(kinds)"),
    "a median": ("losses = []", "losses.append(loss.item())", "np.median(losses)"),
}


@pytest.mark.parametrize("batch", ["local", "global"])
@pytest.mark.parametrize("name", IN_AN_ORDER)
def test_what_goes_by_the_order_of_this_ranks_entries_is_told(name, batch) -> None:
    before, kept, shown = IN_AN_ORDER[name]
    ported = port(HEAD + before + LOOP + f"    {kept}\n    print({shown})\n", Options(batch=batch))
    assert "unknown-placement" in [d.name for d in ported.doubts] and f"print({shown})" in ported.text


SO_FAR = """
total, hits, seen, table, kinds = 0.0, 0, 0, np.zeros((3, 3), int), torch.zeros(3)
for epoch in range(2):
    for i, (x, y) in enumerate(DataLoader(TensorDataset(X, Y), 12)):
        out = net(x); loss = F.cross_entropy(out, y)
        opt.zero_grad(); loss.backward(); opt.step()
        total += loss.item() * len(x); hits += (out.argmax(1) == y).sum().item(); seen += len(x)
        kinds += torch.bincount(y, minlength=3)
        for t, p in zip(y.tolist(), out.argmax(1).tolist()): table[t, p] += 1
        if i % 4 == 3:
            print(total / seen, hits / seen, 100 * hits / seen, seen)
            print((table / table.sum()).tolist(), (kinds / kinds.sum()).tolist())
"""


@pytest.mark.parametrize("batch", ["local", "global"])
def test_sums_over_epochs_are_shown_side_by_side_within_a_loop(batch, tmp_path) -> None:
    ported = port(HEAD + SO_FAR, Options(batch=batch))
    assert [d.name for d in ported.doubts] == []
    (tmp_path / "train.py").write_text(HEAD + SO_FAR)
    (tmp_path / "dist.py").write_text(ported.text)
    serial, mine = started(tmp_path, ["train.py"]), started(tmp_path, ["dist.py"], ranks=2)
    assert list(map(rounded, mine.splitlines())) == list(map(rounded, serial.splitlines()))
