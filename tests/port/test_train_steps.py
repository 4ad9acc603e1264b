"""The gradients in a Keras model's own ``train_step``: averaged where they are made, if something reads them before."""

import pytest

from dlrun.port import Options, port

MODEL = """import tensorflow as tf
from tensorflow import keras

class Net(keras.Model):
    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((self(x) - y) ** 2)
        LINES
        return {"loss": loss}

net = Net()
net.compile(keras.optimizers.SGD(0.1))
net.fit(x, y)
"""
GRADS = "grads = tape.gradient(loss, self.trainable_variables)"
APPLY = "self.optimizer.apply_gradients(zip(grads, self.trainable_variables))"
EACH = (
    "self.optimizer.apply_gradients((tf.clip_by_value(g, -1, 1), v) for g, v in zip(grads, self.trainable_variables))"
)
ADD = "for a, g in zip(self.sums, grads):\n            a.assign_add(g)"


@pytest.mark.parametrize(
    ("lines", "averaged"),
    [
        ([GRADS, "grads, norm = tf.clip_by_global_norm(grads, 1.0)", APPLY], True),
        ([GRADS, "grads = [tf.clip_by_norm(g, 1.0) for g in grads]", APPLY], True),
        ([GRADS, EACH], True),
        ([GRADS, "self.norm.update_state(tf.linalg.global_norm(grads))", APPLY], True),
        (["    " + GRADS, "grads = [tf.clip_by_norm(g, 1.0) for g in grads]", APPLY], True),  # its own tape watches
        ([GRADS, APPLY], False),  # the optimizer averages
        ([GRADS, "self.optimizer.apply(grads, self.trainable_variables)"], False),
        ([GRADS, ADD, APPLY.replace("grads", "self.sums")], False),  # the mean of sums is the sum of means
    ],
)
def test_gradients_are_averaged_before_they_are_clipped_or_measured(lines: list[str], averaged: bool) -> None:
    text = port(MODEL.replace("LINES", "\n        ".join(lines))).text
    assert ("grads = dl.gradients(tape.gradient(loss, self.trainable_variables))" in text) is averaged
    assert "dl.distribute(net)" in text


HELPED = """import tensorflow as tf
from tensorflow import keras

class Pair(keras.Model):
    def compile(self, rate=1e-4, **kwargs):
        super().compile(**kwargs)
        self.own_optimizer = keras.optimizers.Adam(rate)

    def train_one(self, x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(self(x) ** 2)
        grads = tape.gradient(loss, self.trainable_variables)
        self.own_optimizer.apply_gradients(zip(grads, self.trainable_variables))
        return loss

    def train_step(self, data):
        return {"loss": self.train_one(data)}

pair = Pair()
pair.compile()
pair.fit(data)
"""


TESTED = """return {"loss": self.train_one(data)}

    def test_step(self, data):
        return {"loss": self.train_one(data)}
"""


@pytest.mark.parametrize("source", [HELPED, HELPED.replace('return {"loss": self.train_one(data)}\n', TESTED)])
def test_updates_in_a_method_that_a_train_step_calls_are_those_of_fit(source) -> None:
    text = port(source).text
    assert "self.own_optimizer = dl.DistributedOptimizer(keras.optimizers.Adam(dl.lr_scale(rate)))" in text
    assert "dl.distribute(pair)" in text


def test_updates_in_a_method_that_a_loop_calls_too_are_not() -> None:
    text = port(HELPED + "for x in tf.data.Dataset.from_tensor_slices(more).batch(8):\n    pair.train_one(x)\n").text
    assert "grads = dl.gradients(tape.gradient(loss, self.trainable_variables))" in text
    assert "in dl.shard(tf.data.Dataset.from_tensor_slices(more).batch(8)):" in text


OUTSIDE = """import tensorflow as tf
from tensorflow import keras

class Net(keras.Model):
    def compile(self, first):
        super().compile()
        self.first = first

    def train_step(self, x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(self(x) ** 2)
        grads = tape.gradient(loss, self.trainable_variables)
        OPTIMIZER.apply_gradients(zip(grads, self.trainable_variables))
        return {"loss": loss}

outside = keras.optimizers.SGD(0.1)
net = Net()
net.compile(outside)
net.fit(data)
"""
AVERAGES = "outside = dl.DistributedOptimizer(keras.optimizers.SGD(dl.lr_scale(0.1)))"


def test_an_optimizer_that_a_train_step_finds_outside_of_its_model_averages() -> None:
    assert AVERAGES in port(OUTSIDE.replace("OPTIMIZER", "outside")).text
    compiled = OUTSIDE.replace("OPTIMIZER", "outside").replace("compile(outside)", "compile(optimizer=outside)")
    assert AVERAGES not in port(compiled).text, "distribute() makes it average"


PART = """import tensorflow as tf
from tensorflow import keras

class Net(keras.Model):
    def train_step(self, x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(self.part(x) ** 2)
        grads = tape.gradient(loss, self.part.trainable_variables)
        self.part.optimizer.apply_gradients(zip(grads, self.part.trainable_variables))
        return {"loss": loss}

net = Net()
net.part = keras.Sequential([keras.layers.Dense(1)])
net.part.compile(keras.optimizers.SGD(0.1))
net.compile()
net.fit(data)
"""


def test_the_optimizer_of_a_model_within_the_fitted_one_averages() -> None:
    text = port(PART).text
    assert "net.part.compile(keras.optimizers.SGD(dl.lr_scale(0.1)))\ndl.distribute(net.part)" in text
    alone = port(PART.replace("self.part.optimizer", "self.optimizer")).text
    assert "dl.distribute(net.part)" not in alone


TWICE = [
    "with tf.GradientTape() as outer:",
    "    with tf.GradientTape() as inner:",
    "        loss = tf.reduce_mean((self(x) - y) ** 2)",
    "    first = inner.gradient(loss, self.trainable_variables)",
    "second = outer.gradient(first, self.trainable_variables)",
    "grads = [0.9 * a + 0.1 * b for a, b in zip(first, second)]",
    APPLY,
]


def test_gradients_that_another_tape_goes_on_from_are_left_to_the_optimizer() -> None:
    text = port(MODEL.replace("LINES", "\n        ".join(TWICE))).text
    assert "first = inner.gradient(loss, self.trainable_variables)" in text
    assert "second = dl.gradients(outer.gradient(first, self.trainable_variables))" in text


def test_what_a_model_predicts_with_its_weights_is_known_whatever_its_steps_count() -> None:
    counts = "self.seen.assign_add(1)\n        self.mean.update_state(loss)"
    made = "super().__init__()\n        self.seen, self.mean = tf.Variable(0), keras.metrics.Mean()"
    source = MODEL.replace("LINES", f"{GRADS}\n        {APPLY}\n        {counts}").replace(
        "    def train_step", f"    def __init__(self):\n        {made}\n\n    def train_step"
    )
    source = source.replace("net.fit(x, y)", "for phase in range(2):\n    net.fit(x, y)")
    assert not port(f"import numpy as np\n{source}np.save('out.npy', net.predict(x))\n").doubts


TALLY = """import numpy as np
import tensorflow as tf
from tensorflow import keras

class Tally(keras.layers.Layer):
    def build(self, shape):
        self.seen = self.add_weight(shape=(), initializer="zeros", trainable=False)

    def call(self, inputs, training=None):
        if training:
            self.seen.assign_add(tf.cast(tf.shape(inputs)[0], tf.float32))
        return inputs

x, y = np.random.randn(64, 4), np.random.randn(64, 1)
MADE
net.compile(keras.optimizers.SGD(0.1), "mse")
net.fit(x, y, batch_size=8)
print(net.layers[0].seen.numpy())
"""


@pytest.mark.parametrize(
    "made",
    [
        "net = keras.Sequential([Tally(), keras.layers.Dense(1)])",
        "rows = keras.Input((4,))\nnet = keras.Model(rows, keras.layers.Dense(1)(Tally()(rows)))",
    ],
)
def test_what_a_layer_of_a_model_of_keras_counts_of_a_ranks_batches_is_told_of(made) -> None:
    doubts = port(TALLY.replace("MADE", made)).doubts
    assert [d.name for d in doubts if d.danger == "medium"] == ["unknown-placement"]


@pytest.mark.parametrize("read", ["net.inner.get_layer('tally').seen", "net.inner.layers[1].seen"])
def test_so_is_what_one_counts_in_a_model_that_another_one_steps_with(read) -> None:
    made = (
        "rows = keras.Input((4,))\ninner = keras.Model(rows, keras.layers.Dense(1)(Tally(name='tally')(rows)))\n"
        "class Net(keras.Model):\n"
        "    def __init__(self, inner):\n"
        "        super().__init__()\n"
        "        self.inner = inner\n\n"
        "    def train_step(self, data):\n"
        "        with tf.GradientTape() as tape:\n"
        "            loss = tf.reduce_mean((self.inner(data[0], training=True) - data[1]) ** 2)\n"
        f"        {GRADS}\n        {APPLY}\n"
        "        return {'loss': loss}\n\n"
        "net = Net(inner)"
    )
    doubts = port(TALLY.replace("MADE", made).replace("net.layers[0].seen", read)).doubts
    assert [d.name for d in doubts if d.danger == "medium"] == ["unknown-placement"]


EPOCHS = """import tensorflow as tf
from tensorflow import keras

class Net(keras.Model):
    def __init__(self):
        super().__init__()
        self.dense, self.total = keras.layers.Dense(1), tf.Variable(0.0, trainable=False)

    def call(self, x):
        return self.dense(x)

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((self(x) - y) ** 2)
        grads = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(grads, self.trainable_variables))
        self.total.assign_add(tf.reduce_sum(tf.abs(x)))
        return {"loss": loss}

class Watch(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        self.model.total.assign(0.0)

    def on_epoch_end(self, epoch, logs=None):
        print(epoch, float(self.model.total))

net = Net()
net.compile(keras.optimizers.SGD(0.1))
net.fit(x, y, epochs=2, callbacks=[Watch()])
"""


@pytest.mark.parametrize("batch", ["local", "global"])
def test_what_steps_add_up_since_a_callback_set_it_is_told_of_where_it_is_shown(batch) -> None:
    doubts = port(EPOCHS, Options(batch=batch)).doubts
    assert [d.name for d in doubts if d.danger == "medium"] == ["unknown-placement"]
