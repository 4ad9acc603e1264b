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
