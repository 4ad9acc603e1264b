"""Numbers that a script makes of what a session fetched, and feeds again: weights of later losses."""

from __future__ import annotations

import pytest

from dlrun.port import port

BALANCED = """
import numpy as np
import tensorflow.compat.v1 as tf

tf.disable_v2_behavior()
rows = np.ones((64, 4), "float32")
x = tf.placeholder(tf.float32, [None, 4])
k = tf.placeholder(tf.float32)
w = tf.Variable(tf.ones([4, 1]))
near, far = tf.reduce_mean(tf.square(x @ w)), tf.reduce_mean(tf.abs(x @ w))
train = tf.train.AdamOptimizer(0.01).minimize(near - k * far)
sess = tf.Session()
sess.run(tf.global_variables_initializer())
weight, seen = 0.0, 0.0
for it in range(100):
    some = rows[np.random.randint(0, 64, 8)]
    _, one, two = sess.run([train, near, far], feed_dict={x: some, k: FED})
    KEPT
    print(it, SHOWN)
"""


def ported(fed: str, kept: str, shown: str = "it") -> str:
    return port(BALANCED.replace("FED", fed).replace("KEPT", kept).replace("SHOWN", shown)).text


@pytest.mark.parametrize(
    ("kept", "found"),
    [
        ("weight = weight + 0.01 * (one - two)", "weight = dl.average(weight + 0.01 * (one - two))"),
        ("weight += 0.01 * (one - two)", "weight += dl.average(0.01 * (one - two))"),
        ("weight = np.clip(weight + one - two, 0, 1)", "weight = dl.average(np.clip(weight + one - two, 0, 1))"),
    ],
)
def test_a_number_that_is_fed_into_later_losses_is_the_same_on_all_ranks(kept: str, found: str) -> None:
    assert found in ported("weight", kept)


def test_a_number_that_is_never_fed_or_made_of_the_steps_alone_is_not_averaged() -> None:
    forgets = "seen = dl.compound(0.9) * seen + (1 - dl.compound(0.9)) * one"
    assert forgets in ported("weight", "seen = 0.9 * seen + 0.1 * one")
    assert "dl.average" not in ported("weight", "weight = 0.9 * weight")


def test_what_numpy_makes_of_one_number_is_one_and_is_shown_as_the_mean_over_the_ranks() -> None:
    kept = "measure = one + np.abs(one - two)"
    assert "print(it, dl.average(measure))" in ported("0.5", kept, "measure")
    assert "print(it, measure)" in ported("0.5", "measure = np.abs(some)", "measure")
