"""``--batch global`` of models with a ``train_step`` of their own: n ranks leave the serial script's parameters."""

from __future__ import annotations

from importlib.util import find_spec

import pytest
from running import started

from dlrun.errors import DlrunError
from dlrun.port import Options, port

GLOBAL = Options(batch="global")
QUIET = {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1"}
SCRIPT = """import numpy as np
import tensorflow as tf
from tensorflow import keras

keras.utils.set_random_seed(0)
x = np.random.rand(43, 4).astype("float32")
y = (x.sum(1, keepdims=True) > 2).astype("float32")


class Stepping(keras.Model):
    def __init__(self):
        super().__init__()
        self.hidden = keras.layers.Dense(8, activation="tanh", kernel_regularizer="l2")
        self.out = keras.layers.Dense(1)
        self.seen = self.add_weight(name="seen", shape=(), initializer="zeros", trainable=False)
        self.told = keras.metrics.Mean(name="told")
        self.right = keras.metrics.BinaryAccuracy(threshold=0.0, name="right")

    def call(self, a, training=False):
        return self.out(self.hidden(a))

    def compile(self, loss_fn, **options):
        super().compile(**options)
        self.loss_fn = loss_fn

    @property
    def metrics(self):
        return [self.told, self.right]

    def train_step(self, data):
        a, b = data
        with tf.GradientTape() as tape:
            out = self(a, training=True)
            loss = LOSS
        grads = tape.gradient(loss, self.trainable_variables)
        APPLY
        self.seen.assign_add(tf.cast(tf.shape(a)[0], tf.float32))
        self.told.update_state(loss)
        self.right.update_state(b, out)
        return {"told": self.told.result(), "right": self.right.result(), "seen": self.seen}


model = Stepping()
model.compile(keras.losses.BinaryCrossentropy(from_logits=True), optimizer=OPTIMIZER)
history = model.fit(x, y, batch_size=10, epochs=4, verbose=0).history
for name in ("told", "right", "seen"):
    print(*(float(v) for v in history[name]))
print(*[float(w) for v in model.trainable_variables for w in np.ravel(v.numpy())])
"""
LOSS = "self.loss_fn(b, out) + tf.add_n(self.losses)"
APPLY = "self.optimizer.apply_gradients(zip(grads, self.trainable_variables))"
CLIPPED = f"grads, _ = tf.clip_by_global_norm(grads, 0.1)\n        {APPLY}"


def _script(optimizer="keras.optimizers.SGD(0.1)", loss=LOSS, apply=APPLY):
    return SCRIPT.replace("OPTIMIZER", optimizer).replace("LOSS", loss).replace("APPLY", apply)


def test_a_train_step_whose_loss_is_a_mean_goes_through_a_part_of_each_batch():
    ported = port(_script(), GLOBAL)
    assert 'dl.distribute(model, batch="global", mean_step=True)' in ported.text and not ported.doubts
    assert '"seen": dl.serial_steps(self.seen)' in ported.text and "SGD(0.1)" in ported.text


@pytest.mark.parametrize(
    "loss",
    [
        "keras.losses.MeanSquaredError()(b, out)",
        "tf.reduce_mean(keras.losses.mse(b, out))",
        "self.compute_loss(x=a, y=b, y_pred=out)",
        "self.compiled_loss(b, out, regularization_losses=self.losses)",
        "0.5 * tf.reduce_mean(tf.reduce_sum(tf.square(out - b), axis=1))",
        "tf.add_n([tf.reduce_mean((out - b) ** 2), *self.losses])",
    ],
)
def test_so_does_one_of_any_mean(loss):
    assert "mean_step=True" in port(_script(loss=loss), GLOBAL).text


@pytest.mark.parametrize(
    ("loss", "why"),
    [
        ("tf.reduce_sum(tf.square(out - b))", "a sum over the samples"),
        ("tf.sqrt(tf.reduce_mean(tf.square(out - b)))", "no mean over the samples"),
        ("tf.reduce_mean((out - tf.reduce_mean(out, axis=0)) * b)", "no mean over the samples"),
        ("tf.square(out - b)", "may be anything"),
        ("measure(out, b)", "may be anything"),
    ],
)
def test_one_whose_loss_is_no_mean_is_refused(loss, why):
    with pytest.raises(DlrunError, match=why):
        port(_script(loss=loss), GLOBAL)


def test_one_that_adds_gradients_up_over_batches_is_refused():
    kept = "for total, grad in zip(self.sums, grads):\n            total.assign_add(grad)"
    with pytest.raises(DlrunError, match="adds gradients up"):
        port(_script(apply=kept), GLOBAL)


@pytest.mark.skipif(find_spec("tensorflow") is None, reason="TensorFlow is not installed: nox -s keras3 runs it")
@pytest.mark.parametrize(
    ("n", "optimizer", "loss", "apply"),
    [
        (2, "keras.optimizers.SGD(0.1)", LOSS, CLIPPED),
        (3, "keras.optimizers.SGD(0.05, momentum=0.9)", LOSS, APPLY),
        (3, "keras.optimizers.Adam(0.01)", LOSS, APPLY),
    ],
)
def test_ranks_leave_the_serial_parameters_and_history_after_20_steps(n, optimizer, loss, apply, tmp_path):
    script = _script(optimizer, loss, apply)
    (tmp_path / "serial.py").write_text(script)
    (tmp_path / "dist.py").write_text(port(script, GLOBAL).text)
    serial = started(tmp_path, ["serial.py"], **QUIET).splitlines()
    ranks = started(tmp_path, ["dist.py"], ranks=n, **QUIET).splitlines()
    assert len(serial) == len(ranks) == 4
    for ours, theirs in zip(ranks, serial, strict=True):
        assert list(map(float, ours.split())) == pytest.approx(list(map(float, theirs.split())), rel=1e-5, abs=1e-6)
