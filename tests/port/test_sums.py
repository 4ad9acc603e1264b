"""What a script prints of its sums over batches is, on several ranks, what all ranks' batches sum up to."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from running import started
from small import UPDATE

from dlrun.port import Options, port

HEAD = f"""
import torch
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(0)
X = torch.arange(48.0).reshape(24, 2)
y = X.sum(1, keepdim=True)
n, size = len(X), 4
loader = DataLoader(TensorDataset(X, y), batch_size=size)
model = torch.nn.Linear(2, 1)
opt = torch.optim.SGD(model.parameters(), lr=0.0)

{UPDATE}
"""
LOADER = """
kept = []
for epoch in range(2):
    a = b = c = plain = 0.0
    turns = 0
    for xb, yb in loader:
        loss = (model(xb) - yb).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        a += loss.item() * xb.size(0)
        b += loss.item()
        plain = plain + loss.item()
        c += (model(xb) > yb).sum().item()
        turns += 1
    done = max(1, turns)
    print(epoch, a / len(X), a / n, b / len(loader), c / n, 100 * c / X.shape[0], c, b / done)
    kept.append(plain)
print(kept)
"""
RANGE = """
for epoch in range(2):
    total = 0.0
    for i in range(0, n, size):
        xb, yb = X[i:i + size], y[i:i + size]
        total += update(xb, yb) * len(xb)
    print(epoch, total / n, total)
"""
NUMBER = """
for epoch in range(2):
    total = 0.0
    for b in range(n // size):
        total += update(X[b * size:(b + 1) * size], y[b * size:(b + 1) * size])
    print(epoch, total / (n // size), total)
"""
TURNS = """
conf, critics = {"steps": 6}, 2
for epoch in range(2):
    total = 0.0
    for _ in range(conf["steps"]):
        at = torch.randint(0, n, (size,))
        for _ in range(critics):
            total += update(X[at] * 0, y[at] * 0 + 1)
    print(epoch, total / (conf["steps"] * critics), total)
"""
PAIRS = """
for epoch in range(2):
    total, pairs = 0.0, zip(loader, loader)
    for (xb, _), (_, yb) in pairs:
        total += update(xb, yb)
    print(epoch, total / len(loader), total)
"""
STATE = """
state, patience = {"step": 0, "worse": 0}, 2
while state["worse"] < patience:
    seen = 0.0
    for xb, yb in loader:
        seen += update(xb, yb) * len(xb)
        state["step"] += 1
    share = seen / len(X) if patience > 1 else None
    print(state["worse"], share)
    state["worse"] += 1
"""
SPLIT = """
for epoch in range(2):
    total = 0.0
    for xb, yb in zip(torch.split(X, size), torch.split(y, size)):
        total += update(xb, yb)
    print(epoch, total / (n // size))
"""
MEANS = """
whole, own = len(X) // size, len(loader)
for epoch in range(2):
    a = b = c = 0.0
    for xb, yb in loader:
        loss = update(xb, yb)
        a += loss / whole
        b += loss / own
        c += loss / len(loader)
    print(epoch, a, b, c)
"""
FUNCTION = """
import numpy as np
def train(parts=2):
    total, batches, kept = 0.0, len(loader), []
    for xb, yb in loader:
        loss = update(xb, yb)
        total += loss
        kept.append(loss / parts)
    print(total / batches, np.array(kept).mean())
    return total / batches

for epoch in range(2):
    print(epoch, train())
"""
ROWS = """
def table():
    added = 0.0
    for xb, yb in loader:
        added += update(xb, yb)
    got = {"sum": added, "mean": added / len(loader)}
    return got

def either(part, training):
    added = 0.0
    for xb, yb in part:
        loss = (model(xb) - yb).pow(2).mean()
        if training:
            opt.zero_grad()
            loss.backward()
            opt.step()
        added += loss.item()
    return added, training

log, test = {}, DataLoader(TensorDataset(X[:8], y[:8]), batch_size=size)
for epoch in range(2):
    mean, more = train(), table()
    trained, count = either(loader, True)
    tested, count = either(test, False)
    log["last"] = trained
    log["test"] = tested
    log[epoch] = {**more, "epoch": epoch}
    row = [epoch, mean, more["sum"]]
    print("\\t".join(map(str, row)))
print(log)
"""
GRADIENTS = """
for xb, yb in loader:
    for _ in range(2):
        parts = {"square": (model(xb) - yb).pow(2).mean(), "size": (model(xb) - yb).abs().mean()}
        opt.zero_grad()
        sum(parts.values()).backward()
        opt.step()
        if epoch < 0:
            print(parts)
    last, terms = (model(xb) - yb).abs().mean(), []
    terms.append(last)
    squares = [last, (model(xb) - yb).pow(2).mean()]
    opt.zero_grad()
    sum(terms + squares).backward()
    opt.step()
"""
# What a function returns, and what one prints and returns that goes through a share to train and else through all.
RETURNED = """
def learned(part):
    hits, total = 0, 0.0
    for xb, yb in part:
        total += update(xb, yb) * len(xb)
        hits += (model(xb) > yb).sum().item()
    return total, hits

def judged(part):
    hits, total = 0, 0.0
    with torch.no_grad():
        for xb, yb in part:
            hits += (model(xb) < yb).sum().item()
            total += (model(xb) - yb).abs().mean().item() * len(xb)
    return total, hits

def run(part, training, count):
    hits, total = 0, 0.0
    for xb, yb in part:
        loss = (model(xb) - yb).pow(2).mean()
        if training:
            opt.zero_grad()
            loss.backward()
            opt.step()
        total += loss.item() * len(xb)
        hits += (model(xb) < yb).sum().item()
    print(hits, total / count)
    return {"hits": hits, "total": total}

for epoch in range(2):
    total, hits = learned(loader)
    print(float(hits) / len(X), total / len(loader.dataset), f"{hits}")
    total, hits = judged(test)
    print(float(hits) / 8, total / 8, f"{hits}")
    found, other = run(loader, True, len(X)), run(test, False, 8)
    print(found["hits"] / len(X), other["hits"] / 8)
"""


LOOPS = [LOADER, MEANS, RANGE, NUMBER, TURNS, PAIRS, STATE, SPLIT, FUNCTION, ROWS, RETURNED, GRADIENTS]


@pytest.mark.parametrize(("batch", "loops", "most"), [("local", LOOPS, 3), ("global", [LOADER], 2)])
def test_printed_sums_are_those_over_all_ranks_batches(tmp_path: Path, batch: str, loops: list[str], most: int) -> None:
    serial = HEAD + "".join(loops)
    text = port(serial, Options(batch=batch)).text
    assert "    kept = dl.gather(kept, over=loader)" in text or FUNCTION not in loops
    alone = numbers(on_ranks(tmp_path, serial, 1))
    for ranks in range(1, most + 1):
        assert numbers(on_ranks(tmp_path, text, ranks)) == pytest.approx(alone, rel=1e-5)


def numbers(text: str) -> list[float]:
    found = [float(x) for x in re.findall(r"-?\d+\.?\d*(?:e[-+]\d+)?", text)]
    assert len(found) >= 4
    return found


def on_ranks(folder: Path, text: str, ranks: int) -> str:
    script = folder / "script.py"
    script.write_text(text)
    return started(folder, [str(script)], 0 if ranks == 1 else ranks)


HANDED = """
batches = list(zip(X.split(size), y.split(size)))
def run(batches, trains):
    total = 0.0
    for xb, yb in batches:
        loss = (model(xb) - yb).pow(2).mean()
        if trains:
            opt.zero_grad()
            loss.backward()
            opt.step()
        total += loss.item()
    return total / len(batches)
for epoch in range(2):
    print(run(batches[:4], True), run(batches[4:], False))
"""


def test_the_length_of_the_share_that_a_function_is_handed_is_this_ranks():
    text = port(HEAD + HANDED).text
    assert text.index("    total = dl.total(total)") < text.index("    return total / dl.serial_steps(len(batches))\n")
    assert "print(run(dl.shard(batches[:4]), True), run(batches[4:], False))" in text


@pytest.mark.parametrize("count", ["self.n", "max(self.n, 1)"])
def test_a_mean_of_meters_that_begin_anew_and_of_others_that_go_on_is_of_what_both_have_counted(count) -> None:
    script = f"""import torch
from torch.utils.data import DataLoader
class Meter:
    def __init__(self): self.sum, self.n = 0.0, 0
    def add(self, value): self.sum += value; self.n += 1
    def mean(self): return self.sum / {count}
model = torch.nn.Linear(2, 1)
opt = torch.optim.SGD(model.parameters(), 0.1)
whole = Meter()
for epoch in range(2):
    mine = Meter()
    for x, y in DataLoader(data, 4):
        loss = (model(x) - y).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        whole.add(loss.item())
        mine.add(loss.item())
    print(mine.mean(), whole.mean())
"""
    ported = port(script)
    assert "whole.sum, whole.n = dl.total(whole.sum, whole.n, since=" in ported.text and not ported.doubts


def test_the_else_of_a_loop_and_each_break_out_of_it_come_behind_the_reduction() -> None:
    script = f"""import torch
model = torch.nn.Linear(2, 1)
opt = torch.optim.SGD(model.parameters(), 0.1)
{UPDATE}
for epoch in range(2):
    total = 0.0
    for x, y in torch.utils.data.DataLoader(data, 4):
        total += update(x, y)
        if not total < 1e9: print("diverged"); break
        for k in range(3):
            if k: break
        else:
            break
    else:
        print(total)
        continue
    print("left at", total)
"""
    text = port(script).text
    assert 'print("diverged"); total = dl.total(total); break' in text and "if k: break\n" in text
    assert "            total = dl.total(total)  # sums over all ranks' samples\n            break\n" in text
    assert "        total = dl.total(total)  # sums over all ranks' samples\n        print(total)\n" in text
    assert text.count("dl.total(") == 4 and "if not dl.total(total) < 1e9:" in text
