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
