"""Numbers of steps or samples at which a script only shows something."""

import pytest

from dlrun.port import Options, port

LOOP = """import torch
data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(96, 5), torch.randn(96, 1)), 8)
model = torch.nn.Linear(5, 1)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
seen, told, step = 0, False, 0
for epoch in range(2):
    for i, (x, y) in enumerate(data):
        loss = ((model(x) - y) ** 2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        seen += 8
        step += 1
        if {test}:
            told = True
            print("reached", {shown})
"""
FIT = """import numpy as np
import keras


class Watch(keras.callbacks.Callback):
    def __init__(self, batch):
        super().__init__()
        self.batch, self.seen, self.told = batch, 0, False

    def on_train_batch_end(self, batch, logs=None):
        self.seen += self.batch
        if {test}:
            self.told = True
            print("reached", batch)

    def on_epoch_end(self, epoch, logs=None):
        print("epoch", epoch, self.seen)


model = keras.Sequential([keras.layers.Dense(1)])
model.compile("sgd", "mse")
model.fit(np.ones((96, 5)), np.ones((96, 1)), batch_size=8, callbacks=[Watch(8)])
"""


@pytest.mark.parametrize(
    ("test", "shown", "written", "counted"),
    [
        ("step == 10", "step", "step == dl.steps(10)", "dl.serial_steps(step)"),
        ("seen >= 24 and not told", "seen", "seen >= dl.steps(24) and not told", "dl.serial_steps(seen)"),
        ("i == 5", "'five'", "i == dl.steps(6) - 1", "'five'"),
        ("step < 3", "'early'", "step < 3", "'early'"),
        ("i == 0", "'first'", "i == 0", "'first'"),
        ("loss.item() > 10", "'much'", "> 10", "'much'"),
    ],
)
def test_what_is_shown_at_some_step_is_shown_as_early_in_the_run(test, shown, written, counted) -> None:
    text = port(LOOP.format(test=test, shown=shown)).text
    assert f"if {written}:" in text or (written in text and "loss" in test)
    assert f'print("reached", {counted})' in text


@pytest.mark.parametrize(
    ("test", "written"),
    [
        ("self.seen >= 24 and not self.told", "self.seen >= dl.steps(24) and not self.told"),
        ("batch == 5", "batch == dl.steps(6) - 1"),
    ],
)
def test_so_it_is_by_a_callback_of_keras(test, written) -> None:
    text = port(FIT.format(test=test)).text
    assert f"if {written}:" in text and "dl.maximum" not in text


def test_ranks_that_keep_the_serial_steps_show_it_where_the_script_does() -> None:
    text = port(LOOP.format(test="step == 10", shown="step"), Options(batch="global")).text
    assert "if step == 10:" in text and 'print("reached", step)' in text


BY_LAMBDA = """import keras


def make(every):
    n = 0

    def after(batch, logs):
        nonlocal n
        n += 1
        if n % every == 0:
            print("batches", n)

    return keras.callbacks.LambdaCallback(on_train_batch_end=after, on_epoch_end=lambda epoch, logs: print(epoch))


model = keras.Sequential([keras.layers.Dense(1)])
model.compile("sgd", "mse")
model.fit(x, y, batch_size=8, callbacks=[make(6)])
"""


def test_what_a_closure_counts_is_shown_as_often_as_in_the_serial_run() -> None:
    text = port(BY_LAMBDA).text
    assert "if n % dl.steps(every) == 0:" in text and 'print("batches", dl.serial_steps(n))' in text


RUNNING = """import keras


class Progress(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        self.running, self.count = 0.0, 0

    def on_train_batch_end(self, batch, logs=None):
        self.running += logs["loss"]
        self.count += 1
        if batch % 10 == 0:
            print("mean", self.running / self.count)


model = keras.Sequential([keras.layers.Dense(1)])
model.compile("sgd", "mse")
model.fit(x, y, batch_size=8, callbacks=[Progress()])
"""


def test_a_sum_that_nothing_makes_serial_is_not_divided_by_a_count_of_all_ranks() -> None:
    ported = port(RUNNING)
    assert 'print("mean", self.running / self.count)' in ported.text
    assert any(d.name == "unknown-placement" for d in ported.doubts)


DRAWN = """import numpy as np
import keras

model = keras.Sequential([keras.layers.Dense(1)])
model.compile("sgd", "mse", metrics=["mae"])
for epoch in range(3):
    order = np.random.permutation(96)
    total = np.zeros(2)
    for b in range(12):
        rows = order[b * 8 : b * 8 + 8]
        total += model.train_on_batch(x[rows], y[rows])
    print(total[0] / 12, model.evaluate(x, y))
"""


def test_batches_by_an_order_that_is_drawn_in_each_epoch_are_those_of_an_iteration() -> None:
    ported = port(DRAWN)
    assert "total = dl.total(total)" in ported.text and not [d for d in ported.doubts if d.name == "unknown-placement"]
