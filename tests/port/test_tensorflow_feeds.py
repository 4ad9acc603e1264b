"""Where the batches of TensorFlow's loops come from: readers, bounds that functions compute, positions that move."""

from __future__ import annotations

import pytest

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
    assert "import dl_comm.keras\nimport dl_comm.tensorflow as dl" in ported.text
    assert 'self.net.compile(self.opt, "mse")\n        dl_comm.keras.distribute(self.net)' in ported.text
    again = port(READER.replace("self.net.fit(x)", "for part in x: self.net.fit(part)"))
    (fitted,) = [d for d in again.doubts if d.danger == "high"]
    assert "it trains on each rank by itself" in fitted.why
    assert "dl_comm.keras" not in again.text
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
    (end,) = [d for d in ported.doubts if d.danger == "high"]
    assert end.write == "dl.steps(1600)"


def test_bounds_of_a_batch_that_a_function_computes_follow_the_ranks_own_number() -> None:
    text = port(SESSION + COMPUTED).text
    assert "for step, own_step in dl.turns(range(1000)):" in text
    assert "number = own_step % batches" in text
    assert "if step % dl.steps(10) == 0:" in text and "print(dl.serial_steps(step))" in text


BY_HAND = """
import keras
import numpy as np
model = keras.Sequential([keras.layers.Dense(1)])
model.compile(keras.optimizers.SGD(0.1), "mse")

def batches(x, y):
    order = np.random.permutation(len(x))
    for rows in np.array_split(order, 9):
        yield x[rows], y[rows]

for epoch in range(3):
    seen = 0
    for bx, by in batches(x, y):
        loss = model.train_on_batch(bx + np.random.randn(*bx.shape), by)
        seen += 1
        if seen >= 9:
            break
"""


def test_what_a_loop_of_train_on_batch_runs_over_is_sharded_in_one_order() -> None:
    ported = port(BY_HAND)
    assert not ported.doubts
    lines = [line.strip() for line in ported.text.splitlines()]
    assert "for bx, by in dl.shard(batches(x, y)):" in lines
    assert "if seen >= dl.steps(9):" in lines
    assert lines[lines.index("for epoch in range(3):") - 1].startswith("dl.reseed()")
    at = lines.index("order = np.random.permutation(len(x))")
    assert lines[at - 1].startswith("dl.reseed(alike=True)")
    assert lines[at + 1].startswith("dl.reseed()")
    listed = BY_HAND.replace("batches(x, y):\n    s", "[(x[:8], y[:8]), (x[8:], y[8:])]:\n    s")
    listed = listed.replace("in batches(x, y)", "in parts").replace("for epoch", "parts = cut(x, y)\nfor epoch")
    ported = port(listed)
    assert "in dl.shard(iter(parts)):" in ported.text  # of a list of batches every n-th, not 1/n of each
    assert [d.danger for d in ported.doubts] == ["medium"]
    drawn = BY_HAND.replace("bx, by in batches(x, y):\n", "i in range(90):\n        bx, by = next(made)\n")
    text = port(drawn.replace("for epoch", "made = batches(x, y)\nfor epoch")).text
    assert "made = dl.shard(batches(x, y))" in text
    assert "for i in range(dl.steps(90)):" in text


RATES = """
import keras
from keras.callbacks import LearningRateScheduler
class Halved:
    def __init__(self, first):
        self.first = first
    def __call__(self, epoch):
        return self.first * 0.5 ** epoch
def ramp(first):
    def rate(epoch, lr):
        return first * epoch
    return rate
model = keras.Sequential([keras.layers.Dense(1)])
model.compile(keras.optimizers.Adam(0.1), "mse")
model.fit(x, y, callbacks=[LearningRateScheduler(Halved(0.1)), LearningRateScheduler(ramp(0.2))])
"""


def test_schedules_that_are_objects_or_made_by_functions_are_scaled_and_adam_is_doubted() -> None:
    ported = port(RATES)
    assert "return dl.lr_scale(self.first * 0.5 ** epoch)" in ported.text
    assert "return dl.lr_scale(first * epoch)" in ported.text
    (told,) = ported.doubts
    assert "Adam mostly wants less" in told.why
    named = RATES.replace("model = ", "step = lambda e: 0.1 if e < 9 else 0.01\nmodel = ")
    named = named.replace("Halved(0.1)", "step").replace("first * epoch", "lr / 2 if epoch > 9 else first")
    named = named.replace("ramp(0.2)", "lambda e, lr: 0.3")
    text = port(named.replace("[Learning", "[LearningRateScheduler(ramp(0.2)), Learning")).text
    assert "lambda e: dl.lr_scale(0.1 if e < 9 else 0.01)" in text and "lambda e, lr: dl.lr_scale(0.3)" in text
    assert "lr / 2 if epoch > 9 else dl.lr_scale(first)" in text
    chosen = RATES.replace("model.compile(keras.optimizers.Adam(0.1)", "model.compile(opt").replace(
        "model = ", "opt = keras.optimizers.SGD(0.1)\nif own:\n    from eve import Eve\n    opt = Eve(0.1)\nmodel = "
    )
    (told,) = port(chosen).doubts
    assert "of another kind is not scaled" in told.why


def test_a_writer_that_is_called_by_hand_writes_on_rank_0() -> None:
    board = "board = keras.callbacks.TensorBoard('logs')\nboard.set_model(model)\nmodel.fit"
    assert "board = dl.rank0(keras.callbacks.TensorBoard)('logs')\n" in port(RATES.replace("model.fit", board)).text
    given = RATES.replace("callbacks=[", "callbacks=[keras.callbacks.TensorBoard('logs'), ")
    assert "[keras.callbacks.TensorBoard('logs'), " in port(given).text  # there distribute() does it


NAMES = (
    "tensorflow.compat.v1.train.AdamOptimizer",
    "tensorflow.optimizers.Adam",
    "tf_keras.optimizers.Adam",
    "tensorflow.compat.v1.keras.optimizers.SGD",
    "tensorflow.python.keras.optimizer_v2.adam.Adam",
    "keras.optimizers.adam_v2.Adam",
    "keras.optimizers.rmsprop",
    "tensorflow.keras.optimizers.legacy.SGD",
)


def test_the_rates_of_optimizers_are_scaled_wherever_keras_and_tensorflow_keep_them() -> None:
    for place, name in (found.rsplit(".", 1) for found in NAMES):
        made = RATES.replace("import keras\n", f"import keras\nfrom {place} import {name} as Made\n", 1)
        ported = port(made.replace("keras.optimizers.Adam(0.1)", "Made(0.1)"))
        assert "model.compile(Made(dl.lr_scale(0.1)), " in ported.text, place
        assert {doubt.danger for doubt in ported.doubts} <= {"low"}
    plain = DRAWN.replace("tf.keras.optimizers.SGD(0.1)", "tf.compat.v1.train.AdamOptimizer()")
    assert "AdamOptimizer(learning_rate=dl.lr_scale(0.001))" in port(plain).text


BAR = """
import tensorflow as tf
from tqdm import tqdm

data = tf.data.Dataset.from_tensor_slices(tf.random.normal((64, 4))).shuffle(64).batch(8)
model = tf.keras.Sequential([tf.keras.layers.Dense(2)])
opt = tf.keras.optimizers.SGD(0.1)
bar = tqdm(data, total=8)
for x in bar:
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(model(x) ** 2)
    opt.apply_gradients(zip(tape.gradient(loss, model.variables), model.variables))
"""


def test_what_lies_behind_the_name_of_a_progress_bar_is_shared_and_not_the_bar() -> None:
    text = port(BAR).text
    assert "bar = tqdm(dl.shard(data), total=8, disable=not dl.is_rank0())" in text
    assert "for x in bar:" in text


DRAWN = """
import numpy as np
import tensorflow as tf
from tqdm import tqdm

model = tf.keras.Sequential([tf.keras.layers.Dense(1)])
opt = tf.keras.optimizers.SGD(0.1)
x, y = np.ones((64, 3)), np.ones((64, 1))
n = len(x) // 8
for epoch in range(3):
    total = 0.0
    for i in tqdm(range(n)):
        rows = np.random.randint(0, len(x), 8)
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(x[rows]) - y[rows]) ** 2)
        opt.apply_gradients(zip(tape.gradient(loss, model.variables), model.variables))
        total += loss.numpy()
    print(epoch, total / n)
"""
# The same where Keras takes the steps.
FITTED = DRAWN[: DRAWN.index("        with")].replace("opt = ", "model.compile(").replace("(0.1)\n", "(0.1), 'mse')\n")
FITTED += "        total += model.train_on_batch(x[rows], y[rows])\n    print(epoch, total / n)\n"
PICKED = "model.train_on_batch(x[i * 8 : i * 8 + 8], y[i * 8 : i * 8 + 8])"


def test_a_mean_over_batches_is_that_of_all_ranks_wherever_their_number_is_divided() -> None:
    text = port(DRAWN).text
    assert "n = dl.steps(len(x) // 8)\n" in text and "tqdm(range(n), disable" in text
    assert "    total = dl.total(total)" in text and "print(epoch, total / dl.serial_steps(n))" in text
    text = port(DRAWN.replace("len(x), 8)", "8 * n, 8)")).text  # which picks samples: it stays
    assert "n = len(x) // 8\n" in text and "randint(0, 8 * n, 8)" in text
    assert "tqdm(range(dl.steps(n)), disable" in text
    assert "    total = dl.total(total)" in text and "print(epoch, total / n)" in text
    text = port(DRAWN.replace("range(n)", "range(len(x) // 8)").replace("/ n)", "/ (len(x) // 8))")).text
    assert "range(dl.steps(len(x) // 8))" in text
    assert "    total = dl.total(total)" in text and "print(epoch, total / (len(x) // 8))" in text


def test_batches_by_hand_behind_a_progress_bar_are_counted_and_sharded_as_without() -> None:
    text = port(FITTED).text
    assert "n = dl.steps(len(x) // 8)\n" in text and "tqdm(range(n), disable" in text
    assert "    total = dl.total(total)" in text  # each turn's is the mean over the ranks
    assert "print(epoch, total / dl.serial_steps(n))" in text
    text = port(FITTED.replace("len(x), 8)", "8 * n, 8)")).text
    assert "tqdm(range(dl.steps(n)), disable" in text
    assert "    total = dl.total(total)" in text and "print(epoch, total / n)" in text
    picked = FITTED.replace("model.train_on_batch(x[rows], y[rows])", PICKED)
    text = port(picked.replace("rows = np.random.randint(0, len(x), 8)", "pass")).text
    assert "in tqdm(dl.shard(range(n)), disable=not dl.is_rank0()):" in text
    assert "    total = dl.total(total)" in text and "print(epoch, total / n)" in text
    counted = picked.replace("rows = np.random.randint(0, len(x), 8)", "print(i)")
    text = port(counted.replace("tqdm(range(n))", "trange(n)").replace("import tqdm", "import trange")).text
    assert "for i, own_i in dl.turns(trange(n, disable=not dl.is_rank0())):" in text
    (told,) = port(FITTED.replace("for i in tqdm(range(n))", "while total < 9")).doubts
    assert "together they take n times as many" in told.why


@pytest.mark.parametrize(
    ("draw", "doubted"),
    [("rng.integers(0, 64, 8)", True), ("np.random.randint(0, 64, 8)", False)],
)
def test_batches_drawn_from_a_seeded_generator_of_the_scripts_own_are_doubted(draw, doubted) -> None:
    ported = port(f"""
import numpy as np
import tensorflow as tf
rng = np.random.default_rng(0)
x = rng.normal(size=(64, 4)).astype("float32")
net, opt = tf.keras.Sequential([tf.keras.layers.Dense(1)]), tf.keras.optimizers.SGD(0.1)
for step in range(100):
    picks = {draw}
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(net(x[picks]) ** 2)
    opt.apply_gradients(zip(tape.gradient(loss, net.trainable_variables), net.trainable_variables))
""")
    found = [(d.danger, d.write.split(" before")[0]) for d in ported.doubts if "has one seed on all ranks" in d.why]
    assert found == ([("high", "dl.reseed(rng)")] if doubted else [])


NUMBERED = """
import tensorflow as tf
x = tf.random.uniform((640, 10))
ds = tf.data.Dataset.from_tensor_slices(x).shuffle(640).batch(32)
model = tf.keras.Sequential([tf.keras.layers.Dense(1)])
opt = tf.keras.optimizers.SGD(0.01)
{decorator}
def epoch(data):
    for step, a in {over}:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(model(a) ** 2)
        opt.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
        if step % 5 == 0:
            print("step", int(step), "loss", float(loss))
for number in range(3):
    epoch(ds)
"""


def test_each_rank_counts_the_batches_that_a_data_set_numbers() -> None:
    text = port(NUMBERED.format(decorator="", over="data.enumerate()")).text
    assert "in dl.shard(data).enumerate():" in text
    assert "if step % dl.steps(5) == 0:" in text  # all ranks come to it together
    assert 'print("step", int(dl.serial_steps(step)), "loss", dl.average(float(loss)))' in text


@pytest.mark.parametrize("over", ["data.enumerate()", "enumerate(data)"])
def test_a_data_set_that_is_shared_where_it_is_made_is_not_doubted_in_a_compiled_loop(over: str) -> None:
    ported = port(NUMBERED.format(decorator="@tf.function", over=over))
    assert "ds = dl.shard(" in ported.text
    assert not any("not shared" in doubt.why for doubt in ported.doubts)


OWN_STEP = """import tensorflow as tf
class Net(tf.keras.Model):
    def train_step(self, batch):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(self(batch) ** 2)
        self.optimizer.apply_gradients(zip(tape.gradient(loss, self.variables), self.variables))
        return {"loss": loss}
net = Net()
net.compile(optimizer=tf.keras.optimizers.SGD(0.1))
data = tf.data.Dataset.from_tensor_slices(rows).batch(8)
net.fit(data)
"""


def test_a_models_own_train_step_that_a_loop_calls_beside_fit_is_a_loop_by_hand() -> None:
    assert "dl.gradients" not in port(OWN_STEP).text
    called = "for batch in data:\n    logs = net.train_step(batch)\n    print(float(logs['loss']))\n"
    text = port(OWN_STEP + called).text
    assert "zip(dl.gradients(tape.gradient(loss, self.variables)), self.variables)" in text
    assert "for batch in dl.shard(data):" in text
    assert "print(dl.average(float(logs['loss'])))" in text
    assert "dl_comm.keras.distribute(net)" in text


GENERATED = """import numpy as np
import tensorflow as tf
net, opt = tf.keras.Sequential([tf.keras.layers.Dense(1)]), tf.keras.optimizers.SGD(0.1)
rng = np.random.default_rng(0)
def samples(x):
    def each():
        for i in {draw}.permutation(len(x)):
            yield x[i]
    return each
{name} = tf.data.Dataset.from_generator(samples(rows), output_signature=tf.TensorSpec((4,))).batch(8)
for epoch in range(3):
    for batch in {name}:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(net(batch) ** 2)
        opt.apply_gradients(zip(tape.gradient(loss, net.variables), net.variables))
"""


@pytest.mark.parametrize(
    ("draw", "name", "doubted"), [("np.random", "train", 1), ("rng", "train", 0), ("np.random", "val_data", 0)]
)
def test_an_order_that_a_generator_draws_by_a_ranks_own_numbers_is_doubted(draw: str, name: str, doubted: int) -> None:
    found = port(GENERATED.format(draw=draw, name=name)).doubts
    assert [d.danger for d in found if "of another order" in d.why] == ["high"] * doubted


FIT_AND_TAPE = """
import tensorflow as tf
data = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(320, seed=4).repeat().batch(16)
net = tf.keras.Sequential([tf.keras.layers.Dense(1)])
opt = tf.keras.optimizers.SGD(0.1)
net.compile(opt, "mse")
net.fit(data, steps_per_epoch=20, epochs=3)
batches = iter(data)
for step in range(40):
    x, y = next(batches)
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((net(x) - y) ** 2)
    opt.apply_gradients(zip(tape.gradient(loss, net.trainable_variables), net.trainable_variables))
"""


def test_data_that_fit_shares_itself_are_shared_where_a_loop_draws_them() -> None:
    ported = port(FIT_AND_TAPE)
    assert "data = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(320, seed=4).repeat().batch(16)\n" in ported.text
    assert "net.fit(data, steps_per_epoch=20, epochs=3)\nbatches = iter(dl.shard(data))" in ported.text


STRETCH = """import numpy as np
import tensorflow.compat.v1 as tf
class Loader:
    def __init__(self, width, length):
        self.width, self.length = width, length
        self.tensor = np.load("text.npy")
        self.create()
        self.pointer = 0
    def create(self):
        self.count = int(self.tensor.size / (self.width * self.length))
        self.tensor = self.tensor[: self.count * self.width * self.length]
        self.batches = np.split(self.tensor.reshape(self.width, -1), self.count, 1)
    def next_batch(self):
        x = self.batches[self.pointer]
        self.pointer += 1
        return x
loader = Loader(4, 8)
cell = tf.nn.rnn_cell.GRUCell(16)
feed = tf.placeholder(tf.int32, [4, 8])
first = cell.zero_state(4, tf.float32)
outs, last = tf.nn.dynamic_rnn(cell, tf.one_hot(feed, 30), initial_state=first)
cost = tf.reduce_mean(tf.square(outs))
update = tf.train.AdamOptimizer(1e-3).minimize(cost)
with tf.Session() as sess:
    sess.run(tf.global_variables_initializer())
    for e in range(3):
        loader.pointer = 0
        state = sess.run(first)
        for b in range(loader.count):
            c, state, _ = sess.run([cost, last, update], {feed: loader.next_batch(), first: state})
            if (e * loader.count + b) % 100 == 0 or (e == 2 and b == loader.count - 1):
                print(e * loader.count + b, c)
"""


def test_a_count_of_batches_that_is_made_of_a_ranks_stretch_is_its_own() -> None:
    text = port(STRETCH).text
    assert "(e * loader.count + b) % dl.steps(100) == 0 or (e == 2 and b == loader.count - 1)" in text
    assert "print(dl.serial_steps(e * loader.count + b + 1) - 1, dl.average(c))" in text
