"""Functions and methods that a training loop finds in lists and dicts, or by their names: callbacks and hooks."""

import pytest
from running import joined

from dlrun.port import Options, port

START = """import torch
from collections import defaultdict
from torch.utils.data import DataLoader, TensorDataset
data = TensorDataset(torch.randn(64, 4), torch.randint(3, (64,)))
model = torch.nn.Linear(4, 3)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
criterion = torch.nn.CrossEntropyLoss()
"""
TRAINER = (
    START
    + """
class WarmUp:
    def on_batch_end(self, t):
        for group in opt.param_groups:
            group["lr"] = 0.1 * min(1.0, (t.done + 1) / 20)

class Recorder:
    def __init__(self):
        self.losses = []
    def on_batch_end(self, t):
        self.losses.append(t.loss.item())
    def on_epoch_end(self, t):
        print(sum(self.losses) / len(self.losses))

class Trainer:
    def __init__(self, callbacks):
        self.callbacks, self.done = callbacks, 0
    {runs}
    def fit(self):
        for self.epoch in range(3):
            for self.x, self.y in DataLoader(data, 8, shuffle=True):
                opt.zero_grad()
                self.loss = criterion(model(self.x), self.y)
                self.loss.backward()
                opt.step()
                {batch}
                self.done += 1
            {epoch}

Trainer([WarmUp(), Recorder()]).fit()
"""
)
BY_NAME = """def __call__(self, event):
        for callback in self.callbacks:
            METHOD"""


@pytest.mark.parametrize(
    "method",
    [
        "getattr(callback, event)(self)",
        "getattr(callback, event, lambda t: None)(self)",
        "method = getattr(callback, f'on_{event[3:]}', None)\n            if method is not None: method(self)",
    ],
)
def test_methods_that_are_taken_by_name_see_the_trainer_that_calls_them(method):
    runs = BY_NAME.replace("METHOD", method)
    text = port(TRAINER.format(runs=runs, batch="self('on_batch_end')", epoch="self('on_epoch_end')")).text
    assert "dl.serial_steps(t.done + 1) / 20" in text
    assert "self.callbacks[1].losses = dl.gather(self.callbacks[1].losses" in text


def test_a_loop_that_gives_its_batches_to_an_object_goes_through_none_of_its_methods():
    turn = """for self.x, self.y in DataLoader(data, 8, shuffle=True):
                self.update()
            {epoch}

    def update(self):
        opt.zero_grad()
        self.out = model(self.x)
        self.loss = criterion(self.out, self.y)
        self.loss.backward()
        opt.step()
        {batch}
        self.done += 1
"""
    begin, _, end = TRAINER.partition("for self.x")
    source = begin + turn + end[end.index("\nTrainer([") :]
    source = source.replace("self.losses = []", "self.losses, self.right, self.seen = [], 0, 0")
    source = source.replace(
        "self.losses.append(t.loss.item())",
        """self.losses.append(t.loss.item())
        self.right += (t.out.argmax(1) == t.y).sum().item()
        self.seen += len(t.y)""",
    ).replace("len(self.losses))", "len(self.losses), self.right / self.seen)")
    runs = BY_NAME.replace("METHOD", "getattr(callback, event)(self)")
    text = port(source.format(runs=runs, batch="self('on_batch_end')", epoch="self('on_epoch_end')")).text
    assert "dl.serial_steps(t.done + 1) / 20" in text
    kept = "self.callbacks[1].right, self.callbacks[1].seen"
    assert f"{kept} = dl.total({kept}, since=right_before)" in joined(text)
    assert "self.callbacks[1].losses = dl.gather(self.callbacks[1].losses" in text


HOOKED = (
    START
    + """
MADE

def track(loss, out, y):
    history.append(loss.item())

def show(loss, out, y):
    print("loss", sum(history[-25:]) / len(history[-25:]))

def score(net):
    print("norm", net.weight.norm().item())

history = []
for epoch in range(3):
    for x, y in DataLoader(data, 8, shuffle=True):
        opt.zero_grad()
        out = model(x)
        loss = criterion(out, y)
        loss.backward()
        opt.step()
        for hook in TAKEN:
            hook(loss, out, y)
"""
)
DECORATED = """
HOOKS = {"batch": [], "epoch": []}
def on(event):
    def add(function):
        HOOKS[event].append(function)
        return function
    return add
"""


@pytest.mark.parametrize(
    ("made", "taken", "filled"),
    [
        ("hooks = []", "hooks", "hooks.append(track)\nhooks.append(show)"),
        ("HOOKS = defaultdict(list)", "HOOKS['batch']", "HOOKS['batch'].append(track)\nHOOKS['batch'].append(show)"),
        (
            "HOOKS = {}",
            "HOOKS['batch']",
            "HOOKS.setdefault('batch', []).append(track)\nHOOKS.setdefault('batch', []).append(show)",
        ),
        (DECORATED, "HOOKS['batch']", ""),
    ],
)
def test_functions_in_lists_are_told_of_as_others_are(made, taken, filled):
    source = HOOKED.replace("MADE", made).replace("TAKEN", taken).replace("history = []", f"history = []\n{filled}")
    if not filled:
        source = source.replace("def track", "@on('batch')\ndef track").replace("def show", "@on('batch')\ndef show")
        source = source.replace("def score", "@on('epoch')\ndef score")
    told = [d.why for d in port(source).doubts if d.name == "unknown-placement"]  # a window in the midst of an epoch
    assert told and all(why.startswith("history[-25:]: local to rank 0") for why in told)


ENGINE = (
    START
    + """
class Engine:
    def __init__(self):
        self.handlers = {}
    def on(self, event, handler):
        self.handlers.setdefault(event, []).append(handler)
    def fire(self, event, *args):
        for handler in self.handlers.get(event, []):
            handler(*args)
    def run(self, update, loader, epochs):
        self.iteration = 0
        for self.epoch in range(epochs):
            for batch in loader:
                self.output = update(batch)
                self.iteration += 1
                self.fire("iteration", self)

def update(batch):
    opt.zero_grad()
    out = model(batch[0])
    loss = criterion(out, batch[1])
    loss.backward()
    opt.step()
    return {"loss": loss.item()}

def log(engine):
    print(engine.output["loss"])
    if engine.iteration % 20 == 0:
        torch.save(model.state_dict(), "model.pt")

engine = Engine()
engine.on("iteration", log)
engine.run(update, DataLoader(data, 8, shuffle=True), 3)
"""
)


def test_handlers_of_an_engine_that_runs_what_it_is_given_are_followed():
    text = port(ENGINE).text
    assert 'print(dl.average(engine.output["loss"]))' in text
    assert "if engine.iteration % dl.steps(20) == 0:" in text
    assert "engine.run(update, dl.shard(DataLoader(data, 8, shuffle=True)), 3)" in text


def test_what_a_registry_of_functions_makes_is_known():
    text = port(
        START
        + """
MAKERS = {}
def register(function):
    MAKERS[function.__name__] = function
    return function

@register
def batches(size):
    return DataLoader(data, size, shuffle=True)

for x, y in MAKERS["batches"](8):
    opt.zero_grad()
    criterion(model(x), y).backward()
    opt.step()
"""
    ).text
    assert 'for x, y in dl.shard(MAKERS["batches"](8))' in text or "return dl.shard(DataLoader(data" in text


KERAS = """import numpy as np
import keras
x, y = np.random.randn(96, 4), np.random.randn(96, 1)
model = keras.Sequential([keras.layers.Dense(1)])
model.compile(keras.optimizers.SGD(0.1), "mse")

class Kept(keras.callbacks.Callback):
    def __init__(self, every):
        super().__init__()
        self.every, self.losses, self.seen = every, [], 0

    def on_batch_end(self, batch, logs=None):
        self.seen += 1
        self.losses.append(logs["loss"])
        if self.seen % self.every == 0:
            print("batches", self.seen)

kept = Kept(6)
"""
FIT = "model.fit(x, y, epochs=2, callbacks=[kept])\nprint(kept.seen)\n"


def test_what_a_callback_keeps_is_serial_behind_fit_where_none_of_its_methods_stands_there() -> None:
    made = port(KERAS + FIT)
    assert 'print("batches", dl.serial_steps(self.seen))' in made.text
    assert "callbacks=[kept])\nkept.seen = dl.total(kept.seen)" in made.text
    assert not [d for d in made.doubts if d.danger != "low"]


def test_losses_of_batches_that_a_callback_keeps_are_told_of_where_they_are_shown() -> None:
    doubts = port(KERAS + FIT + "print(sum(kept.losses))\n").doubts
    assert [d.name for d in doubts if d.danger != "low"] == ["unknown-placement"]


def test_an_array_of_losses_that_a_callback_puts_behind_each_other_is_told_of() -> None:
    grown = KERAS.replace("self.losses, self.seen = every, [], 0", "self.losses, self.seen = every, np.zeros(0), 0")
    grown = grown.replace("self.losses.append(logs", "self.losses = np.append(self.losses, logs")
    assert "np.append" in grown
    doubts = port(grown + FIT + "print(kept.losses.std(), kept.losses.size)\n").doubts
    assert [d.name for d in doubts if d.danger != "low"] == ["unknown-placement"]


def test_what_fit_returns_is_the_serial_history_whatever_its_callbacks_keep() -> None:
    shows = (
        "h = model.fit(x, y, epochs=2, callbacks=[kept])\nprint(len(h.epoch), h.params['steps'], h.history['loss'])\n"
    )
    made = port(KERAS + shows)
    assert "print(len(h.epoch), dl.serial_steps(h.params['steps']), h.history['loss'])" in made.text
    assert not [d for d in made.doubts if d.danger != "low"]
    table = (
        "rows = []\nfor run in range(3):\n    h = model.fit(x, y, epochs=2, callbacks=[Kept(6)])\n"
        "    rows.append({'run': run, 'loss': h.history['loss'][-1]})\nprint(rows)\n"
    )
    assert not [d for d in port(KERAS + table).doubts if d.danger != "low"]


def test_of_how_many_batches_a_callback_keeps_losses_is_the_serial_number() -> None:
    made = port(KERAS + FIT + "print(len(kept.losses))\n")
    assert "print(dl.serial_steps(len(kept.losses)))" in made.text
    assert not [d for d in made.doubts if d.danger != "low"]


def test_what_a_callback_shows_every_so_often_comes_as_often_as_in_the_serial_run() -> None:
    assert "if self.seen % dl.steps(self.every) == 0:" in port(KERAS + FIT).text


def test_a_callback_shows_the_last_batches_of_all_ranks_as_numbers_before_they_are_text() -> None:
    shows = 'print("mean %.4f" % np.mean(self.losses[-6:]), "max %.4f" % max(self.losses[-6:]))'
    text = port(KERAS.replace('print("batches", self.seen)', shows).replace("% self.every ==", "% 6 ==") + FIT).text
    assert "if self.seen % dl.steps(6) == 0:" in text
    assert '"mean %.4f" % dl.average(np.mean(self.losses[-dl.steps(6):]))' in text
    assert '"max %.4f" % dl.maximum(max(self.losses[-dl.steps(6):]))' in text


def test_what_a_callback_keeps_is_the_serial_scripts_where_ranks_take_parts_of_its_batches() -> None:
    updates = "print(int(model.optimizer.iterations))\nrows = []\nrows.append((model.optimizer.iterations, 1.0))\n"
    shown = "print(len(kept.losses), sum(kept.losses), kept.seen, rows)\n"
    made = port(KERAS + FIT + updates + shown, Options(batch="global"))
    behind = made.text.partition("class Kept")[2]
    assert made.text.count("dl.distribute(model") == 1 and not made.doubts
    assert "dl.total" not in behind and "dl.serial_steps" not in behind and "dl.steps" not in behind


def test_what_a_callback_keeps_is_told_of_where_nothing_can_stand_behind_fit() -> None:
    fit = "def fit():\n    return model.fit(x, y, epochs=2, callbacks=[kept])\nfit()\nprint(kept.seen)\n"
    made = port(KERAS + fit)
    assert "dl.total(" not in made.text
    assert [d.name for d in made.doubts if d.danger != "low"] == ["unknown-placement"]
