"""What goes by one name in several lines: data sets made step by step, counts of inner loops, ends of ranges."""

from __future__ import annotations

import pytest

from dlrun.port import port

CHAIN = """
import sys
import numpy as np
import tensorflow as tf

rows = np.ones((64, 3), "float32")
{made}
model = tf.keras.Sequential([tf.keras.layers.Dense(1)])
opt = tf.keras.optimizers.SGD(0.1)

def train(data, steps):
    for step in range(steps):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(model(next(data)) ** 2)
        opt.apply_gradients(zip(tape.gradient(loss, model.variables), model.variables))

train(data, steps=100)
"""
MADE = """data = tf.data.Dataset.from_tensor_slices(rows)
data = data.shuffle(64).repeat(20)
data = data.batch(4)
data = iter(data)
"""
AT_TIMES = """data = tf.data.Dataset.from_tensor_slices(rows).batch(4)
if len(sys.argv) > 1:
    data = data.shuffle(16)
data = iter(data)
"""


def test_a_data_set_that_goes_on_under_its_name_is_cut_once_behind_its_last_line() -> None:
    text = port(CHAIN.format(made=MADE)).text
    assert "data = dl.shard(data.batch(4))" in text and text.count("dl.shard(") == 1


def test_a_data_set_that_only_goes_on_at_times_is_cut_once_where_its_iterator_is_made() -> None:
    text = port(CHAIN.format(made=AT_TIMES)).text
    assert "data = iter(dl.shard(data))" in text and text.count("dl.shard(") == 1


def test_a_data_set_whose_parts_others_use_is_cut_where_it_goes_on() -> None:
    held = MADE.replace("data = data.batch(4)", "first = list(data.take(4))\ndata = data.batch(4)")
    text = port(CHAIN.format(made=held)).text
    assert text.count("dl.shard(") == 1 and "data.take(4)" in text


BY_HAND = """
import argparse
import numpy as np
import tensorflow as tf

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=16)
args = parser.parse_args()
x = np.ones((64, 4), "float32")
model = tf.keras.Sequential([tf.keras.layers.Dense(1)])
opt = tf.keras.optimizers.SGD(0.1)
for epoch in range(3):
    total, at = 0.0, 0
    for it in range({turns}):
        batch = x[{batch}]
        at += 4
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(model(batch) ** 2)
        opt.apply_gradients(zip(tape.gradient(loss, model.variables), model.variables))
        total += loss.numpy()
{end}
"""


@pytest.mark.parametrize("turns", ["args.steps", "1, args.steps + 1", "1, 1 + args.steps"])
def test_a_sum_is_divided_by_what_the_loop_counts_to_also_where_it_begins_at_1(turns: str) -> None:
    end = "    total /= args.steps\n    print(epoch, total)"
    text = port(BY_HAND.format(turns=turns, batch="at:at + 4", end=end)).text
    assert "    total = dl.total(total)" in text and "print(epoch, total)" in text


@pytest.mark.xfail(strict=True, reason="the sum is over n * (steps(k) - 1) iterations, not k - 1; doubted")
def test_a_sum_up_to_another_end_is_no_mean_over_all_steps() -> None:
    end = "    total /= args.steps\n    print(epoch, total)"
    assert "dl.total(" not in port(BY_HAND.format(turns="2, args.steps + 1", batch="at:at + 4", end=end)).text


GRID = """        print(it, loss.numpy())
        if it % 8 == 0:
            grid = np.zeros((4, 4))
            heads = [x[0, it] for it in range(4)]
            for row in range(2):
                for it in range(2):
                    grid[row * 2:row * 2 + 2, it * 2:it * 2 + 2] = row
            print(grid, heads)"""


def test_what_an_inner_loop_counts_by_the_same_name_is_not_the_ranks_own_number() -> None:
    text = port(BY_HAND.format(turns="16", batch="it * 4:it * 4 + 4", end=GRID)).text
    assert "batch = x[own_it * 4:own_it * 4 + 4]" in text
    assert "x[0, it] for it" in text and "it * 2:it * 2 + 2] = row" in text and "own_it * 2" not in text
