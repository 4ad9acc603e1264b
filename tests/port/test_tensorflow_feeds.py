"""Where the batches of TensorFlow's loops come from: readers, bounds that functions compute, positions that move."""

from __future__ import annotations

from dlrun.port import port

READER = """
import numpy as np
import tensorflow as tf

class Batches:
    def __iter__(self):
        return self
    def __next__(self):
        if self.at < 9:
            self.at += 1
            return self.x[self.at]
        np.random.shuffle(self.x)
        raise StopIteration

class Trainer:
    def __init__(self):
        self.net = tf.keras.Sequential([tf.keras.layers.Dense(1)])
        self.opt = tf.keras.optimizers.SGD(0.1)
    def train_step(self, x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(self.net(x) ** 2)
        self.opt.apply_gradients(zip(tape.gradient(loss, self.net.variables), self.net.variables))
    def by_fit(self, x):
        self.net.compile(self.opt, "mse")
        self.net.fit(x)
    def by_hand(self, batches):
        for x in batches:
            self.train_step(x)

Trainer().by_hand(Batches())
"""


def test_a_train_step_of_no_model_is_a_loop_by_hand_whose_reader_shuffles_alike() -> None:
    ported = port(READER)
    assert "zip(dl.gradients(tape.gradient(loss, self.net.variables)), self.net.variables)" in ported.text
    assert "for x in dl.shard(batches):" in ported.text
    (fitted,) = [d for d in ported.doubts if d.danger == "high"]
    assert "it trains on each rank by itself" in fitted.why
    lines = [line.strip() for line in ported.text.splitlines()]
    at = lines.index("np.random.shuffle(self.x)")
    assert lines[at - 1].startswith("dl.reseed(alike=True)")
    assert lines[at + 1].startswith("dl.reseed()")


SHOWN = """
import tensorflow as tf
net, opt = tf.keras.Sequential([tf.keras.layers.Dense(1)]), tf.keras.optimizers.SGD(0.1)
def made(files):
    return tf.data.TFRecordDataset(files).map(tf.io.parse_tensor).batch(8)
train, shown = made("train"), iter(made("shown"))
for step, x in enumerate(train):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(net(x) ** 2)
    opt.apply_gradients(zip(tape.gradient(loss, net.variables), net.variables))
    if step % 100 == 0:
        x = next(shown)
        print(net(x))
"""


def test_a_data_set_is_cut_once_and_not_where_batches_are_only_shown() -> None:
    text = port(SHOWN).text
    assert text.count("dl.shard(") == 1
    assert "enumerate(dl.shard(train))" in text
    trained = SHOWN.replace("net(x) ** 2)", "net(x) ** 2 + net(next(shown)))")
    text = port(trained).text
    assert text.count("dl.shard(") == 1
    assert "return dl.shard(tf.data.TFRecordDataset" in text


SESSION = """
import numpy as np
import tensorflow.compat.v1 as tf
x = tf.placeholder(tf.float32, [None, 3])
update = tf.train.AdamOptimizer(1e-3).minimize(tf.reduce_mean(tf.layers.dense(x, 1) ** 2))
rows = np.load("rows.npy")
batches = 50

def noisy(part):
    return part + np.random.randn(*part.shape)

def bounds(number, size):
    return number * size, min((number + 1) * size, 1600)

with tf.Session() as sess:
    sess.run(tf.global_variables_initializer())
"""
MOVED = """    for epoch in range(3):
        at = 0
        for step in range(1, batches + 1):
            batch = noisy(rows[at : at + 32])
            sess.run(update, feed_dict={x: batch})
            at = (at + 32) % 1600
            if step == batches:
                print(epoch)
"""
COMPUTED = """    for step in range(1000):
        number = step % batches
        start, end = bounds(number, 32)
        sess.run(update, feed_dict={x: rows[start:end]})
        if step % 10 == 0:
            print(step)
"""


def test_slices_that_move_on_are_taken_of_a_ranks_share_though_noise_is_drawn_too() -> None:
    ported = port(SESSION + MOVED)
    assert "rows = dl.shard(rows)" in ported.text
    assert "batches = dl.steps(50)" in ported.text  # the last step of an epoch still is the last
    (end,) = ported.doubts
    assert (end.danger, end.write) == ("high", "dl.steps(1600)")


def test_bounds_of_a_batch_that_a_function_computes_follow_the_ranks_own_number() -> None:
    text = port(SESSION + COMPUTED).text
    assert "for step, own_step in dl.turns(range(1000)):" in text
    assert "number = own_step % batches" in text
    assert "if step % 10 == 0:" in text
