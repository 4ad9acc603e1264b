"""What ranks of TensorFlow and Keras show of an epoch is what the serial script shows of the same samples."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from running import rounded, started

from dlrun.port import Options, port

if find_spec("tensorflow") is None:
    pytest.skip("TensorFlow is not installed: nox -s keras3 runs these", allow_module_level=True)

QUIET = {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1"}


@pytest.mark.parametrize(
    ("script", "ranks"),
    [
        ("numbers_of_tensorflow.py", 2),
        ("numbers_of_keras.py", 2),
        ("numbers_of_tapes.py", 2),
        ("numbers_of_tape_evaluations.py", 3),
        ("numbers_of_functions.py", 3),
        ("numbers_of_counts_tensorflow.py", 3),
        ("numbers_of_callbacks.py", 3),
        ("numbers_of_hooks.py", 2),
        ("numbers_of_pipelines.py", 3),
        ("numbers_of_own_loaders.py", 3),
    ],
)
def test_ranks_show_the_serial_numbers(script, ranks, tmp_path) -> None:
    source = Path(__file__).with_name(script)
    (tmp_path / "dist.py").write_text(port(source.read_text()).text)
    shown = started(tmp_path, [str(source)], **QUIET)
    on_ranks = started(tmp_path, ["dist.py"], ranks=ranks, **QUIET)
    assert len(shown.splitlines()) > 8
    for serial, mine in zip(shown.splitlines(), on_ranks.splitlines(), strict=True):
        assert rounded(mine) == rounded(serial)


@pytest.mark.parametrize("batch", ["local", "global"])
@pytest.mark.parametrize("script", ["numbers_of_windows_tensorflow.py", "numbers_of_padded_batches.py"])
def test_ranks_show_the_serial_numbers_whatever_batch_stays(script, batch, tmp_path) -> None:
    source = Path(__file__).with_name(script)
    ported = port(source.read_text(), Options(batch=batch))
    assert {doubt.name for doubt in ported.doubts} <= {"rate-may-not-suit"}
    (tmp_path / "dist.py").write_text(ported.text)
    shown = started(tmp_path, [str(source)], **QUIET)
    on_ranks = started(tmp_path, ["dist.py"], ranks=2, **QUIET)
    assert len(shown.splitlines()) > 8
    for serial, mine in zip(shown.splitlines(), on_ranks.splitlines(), strict=True):
        assert rounded(mine) == rounded(serial)


STATISTICS = """import numpy as np
import tensorflow as tf
from tensorflow import keras

x = (np.arange(240).reshape(60, 4) % 17).astype("float32")
y = x.sum(1, keepdims=True)
data = tf.data.Dataset.from_tensor_slices((x, y)).batch(5)
norm = keras.layers.BatchNormalization(momentum=0.8)
model = keras.Sequential([keras.layers.Input((4,)), norm, keras.layers.Dense(1)])
opt = keras.optimizers.SGD(0.0)
for epoch in range(2):
    for a, b in data:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(a, training=True) - b) ** 2)
        grads = tape.gradient(loss, model.trainable_variables)
        opt.apply_gradients(zip(grads, model.trainable_variables))
    error, seen = 0.0, 0
    for a, b in data:
        error += float(tf.reduce_sum((model(a, training=False) - b) ** 2))
        seen += len(a)
    print(epoch, error / seen, seen)
model.save_weights("last.weights.h5")
np.save("mean.npy", np.array(norm.moving_mean))
"""


def test_statistics_of_batch_normalization_are_averaged_before_an_evaluation_and_a_save(tmp_path) -> None:
    text = port(STATISTICS).text
    assert text.count("dl.average(model)") == 1 and 'dl.shard(data, whole="batches")' in text
    (tmp_path / "dist.py").write_text(text)
    shown = [line.split() for line in started(tmp_path, ["dist.py"], ranks=2, **QUIET).splitlines()]
    batches = (np.arange(240).reshape(60, 4) % 17).reshape(12, 5, 4)
    mean = np.zeros(4)
    for _ in range(2):
        ends = []
        for rank in range(2):
            own = mean
            for batch in batches[rank::2]:
                own = 0.8 * own + 0.2 * batch.mean(0)
            ends.append(own)
        mean = (ends[0] + ends[1]) / 2
    np.testing.assert_allclose(np.load(tmp_path / "mean.npy"), mean, rtol=1e-5)
    # What was evaluated last is the model that was saved.
    (tmp_path / "again.py").write_text(
        STATISTICS.replace("range(2)", "range(1)")
        .replace("    for a, b in data:\n        with", "    for a, b in []:\n        with")
        .replace("for epoch", 'model.load_weights("last.weights.h5")\nfor epoch')
    )
    saved = started(tmp_path, ["again.py"], **QUIET).split()
    assert rounded(" ".join(saved[1:])) == rounded(" ".join(shown[-1][1:]))


ONE_SEED = """import numpy as np
import tensorflow as tf

x = np.random.RandomState(0).randn(96, 4).astype("float32")
y = 2 * x.sum(1, keepdims=True)
model = tf.keras.Sequential([tf.keras.Input((4,)), tf.keras.layers.Dense(1, kernel_initializer="ones")])
model.compile(tf.keras.optimizers.SGD(0.2), "mae")
data = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(96, seed=1).batch(8)
history = model.fit(data, epochs=2, verbose=0).history
print(history["loss"])
"""


def test_a_data_set_with_the_only_seed_of_a_script_keeps_its_order_on_ranks(tmp_path) -> None:
    (tmp_path / "serial.py").write_text(ONE_SEED)
    (tmp_path / "dist.py").write_text(port(ONE_SEED, Options(batch="global")).text)
    serial = rounded(started(tmp_path, ["serial.py"], **QUIET))
    assert rounded(started(tmp_path, ["dist.py"], ranks=2, **QUIET)) == serial
