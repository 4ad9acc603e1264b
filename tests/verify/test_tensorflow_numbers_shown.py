"""Every number that a port of a tape or of fit() shows and writes, beside the serial script's; on two real ranks."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest

if find_spec("tensorflow") is None:
    pytest.skip("TensorFlow is not installed: nox -s keras2 keras3 runs these", allow_module_level=True)

import tensorflow as tf
from tensorflow_ports import KERAS_2

from dlrun.port import port
from dlrun.verify.frozen import frozen
from dlrun.verify.job import Job, Runs
from dlrun.verify.tracer.recorder import UNCUT, Orders
from dlrun.verify.tracer.short_fits import ShortFits

HEAD = """import numpy as np
import tensorflow as tf
tf.keras.utils.set_random_seed(0)
x = np.random.rand(160, 4).astype("float32")
y = (x.sum(1) > 2).astype("int32")
"""
TAPE = """data = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(160, seed=1).batch(8)
model = tf.keras.Sequential([tf.keras.layers.Dense(8, activation="relu"), tf.keras.layers.Dense(2)])
optimizer = tf.keras.optimizers.SGD(0.05)
loss_of = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
accuracy = tf.keras.metrics.SparseCategoricalAccuracy()
for epoch in range(3):
    accuracy.reset_state()
    seen, total = 0, 0.0
    for step, (a, b) in enumerate(data):
        with tf.GradientTape() as tape:
            out = model(a, training=True)
            loss = loss_of(b, out)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))
        accuracy(b, out)
        seen += len(a)
        total += float(loss)
    print(f"epoch {epoch}: {total / (step + 1):.4f} {accuracy.result():.4f} of {seen}, last {float(loss):.4f}")
np.save("done.npy", np.array([seen, total]))
"""
FIT = """model = tf.keras.Sequential([tf.keras.layers.Dense(8, activation="relu"), tf.keras.layers.Dense(1, "sigmoid")])
positives = tf.keras.metrics.FalsePositives(thresholds=0.1, name="positives")
model.compile(optimizer=tf.keras.optimizers.SGD(0.01), loss="binary_crossentropy", metrics=["accuracy", positives])
history = model.fit(x[:128], y[:128], batch_size=8, epochs=2, verbose=0)
for name, values in history.history.items():
    print(name, [round(float(v), 4) for v in values])
loss, accuracy, found = model.evaluate(x[128:], y[128:], verbose=0)
print(f"test {loss:.4f} {accuracy:.4f} {found:.0f}")
"""
LONG = FIT.replace(  # whose epochs no run of some hundred steps ends
    "x[:128], y[:128], batch_size=8, epochs=2",
    "np.tile(x[:128], (40, 1)), np.tile(y[:128], 40), batch_size=8, epochs=50, validation_data=(x[128:], y[128:])",
)


@pytest.mark.skipif(KERAS_2, reason="Keras 3 is not installed: nox -s keras3 runs this")
@pytest.mark.parametrize(
    ("script", "edits"),
    [
        (TAPE, ()),
        (TAPE, (("    dl.total(accuracy)", "    pass"),)),
        (TAPE, (("np.array([seen, total])", "np.array([seen / 2, total])"),)),
        (FIT, ()),
        (FIT, (("test {loss:.4f}", "test {dl.total(loss):.4f}"),)),
        (FIT, (("round(float(v), 4)", "round(float(v) / 2, 4)"),)),
        (LONG, ()),
        (LONG, (("test {loss:.4f}", "test {dl.total(loss):.4f}"),)),
    ],
    ids=[
        "tape",
        "local to rank 0",
        "written apart",
        "fit",
        "counted twice",
        "halved",
        "long",
        "long and counted twice",
    ],
)
def test_numbers_of_a_right_port_are_the_serial_ones_and_others_are_told(script, edits, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    serial, ported = tmp_path / "train.py", tmp_path / "train_dist.py"
    serial.write_text(HEAD + script)
    text = port(HEAD + script).text
    for old, new in edits:
        assert old in text, text
        text = text.replace(old, new)
    ported.write_text(text)
    (tmp_path / "runs").mkdir()
    runs = Runs(Job(serial, ported, stall=60.0), tmp_path / "runs")
    alone = runs.longer("serial")
    checks, *_ = frozen(runs, alone, alone, runs.sharded())
    print(*checks, sep="\n")
    assert [check.status for check in checks] == ["failed" if edits else "passed"]


def test_batches_of_fit_are_of_other_samples_where_others_come_last() -> None:
    def fit(
        x: Any, y: Any = None, batch_size: int = 4, epochs: int = 1, validation_split: float = 0.0, validation_data=None
    ) -> tuple[Any, Any]:
        return x, y

    def fitted(turn: int, **more: object) -> tuple[Any, Any]:
        orders = Orders("t.py", "out", "scratch", "folder", 6, 3, frozen=True, few=UNCUT, turn=turn, shares=2)
        return ShortFits(orders).wrapped(fit)(np.arange(32.0), y=np.arange(32) + 9, batch_size=4, **more)

    (x, y), (straight, _), (split, _) = fitted(1), fitted(0), fitted(1, validation_split=0.25)
    assert sorted(x) == list(straight) == list(split) == list(range(32))  # the last ones are those of validation
    assert list(y) == list(x + 9)
    assert all(set(x[i : i + 4]) != set(straight[i : i + 4]) for i in range(0, 32, 4))


def test_epochs_of_fit_are_cut_to_batches_that_ranks_share_evenly() -> None:
    def fit(x: Any, batch_size: int = 4, epochs: int = 1, validation_data: Any = None) -> int:
        return len(x)

    orders = Orders("t.py", "out", "scratch", "folder", 6, 3, frozen=True, few=3, shares=2)
    cut = ShortFits(orders).wrapped(fit)
    assert [cut(np.arange(rows), batch_size=4) for rows in (40, 22, 20, 3)] == [24, 16, 16, 3]
    batches = tf.data.Dataset.range(20).batch(4)
    assert cut(batches) == 4
