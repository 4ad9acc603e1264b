"""Weights and chances that a loop moves a little at every batch, and callbacks that save at some of the batches."""

import pytest
from small import SERIAL

from dlrun.port import port

NET = """import random
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader
model = torch.nn.Linear(8, 8)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
BEGIN
for epoch in range(9):
    for x in DataLoader(data, batch_size=8, shuffle=True):
        out = model(x)
        loss = F.mse_loss(out, x)
        MOVE
        opt.zero_grad()
        loss.backward()
        opt.step()
"""


@pytest.mark.parametrize(
    ("begin", "move", "moved"),
    [
        ("w = 0.0", "w = min(1.0, w + 1 / 500); loss += w * out.mean()", "w = min(1.0, w + dl.serial_steps(1 / 500));"),
        ("w = 0.0", "w += 1e-4; loss = loss + w * out.mean()", "w += dl.serial_steps(1e-4);"),
        ("w, by = 1.0, 0.999", "w *= by; loss = loss + w * out.mean()", "w *= dl.compound(by);"),
        (
            "w = 1.0",
            "w = max(w * 0.99, 0.1); loss += F.gumbel_softmax(out, tau=w).mean()",
            "max(w * dl.compound(0.99),",
        ),
        ("k = 0", "k = min(k + 1, 500); loss += k / 500 * out.mean()", "k = min(k + dl.serial_steps(1), 500);"),
        ("w = 1.0", "loss *= 2 if random.random() < w else 1; w -= 0.001", "w -= dl.serial_steps(0.001)"),
    ],
)
def test_a_weight_that_changes_at_every_batch_changes_by_as_much_an_epoch(begin, move, moved):
    assert moved in port(NET.replace("BEGIN", begin).replace("MOVE", move)).text


@pytest.mark.parametrize(
    ("begin", "move"),
    [
        ("seen = 0", "seen += 1; loss += min(seen, 3) * out.mean()"),
        ("pass", "w = 0.5; w *= 0.3; loss += w * out.mean()"),
        ("pass", "x = x * 0.5; loss += F.mse_loss(model(x), x)"),
        ("shown = 0.5", "shown *= 0.9"),
    ],
)
def test_counts_means_and_what_begins_anew_with_a_batch_stay(begin, move):
    text = port(NET.replace("BEGIN", begin).replace("MOVE", move)).text
    assert "compound(" not in text
    assert f"        {move}\n" in text or "dl.serial_steps(seen)" in text


RAMP = """
class Ramp:
    def __init__(self, last=500):
        self.now, self.last = 0, last
    def value(self):
        return self.now / self.last
    def move(self):
        self.now = min(self.now + 1, self.last)
class Rest(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.net, self.ramp = torch.nn.Linear(8, 1), Ramp()
    def forward(self, x):
        weight = self.ramp.value()
        self.ramp.move()
        return weight * self.net(x).mean()
rest = Rest()
"""


def test_a_count_that_a_module_keeps_up_to_its_end_reaches_it_as_in_the_serial_run():
    text = port(NET.replace("BEGIN", RAMP).replace("MOVE", "loss = loss + rest(out)")).text
    assert "self.now = min(self.now + dl.serial_steps(1), self.last)" in text
    assert "return self.now / self.last" in text


def test_a_weight_that_changes_at_every_epoch_stays():
    source = NET.replace("BEGIN", "w = 1.0").replace("MOVE", "loss += w * out.mean()") + "    w *= 0.9\n"
    assert "    w *= 0.9\n" in port(source).text


TAPE = """import tensorflow as tf
model = tf.keras.Sequential([tf.keras.layers.Dense(8)])
opt = tf.keras.optimizers.SGD(0.1)
weight, heat = tf.Variable(0.0, trainable=False), 1.0
@tf.function
def step(x, heat):
    weight.assign_add(0.01)
    with tf.GradientTape() as tape:
        out = model(x)
        loss = tf.reduce_mean((out - x) ** 2) + weight * tf.reduce_mean(tf.nn.softmax(out / heat))
    opt.apply_gradients(zip(tape.gradient(loss, model.variables), model.variables))
for x in tf.data.Dataset.from_tensor_slices(data).shuffle(99).batch(8):
    step(x, heat)
    heat = max(0.1, heat * 0.99)
"""


def test_variables_and_what_a_step_is_given_change_by_as_much_an_epoch():
    text = port(TAPE).text
    assert "weight.assign_add(dl.serial_steps(0.01))" in text
    assert "heat = max(0.1, heat * dl.compound(0.99))" in text


FIT = """import tensorflow as tf
class Own(tf.keras.callbacks.Callback):
    def __init__(self, every):
        super().__init__()
        self.every, self.seen = every, 0
    def on_train_batch_end(self, batch, logs=None):
        self.seen += 1
        if self.seen % self.every == 0:
            self.model.save_weights("own.h5")
        if batch % 50 == 0:
            print(batch)
model = tf.keras.Sequential([tf.keras.layers.Dense(8)])
model.compile("sgd", "mse")
every = 30
model.fit(x, x, callbacks=[Own(100), SAVER])
"""


@pytest.mark.parametrize(
    ("saver", "ported"),
    [
        ('tf.keras.callbacks.ModelCheckpoint("a", save_freq=50)', "save_freq=dl.steps(50))"),
        ('tf.keras.callbacks.BackupAndRestore("a", save_freq=2 * every)', "save_freq=dl.steps(2 * every))"),
        ('tf.keras.callbacks.ModelCheckpoint("a", save_freq="epoch")', 'save_freq="epoch")'),
    ],
)
def test_callbacks_save_as_often_an_epoch_as_in_the_serial_run(saver, ported):
    text = port(FIT.replace("SAVER", saver)).text
    assert ported in text
    assert "if self.seen % dl.steps(self.every) == 0:" in text
    assert "if batch % dl.steps(50) == 0:" in text


def test_how_often_a_callback_saves_is_doubted_where_it_may_be_told_to_do_so_at_every_epoch():
    told = port(
        "import sys\n" + FIT.replace("SAVER", 'tf.keras.callbacks.ModelCheckpoint("a", save_freq=options.often)')
    )
    assert any("options.often may count batches" in doubt.why for doubt in told.doubts)


def test_an_average_that_takes_batchnorms_statistics_too_is_told() -> None:
    normed = SERIAL.replace("Linear(2, 1)", "Sequential(torch.nn.Linear(2, 1), torch.nn.BatchNorm1d(1))")
    moves = "    for k, v in model.{}.items():\n        kept[k].mul_(0.9).add_(v, alpha=0.1)\n"
    told = [
        [d for d in port(source + moves.format(what)).doubts if "moving average of BatchNorm" in d.why]
        for source in (normed, SERIAL)
        for what in ("state_dict()", "weights")
    ]
    assert list(map(len, told)) == [1, 0, 0, 0]
