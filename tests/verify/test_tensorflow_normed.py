"""Batch norm's statistics of Keras's models: all ranks' where a model is evaluated or saved, in loops and in fit()."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

if find_spec("tensorflow") is None:
    pytest.skip("TensorFlow is not installed: nox -s keras2 keras3 runs these", allow_module_level=True)

from tensorflow_ports import run

from dlrun.verify.checks.normed import moved, normed

HEAD = """
import numpy as np
import tensorflow as tf

import dl_comm.FACE as dl

dl.init()
tf.keras.utils.set_random_seed(1)
rng = np.random.default_rng(0)
x = rng.normal(size=(64, 6)).astype("float32")
y = (x.sum(1) > 0).astype("int32")
layers = [tf.keras.layers.Dense(8), tf.keras.layers.BatchNormalization(), tf.keras.layers.Dense(2)]
model = tf.keras.Sequential([tf.keras.layers.InputLayer((6,)), *layers])
optimizer = tf.keras.optimizers.SGD(0.1)
loss_of = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
"""
LOOP = """
train = dl.shard(tf.data.Dataset.from_tensor_slices((x, y)).batch(4))
dl.broadcast_variables(model, optimizer)
for epoch in range(3):
    for a, b in train:
        with tf.GradientTape() as tape:
            loss = loss_of(b, model(a, training=True))
        gradients = dl.gradients(tape.gradient(loss, model.trainable_variables))
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))
    dl.average(model)
    loss_of(y, model(x, training=False))
dl.rank0(model.save_weights)("norm.weights.h5")
dl.finalize()
"""
FIT = """
model.compile(optimizer, loss_of)
dl.distribute(model)
model.fit(x, y, batch_size=4, epochs=1, verbose=0)
model.evaluate(x, y, verbose=0)
dl.rank0(model.save_weights)("norm.weights.h5")
dl.finalize()
"""
OWN = "    dl.average(model)\n", ""


@pytest.mark.parametrize(("text", "fault"), [(LOOP, ""), (LOOP.replace(*OWN), "statistics-differ"), (FIT, "")])
def test_statistics_that_ranks_have_moved_apart_are_named_where_they_are_used(tmp_path, text, fault) -> None:
    sharded = run(
        tmp_path / "sharded",
        HEAD.replace("FACE", "keras" if text is FIT else "tensorflow") + text,
        2,
        steps=20,
        of_an_epoch=3,
    )
    further = run(
        tmp_path / "further",
        HEAD.replace("FACE", "keras" if text is FIT else "tensorflow") + text,
        2,
        steps=20,
        frozen=True,
        quiet=True,
    )
    assert any(sharded.root.all("evaluated")), sharded.log
    found = normed(sharded), moved(sharded, further)
    assert [check.fault for check in found if check] == ([fault] * 2 if fault else [])
