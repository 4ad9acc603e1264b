"""Losses of TensorFlow and Keras that are means over what counts in a batch, such as words, and not over samples."""

from __future__ import annotations

import pytest

from dlrun.port import port

TAPE = """
import numpy as np
import tensorflow as tf

net = tf.keras.Sequential([tf.keras.layers.Dense(1)])
opt = tf.keras.optimizers.SGD(0.1)
data = tf.data.Dataset.from_tensor_slices(np.ones((64, 3), "float32")).batch(8)
def masked(x, out):
    mask = tf.cast(x > 0, tf.float32)
    lost, counts = tf.abs(out) * mask, tf.reduce_sum(mask)
    return {loss}
for x in data:
    with tf.GradientTape() as tape:
        loss = masked(x, net(x))
    opt.apply_gradients(zip(tape.gradient(loss, net.variables), net.variables))
    print({shown})
"""
KERAS = """
import numpy as np
import tensorflow as tf
from tensorflow.keras import backend as K

def masked(y, out):
    mask = K.cast(K.not_equal(y, 0), "float32")
    return -K.sum(out * mask) / K.sum(mask)
net = tf.keras.Sequential([tf.keras.layers.Dense(1)])
net.compile("sgd", {given})
net.fit(np.ones((64, 3)), np.ones(64))
"""


def doubts(source: str) -> list[str]:
    return [d.danger for d in port(source).doubts if "a mean over what counts" in d.why]


@pytest.mark.parametrize(
    ("loss", "found"),
    [
        ("tf.reduce_sum(lost) / counts", 1),
        ("tf.reduce_sum(lost) / (tf.reduce_sum(mask) + 1e-8)", 1),
        ("tf.reduce_sum(lost) / tf.maximum(tf.reduce_sum(mask), 1.0)", 1),
        ("tf.math.divide_no_nan(tf.reduce_sum(lost), tf.reduce_sum(mask))", 1),
        ("tf.reduce_mean(lost)", 0),
        ("tf.reduce_sum(lost) / 8", 0),
        ("tf.reduce_mean(tf.reduce_sum(lost, axis=1) / tf.reduce_sum(mask, axis=1))", 0),
    ],
)
def test_a_quotient_of_sums_over_a_batch_is_doubted_where_it_is_the_loss(loss: str, found: int) -> None:
    assert len(doubts(TAPE.format(loss=loss, shown="loss"))) == found
    quotient = loss.replace("counts", "tf.reduce_sum(x)").replace("lost", "x").replace("mask", "x")
    assert not doubts(TAPE.format(loss="tf.reduce_mean(lost)", shown=quotient))


@pytest.mark.parametrize(("given", "found"), [("masked", 1), ("loss=masked", 1), ('"mse"', 0)])
def test_a_loss_of_the_scripts_own_that_keras_compiles_is_doubted_too(given: str, found: int) -> None:
    assert len(doubts(KERAS.format(given=given))) == found


@pytest.mark.parametrize("count", ["self.n", "max(self.n, 1)"])
def test_a_mean_of_meters_that_begin_anew_and_of_others_that_go_on_is_told(count) -> None:
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
    assert "serial_steps" not in ported.text and [doubt.name for doubt in ported.doubts] == ["unknown-placement"]
