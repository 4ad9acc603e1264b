"""Decays of TensorFlow 1, of rates and of other things: which follow the steps so far, each once, and which epochs."""

import pytest

from dlrun.port import port

GRAPH = """import numpy as np
import tensorflow.compat.v1 as tf
tf.disable_v2_behavior()
DEFINED
x = tf.placeholder(tf.float32, [None, 4])
epoch_of = tf.placeholder(tf.int32, [])
step = tf.Variable(0, trainable=False)
net = tf.layers.batch_normalization(tf.layers.dense(x, 8), momentum=MOMENTUM, training=True)
loss = tf.reduce_mean(tf.square(net))
train = tf.train.AdamOptimizer(RATE).minimize(loss, global_step=step)
data = np.load("data.npy")
with tf.Session() as session:
    session.run(tf.global_variables_initializer())
    for epoch in range(10):
        for i in range(len(data) // 32):
            session.run(train, {x: data[i * 32 : (i + 1) * 32]FED})
"""


def ported(defined: str, rate: str, momentum: str = "0.9", fed: str = "") -> str:
    """Return the port of a session with this rate and this momentum of its batch normalisation."""
    parts = {"DEFINED": defined, "RATE": rate, "MOMENTUM": momentum, "FED": fed}
    source = GRAPH
    for name, text in parts.items():
        source = source.replace(name, text)
    return port(source).text


DECAY = "tf.train.exponential_decay(0.1, step, 2000, 0.7)"
DIVIDED = DECAY.replace("2000", "dl.steps(2000)")


@pytest.mark.parametrize(
    "rate",
    [
        "tf.maximum(DECAY, 1e-5)",
        "tf.cond(True, lambda: DECAY, lambda: 0.1)",
        "tf.where(flag, DECAY, 0.1)",
        "0.5 * tf.clip_by_value(DECAY, 1e-5, 1.0)",
    ],
)
def test_a_decay_within_what_makes_the_rate_goes_on_as_fast_in_epochs(rate) -> None:
    assert DIVIDED in ported("", rate.replace("DECAY", DECAY))


def test_so_does_one_that_a_function_returns_within_a_maximum() -> None:
    defined = "def rate(count):\n    lr = tf.train.exponential_decay(0.1, count * 32, 2000, 0.7)\n"
    text = ported(defined + "    return tf.maximum(lr, 1e-5)\n", "rate(step)")
    assert "tf.train.exponential_decay(0.1, count * 32, dl.steps(2000), 0.7)" in text
    assert "serial_steps" not in text


def test_a_decay_and_a_bound_in_one_function_follow_the_serial_steps_once_each() -> None:
    defined = f"def rate(step):\n    lr = {DECAY}\n    return tf.where(step < 100, 1e-4, lr)\n"
    text = ported(defined, "rate(step)")
    assert DIVIDED in text
    assert "tf.where(dl.serial_steps(step) < 100, 1e-4, lr)" in text
    assert "dl.lr_scale(rate(step))" in text


def test_the_momentum_of_a_batch_normalisation_decays_as_fast_in_epochs_beside_a_rate_of_one_function() -> None:
    defined = f"def both(step):\n    lr = {DECAY}\n    kept = tf.train.exponential_decay(0.5, step * 32, 4000, 0.5)\n"
    text = ported(defined + "    return lr, 1 - kept\nrate, kept = both(step)\n", "rate", "tf.minimum(0.99, kept)")
    assert "both(step)" in text
    assert DIVIDED in text
    assert "0.5, step * 32, dl.steps(4000)" in text or "0.5, dl.serial_steps(step * 32), 4000" in text
    alone = "def keeps(count):\n    return 1 - tf.train.exponential_decay(0.5, count * 32, 4000, 0.5)\n"
    text = ported(alone, "0.1", "keeps(step)")
    assert "tf.train.exponential_decay(0.5, dl.serial_steps(count * 32), 4000, 0.5)" in text
    assert "keeps(step)" in text


def test_a_decay_that_is_fed_epochs_or_counted_up_once_an_epoch_stays_as_it_is() -> None:
    decay = "tf.train.exponential_decay(0.1, epoch_of, 10, 0.7)"
    assert f"dl.lr_scale({decay})" in ported("", decay, fed=", epoch_of: epoch")
    mine = "tf.train.exponential_decay(0.1, mine, 10, 0.7)"
    source = GRAPH.replace("DEFINED", "mine = tf.Variable(0, trainable=False)\nup = tf.assign_add(mine, 1)")
    source = source.replace("RATE", mine).replace("MOMENTUM", "0.9").replace("FED", "")
    assert f"dl.lr_scale({mine})" in port(source + "        session.run(up)\n").text
    with_each = source.replace("session.run(train,", "session.run([train, up],")
    assert "tf.train.exponential_decay(0.1, mine, dl.steps(10), 0.7)" in port(with_each).text


def test_a_decay_that_is_fed_a_count_of_steps_goes_on_as_fast_in_epochs() -> None:
    decay = "tf.train.exponential_decay(0.1, epoch_of, 1000, 0.7)"
    source = GRAPH.replace("DEFINED", "").replace("RATE", decay).replace("MOMENTUM", "0.9")
    source = source.replace("FED", ", epoch_of: done").replace("    for epoch", "    done = 0\n    for epoch")
    assert "epoch_of, dl.steps(1000), 0.7" in port(source + "            done += 1\n").text
