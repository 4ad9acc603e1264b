"""``--batch global`` of Estimators: n ranks leave the serial script's parameters, and its global step."""

from __future__ import annotations

from importlib.util import find_spec

import pytest
from running import started

from dlrun.errors import DlrunError
from dlrun.port import Options, port

GLOBAL = Options(batch="global")
QUIET = {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1"}
SCRIPT = """import numpy as np
import tensorflow.compat.v1 as tf

np.random.seed(0)
x = np.random.rand(43, 4).astype("float32")
y = (x.sum(1, keepdims=True) > 2).astype("float32")


def model_fn(features, labels, mode):
    first = tf.get_variable("first", [4, 6], initializer=tf.glorot_uniform_initializer(1))
    second = tf.get_variable("second", [6, 1], initializer=tf.glorot_uniform_initializer(2))
    out = tf.matmul(tf.tanh(tf.matmul(features["x"], first)), second)
    loss = LOSS
    train = OPTIMIZER.minimize(loss, global_step=tf.train.get_global_step())
    return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=train)


def read():
    return tf.data.Dataset.from_tensor_slices(({"x": x}, y)).shuffle(43, seed=1).batch(10).repeat(2)


estimator = tf.estimator.Estimator(model_fn, "kept_" + NAME)
for again in range(2):
    estimator.train(INPUT)
    found = estimator.evaluate(lambda: tf.data.Dataset.from_tensor_slices(({"x": x}, y)).batch(10))
    print(found["global_step"], found["loss"])
print(*[float(w) for name in ("first", "second") for w in estimator.get_variable_value(name).ravel()])
"""
NUMPY = "tf.estimator.inputs.numpy_input_fn({'x': x}, y, batch_size=10, num_epochs=2, shuffle=%s)"


def _script(optimizer="tf.train.GradientDescentOptimizer(0.1)", loss="", given="read", name="serial"):
    loss = loss or "tf.losses.sigmoid_cross_entropy(labels, out)"
    script = SCRIPT.replace("OPTIMIZER", optimizer).replace("LOSS", loss).replace("INPUT", given)
    return script.replace("NAME", f'"{name}"')


@pytest.mark.parametrize(
    ("given", "written"),
    [
        ("read", "estimator.train(lambda: dl.part_of_batches(read()), hooks=[dl.BroadcastHook()])"),
        ("lambda: read()", "estimator.train(lambda: dl.part_of_batches(read()), hooks=[dl.BroadcastHook()])"),
        (NUMPY % False, "estimator.train(lambda: dl.part_of_batches(tf.estimator.inputs.numpy_input_fn("),
    ],
)
def test_the_training_takes_a_part_of_each_batch(given, written):
    ported = port(_script(given=given), GLOBAL)
    assert written in ported.text and "GradientDescentOptimizer(0.1)" in ported.text
    assert "serial_steps" not in ported.text and "dl.shard" not in ported.text


@pytest.mark.parametrize(
    ("loss", "given", "why"),
    [
        ("tf.reduce_sum(tf.square(out - labels))", "read", "a sum over the samples"),
        ("tf.losses.mean_squared_error(labels, out, weights=labels)", "read", "no mean over the samples"),
        ("tf.losses.get_total_loss()", "read", "may be anything"),
        ("", NUMPY % True, "an order of its own"),
    ],
)
def test_an_estimator_whose_batches_no_parts_stand_for_is_refused(loss, given, why):
    with pytest.raises(DlrunError, match=why):
        port(_script(loss=loss, given=given), GLOBAL)


@pytest.mark.skipif(find_spec("tensorflow_estimator") is None, reason="no Estimators here: nox -s keras2 runs it")
@pytest.mark.parametrize(
    ("n", "optimizer", "given"),
    [
        (2, "tf.train.MomentumOptimizer(0.1, 0.9)", "read"),
        (3, "tf.train.AdamOptimizer(0.01)", NUMPY % False),
    ],
)
def test_ranks_leave_the_serial_parameters_after_20_steps(n, optimizer, given, tmp_path):
    (tmp_path / "serial.py").write_text(_script(optimizer, given=given))
    (tmp_path / "dist.py").write_text(port(_script(optimizer, given=given, name="ranks"), GLOBAL).text)
    serial = started(tmp_path, ["serial.py"], **QUIET).splitlines()
    ranks = started(tmp_path, ["dist.py"], ranks=n, **QUIET).splitlines()
    assert len(serial) == len(ranks) == 3 and int(serial[1].split()[0]) >= 18
    for ours, theirs in zip(ranks, serial, strict=True):
        assert list(map(float, ours.split())) == pytest.approx(list(map(float, theirs.split())), rel=1e-5, abs=1e-6)
