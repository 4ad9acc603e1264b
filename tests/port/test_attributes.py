"""Numbers that a script keeps in objects: ``state.total += loss.item()``, ``self.right += hits``."""

import pytest

from dlrun.port import port

START = """import torch
from dataclasses import dataclass
from torch.utils.data import DataLoader, TensorDataset
data = TensorDataset(torch.randn(64, 4), torch.randint(3, (64,)))
model = torch.nn.Linear(4, 3)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
criterion = torch.nn.CrossEntropyLoss()
loader = DataLoader(data, 8, shuffle=True)
"""
OUTSIDE = (
    START
    + """
{state}
state = State()
for epoch in range(3):
    state.total, state.right = 0.0, 0
    for x, y in loader:
        opt.zero_grad()
        out = model(x)
        loss = criterion(out, y)
        loss.backward()
        opt.step()
        state.total += loss.item()
        state.right += (out.argmax(1) == y).sum().item()
        state.mean = loss.item() if state.mean is None else 0.9 * state.mean + 0.1 * loss.item()
    print(state.total / len(loader), state.mean, state.right / len(data))
"""
)


@pytest.mark.parametrize(
    "state",
    [
        "@dataclass\nclass State:\n    total: float = 0.0\n    right: int = 0\n    mean: float = None",
        "class State:\n    def __init__(self):\n        self.total, self.right, self.mean = 0.0, 0, None",
        "class Base:\n    mean = None\nclass State(Base):\n    pass",
        "class Base:\n    def __init__(self):\n        self.total, self.right, self.mean = 0.0, 0, None\n"
        "class State(Base):\n    pass",
        "from types import SimpleNamespace\ndef State():\n    return SimpleNamespace(total=0.0, right=0, mean=None)",
        "class State:\n    total, right, mean = 0.0, 0, None",
    ],
)
def test_numbers_that_are_set_on_an_object_from_outside_are_of_all_ranks_where_they_are_shown(state):
    text = port(OUTSIDE.format(state=state)).text
    assert "    state.total, state.right = dl.total(state.total, state.right)" in text
    assert "    state.mean = dl.average(state.mean)" in text
    assert "print(state.total / dl.serial_steps(len(loader)), state.mean, state.right / len(data))" in text


TRAINER = (
    START
    + """
class Trainer:
    def __init__(self):
        self.seen = 0

    def epoch(self):
        self.total, self.right = 0.0, 0
        for x, y in loader:
            opt.zero_grad()
            out = model(x)
            loss = criterion(out, y)
            loss.backward()
            opt.step()
            self.total += loss.item() * len(x)
            self.right += (out.argmax(1) == y).sum().item()
            self.seen += len(x)

    def fit(self):
        for epoch in range(3):
            self.epoch()
            {shown}

Trainer().fit()
"""
)


@pytest.mark.parametrize(
    ("shown", "becomes"),
    [
        (
            "print(self.total / len(data), self.right / len(loader.dataset))",
            "        self.total, self.right = dl.total(self.total, self.right)",
        ),
        ("print(self.right / self.seen)", "        self.seen = dl.total(self.seen, since=seen_before)"),
        ("self.total /= len(data); print(self.total)", "        self.total = dl.total(self.total)"),
    ],
)
def test_sums_that_a_trainer_keeps_are_the_sums_over_all_ranks(shown, becomes):
    text = port(TRAINER.format(shown=shown)).text
    assert becomes in text
    assert shown in text


def test_sums_that_a_method_adds_to_in_each_turn_of_a_loop_are_those_of_all_ranks():
    text = port(
        START
        + """
class Stats:
    def __init__(self):
        self.right, self.losses = 0, []
    def update(self, loss, out, y):
        self.losses.append(loss)
        self.right += (out.argmax(1) == y).sum().item()

for epoch in range(3):
    stats = Stats()
    for x, y in loader:
        opt.zero_grad()
        out = model(x)
        loss = criterion(out, y)
        loss.backward()
        opt.step()
        stats.update(loss.item(), out, y)
    print(f"{stats.right}/{len(data)} {stats.right / len(data):.3f}")
"""
    ).text
    assert "    stats.right = dl.total(stats.right)" in text


def test_an_object_that_is_shown_itself_says_what_is_right_in_all_ranks_samples():
    stats = (
        START
        + """
class Stats:
    def __init__(self):
        self.right, self.loss = 0, 0.0
    def update(self, loss, GIVEN):
        self.loss = loss
        self.right += KEPT
    def __str__(self):
        return f"{self.loss:.3f} {self.right}"

stats = Stats()
for x, y in loader:
    opt.zero_grad()
    out = model(x)
    loss = criterion(out, y)
    loss.backward()
    opt.step()
    stats.update(loss.item(), HANDED)
print(stats)
"""
    )
    own = (
        stats.replace("GIVEN", "out, y")
        .replace("KEPT", "(out.argmax(1) == y).sum().item()")
        .replace("HANDED", "out, y")
    )
    plain = stats.replace("GIVEN", "n").replace("KEPT", "n").replace("HANDED", "len(x)")
    for each in (own, plain):
        assert "stats.right = dl.total(stats.right)" in port(each).text


def test_lists_in_a_dict_of_an_object_are_filled_with_numbers_of_all_ranks():
    text = port(
        START
        + """
class Log:
    def __init__(self):
        self.rows = {"epoch": [], "loss": []}
    def add(self, epoch, loss):
        self.rows["epoch"].append(epoch)
        self.rows["loss"].append(loss)

log = Log()
for epoch in range(3):
    total = 0.0
    for x, y in loader:
        opt.zero_grad()
        loss = criterion(model(x), y)
        loss.backward()
        opt.step()
        total += loss.item()
    log.add(epoch, total / len(loader))
    print(log.rows["loss"][-1])
print(log.rows["loss"])
"""
    ).text
    assert "    total = dl.total(total)" in text
    assert "log.add(epoch, total / dl.serial_steps(len(loader)))" in text
    assert 'print(log.rows["loss"][-1])' in text
    assert 'print(log.rows["loss"])' in text


def test_steps_that_a_new_object_counts_are_steps():
    text = port(
        START
        + """
from dataclasses import replace

@dataclass
class State:
    step: int = 0

state = State()
for epoch in range(3):
    for x, y in loader:
        for group in opt.param_groups:
            group["lr"] = 0.1 * min(1.0, (state.step + 1) / 20)
        opt.zero_grad()
        criterion(model(x), y).backward()
        opt.step()
        state = replace(state, step=state.step + 1)
"""
    ).text
    assert "dl.serial_steps(state.step + 1) / 20" in text


KEPT = (
    START
    + """
{made}
for epoch in range(3):
    {kept}.total, {kept}.count = 0.0, 0
    for x, y in loader:
        opt.zero_grad()
        loss = criterion(model(x), y)
        loss.backward()
        opt.step()
        {kept}.total += loss.item() * len(x)
        {kept}.count += len(x)
        {kept}.losses.append(loss.item())
    print({kept}.total / {kept}.count, {kept}.losses[-1])
torch.save({kept}.losses, "losses.pt")
"""
)


@pytest.mark.parametrize(
    ("made", "kept"),
    [
        ("from types import SimpleNamespace\nlog = SimpleNamespace(losses=[])", "log"),
        ("import types\nlog = types.SimpleNamespace()\nlog.losses = []", "log"),
        ("class Log:\n    losses = []", "Log"),
        ("class Log:\n    def __init__(self):\n        self.losses, self.total = [], 0.0\n\nlog = Log()", "log"),
        ("def log():\n    return log.total\n\nlog.losses = []", "log"),
    ],
)
def test_sums_counts_and_lists_of_namespaces_classes_and_functions_are_of_all_ranks(made, kept):
    text = port(KEPT.format(made=made, kept=kept)).text
    assert f"    {kept}.total, {kept}.count = dl.total({kept}.total, {kept}.count)" in text
    assert f"    {kept}.losses = dl.gather({kept}.losses, since=losses_before, over=loader)" in text
    assert f"print({kept}.total / {kept}.count, {kept}.losses[-1])" in text
    assert f'dl.save({kept}.losses, "losses.pt")' in text


def test_what_methods_of_a_class_itself_keep_is_of_all_ranks():
    text = port(
        START
        + """
class Log:
    losses = []

    @classmethod
    def begin(cls):
        cls.total = 0.0

    @staticmethod
    def add(loss):
        Log.total += loss
        Log.losses.append(loss)

for epoch in range(3):
    Log.begin()
    for x, y in loader:
        opt.zero_grad()
        loss = criterion(model(x), y)
        loss.backward()
        opt.step()
        Log.add(loss.item())
    print(Log.total / len(loader), Log.losses[-1])
"""
    ).text
    assert "    Log.total = dl.total(Log.total)  # sums" in text
    assert "    Log.losses = dl.gather(Log.losses, since=losses_before, over=loader)" in text
    assert "print(Log.total / dl.serial_steps(len(loader)), Log.losses[-1])" in text


def test_numbers_that_a_module_holds_for_others_are_of_all_ranks(tmp_path):
    (tmp_path / "log.py").write_text("total, losses = 0.0, []\n")
    script = (
        START
        + """
import log
for epoch in range(3):
    log.total = 0.0
    for x, y in loader:
        opt.zero_grad()
        loss = criterion(model(x), y)
        loss.backward()
        opt.step()
        log.total += loss.item()
        log.losses.append(loss.item())
    print(log.total / len(loader), log.losses[-1])
"""
    )
    (tmp_path / "train.py").write_text(script)
    text = port(script, path=tmp_path / "train.py").text
    assert "    log.total = dl.total(log.total)" in text
    assert "    log.losses = dl.gather(log.losses, since=losses_before, over=loader)" in text


@pytest.mark.parametrize("base", ["ABC", "Protocol", "unseen.Base"])
def test_an_abstract_callback_that_asks_its_trainer_for_what_it_lacks_keeps_numbers_of_all_ranks(base):
    text = port(
        f"""import unseen
from abc import ABC
from typing import Protocol
{START}
class Callback({base}):
    owner = None
    def __getattr__(self, name):
        return getattr(self.owner, name)
class Recorder(Callback):
    def before_epoch(self):
        self.total = 0.0
    def after_loss(self):
        self.total += self.loss.item()
    def after_epoch(self):
        print(self.total)
class Trainer:
    def __init__(self, callbacks):
        self.callbacks = callbacks
        for callback in self.callbacks:
            callback.owner = self
    def __call__(self, name):
        for callback in self.callbacks:
            getattr(callback, name)()
    def fit(self):
        for epoch in range(3):
            self("before_epoch")
            for x, y in loader:
                self.loss = criterion(model(x), y)
                opt.zero_grad()
                self.loss.backward()
                opt.step()
                self("after_loss")
            self("after_epoch")
Trainer([Recorder()]).fit()
"""
    ).text
    assert "self.callbacks[0].total = dl.total(self.callbacks[0].total" in text


def test_the_best_of_objects_that_epochs_make_anew_is_not_brought_together_again():
    text = port(
        f"""{START}
class Meter:
    def __init__(self):
        self.total, self.seen, self.losses = 0.0, 0, []
    def add(self, loss, n):
        self.total += loss * n
        self.seen += n
        self.losses.append(loss)
best, kept = None, None
for epoch in range(3):
    meter, losses = Meter(), []
    for x, y in loader:
        loss = criterion(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        meter.add(loss.item(), len(x))
        losses.append(loss.item())
    if best is None or meter.total / meter.seen < best.total / best.seen:
        best = meter
    if kept is None or sum(losses) < sum(kept):
        kept = losses
    print(best.total, len(best.losses), sum(kept))
"""
    ).text
    assert "meter.total, meter.seen = dl.total(meter.total, meter.seen)  # sums over all ranks' samples\n" in text
    assert "meter.losses, losses = dl.gather(meter.losses, losses, over=loader)" in text
