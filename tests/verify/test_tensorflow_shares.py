"""What ranks of TensorFlow's ports share, and the rates they scale: judged on two real ranks."""

from __future__ import annotations

from importlib.util import find_spec
from types import SimpleNamespace

import pytest

if find_spec("tensorflow") is None:
    pytest.skip("TensorFlow is not installed: nox -s keras2 keras3 runs these", allow_module_level=True)

from tensorflow_ports import CLIP, FIT, KERAS_2, TAPE, run

from dlrun.verify.checks.data import global_batch, shards
from dlrun.verify.checks.folds import folds
from dlrun.verify.checks.metrics import evaluated_whole
from dlrun.verify.checks.rate import learning_rate
from dlrun.verify.evaluations import shared
from dlrun.verify.job import Job, Runs
from dlrun.verify.tracer.ops import Ops

RISING = "tf.keras.optimizers.schedules.CosineDecay(0.001, dl.steps(60), warmup_target={}, warmup_steps=dl.steps(24))"


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """What the right port does on one rank, which is what its serial script does."""
    made = run(tmp_path_factory.mktemp("alone") / "work", TAPE, 1)
    assert made.whole, made.log
    return made


@pytest.mark.skipif(KERAS_2, reason="Keras 3 is not installed: nox -s keras3 runs this")
def test_a_peak_behind_a_warm_up_that_lost_its_scaling_is_found(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)

    def trained(peak: str, ranks: int):
        rising = RISING.format(peak).replace("0.001", "dl.lr_scale(0.001)")
        return run(tmp_path / f"{len(list(tmp_path.iterdir()))}", TAPE.replace("dl.lr_scale(0.1)", rising), ranks)

    right = trained("dl.lr_scale(0.1)", 1)
    peaks = ("dl.lr_scale(0.1)", "0.1", "dl.lr_scale(dl.lr_scale(0.1))")
    checks = [learning_rate(right, trained(peak, 2)) for peak in peaks]
    print(*checks, sep="\n")
    assert [check.fault for check in checks] == ["", "lost-scaling", "double-scaling"]


@pytest.mark.skipif(KERAS_2, reason="Keras 3 is not installed: nox -s keras3 runs this")
@pytest.mark.parametrize(
    ("size", "shown", "fault"), [(5, "average({} / 6)", "metric-mean-of-means"), (6, "total({}) / 12", "")]
)
def test_an_evaluation_is_summed_not_averaged_over_ranks(size, shown, fault, alone, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    shown = f"dl.{shown.format('sum(losses)')}"
    text = TAPE.replace("batch(5)", f"batch({size})").replace("in test]", "in dl.shard(test)]")
    text = text.replace("sum(losses) / 12", shown)
    script = tmp_path / "train_dist.py"
    script.write_text(text)
    runs = Runs(Job(script, script, stall=60.0), tmp_path / "runs")
    (tmp_path / "runs").mkdir()
    identity = runs.identity()
    check = shared(runs, alone, alone, identity, False)
    print(check)
    assert check.fault == fault


@pytest.mark.skipif(KERAS_2, reason="Keras 3 is not installed: nox -s keras3 runs this")
@pytest.mark.parametrize(("reduction", "status"), [("sum", "passed"), ("none", "n/a")])
def test_ranks_that_share_serial_batches_train_alike_with_dropout_off(reduction, status, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    script = tmp_path / "train_dist.py"
    text = TAPE.replace(CLIP, "").replace("from_logits=True", f"from_logits=True, reduction='{reduction}'")
    if reduction == "none":  # the mean over those that a mask leaves
        text = text.replace("        loss = c", "        kept = tf.cast(x[:, 0] > 0, tf.float32)\n        loss = c")
        mean = "        loss = tf.reduce_sum(loss * kept) / tf.reduce_sum(kept)\n"
        text = text.replace("    grads = tape", f"{mean}    grads = tape")
        text = text.replace("float(cross_entropy(y, model(x)))", "float(sum(cross_entropy(y, model(x))))")
    script.write_text(text)
    (tmp_path / "runs").mkdir()
    runs = Runs(Job(script, script, stall=60.0), tmp_path / "runs")
    check, _ = runs.whole(runs.identity(), runs.sharded(), False)
    print(check)
    assert check.status == status
    assert status != "passed" or "with dropout off" in check.finding
    assert reduction != "sum" or "the parts of a loss that is a sum added up" in check.finding


INNER = """import keras
import numpy as np
import tensorflow as tf
import dl_comm.keras as dl

dl.init()
keras.utils.set_random_seed(0)
rows = np.random.randn(24, 6).astype("float32")
data = tf.data.Dataset.zip(tuple(tf.data.Dataset.from_tensor_slices(x) for x in (rows, rows[::-1]))).batch(8)
dense, pair = keras.layers.Dense(4), [keras.layers.Input((6,)), keras.layers.Input((6,))]
net = keras.Model(pair, dense(pair[0]) - dense(pair[1]))


class Pairs(keras.Model):
    def __init__(self):
        super().__init__()
        self.net = net

    def train_step(self, data):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(self.net(data) ** 2)
        grads = tape.gradient(loss, self.net.trainable_weights)
        self.optimizer.apply_gradients(zip(grads, self.net.trainable_weights))
        return {"loss": loss}


pairs = Pairs()
pairs.compile(keras.optimizers.SGD(0.01))
dl.distribute(pairs, batch="global", mean_step=True)
pairs.fit(data, epochs=2, verbose=0)
dl.finalize()
"""


@pytest.mark.skipif(KERAS_2, reason="Keras 3 is not installed: nox -s keras3 runs this")
def test_a_step_of_the_scripts_own_that_takes_a_part_of_each_batch_shares_them(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    script = tmp_path / "train_dist.py"
    script.write_text(INNER)
    (tmp_path / "runs").mkdir()
    runs = Runs(Job(script, script, stall=60.0), tmp_path / "runs")
    serial, sharded = runs.identity(), runs.sharded()
    covered, (check, _) = shards(serial, sharded), runs.whole(serial, sharded, False)
    print(covered, check)
    assert not covered.fault and check.status == "passed"
    assert global_batch(serial, sharded).status == "passed"


NOISE = "class Noisy(keras.Sequential):\n    def train_step(self, data):\n        import tensorflow as tf\n"
NOISE += "        noise = tf.random.normal(tf.shape(data[0]))\n"
NOISE += "        return super().train_step((data[0] + noise, data[1]))\n\n\nmodel = Noisy("


PART = ", validation_batch_size=4, validation_steps=dl.steps(2)"


@pytest.mark.parametrize(
    ("text", "status", "validation"),
    [
        (FIT, "passed", ""),
        (FIT.replace("model = keras.Sequential(", NOISE), "n/a", PART),
    ],
)
def test_ranks_that_share_the_batches_of_fit_train_alike(text, status, validation, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    script = tmp_path / "train_dist.py"
    script.write_text(text.replace("verbose=0", f"verbose=0, validation_split=0.16{validation}"))
    (tmp_path / "runs").mkdir()
    runs = Runs(Job(script, script, stall=60.0), tmp_path / "runs")
    serial, sharded = runs.identity(), runs.sharded()
    (check, _), evaluation = runs.whole(serial, sharded, False), evaluated_whole(serial, sharded)
    covered = shards(serial, sharded)  # also where an evaluation comes between two epochs
    print(check, evaluation, covered)
    assert covered.status == "passed"
    assert check.status == status
    assert (evaluation.fault if evaluation else "") == ("evaluates-less" if validation else "")
    assert ("with dropout off" if status == "passed" else "random numbers are drawn") in check.finding
    assert "a loss that is a sum" not in check.finding


@pytest.mark.parametrize(("shown", "fault"), [("dl.total(ones)", ""), ("ones", "shown-in-part")])
def test_what_ranks_show_of_their_own_samples_is_found_by_steps_that_are_taken_back(shown, fault, tmp_path) -> None:
    counts = (
        "    ones = 0\n    for x, y in dl.shard(train):\n        ones += int(np.sum(y))\n        train_step(x, y)\n"
    )
    text = TAPE.replace("    for x, y in dl.shard(train):\n        train_step(x, y)\n", counts)
    text = text.replace('print(f"epoch {epoch}: loss {sum(losses) / 12:.5f}")', f"print('ones', {shown})")
    # The serial script's 6 batches are 3 steps of 2 ranks, twice.
    one, two = (run(tmp_path / f"{n}", text, n, steps=12 // n, of_an_epoch=6, frozen=True) for n in (1, 2))
    assert one.whole and two.whole, one.log + two.log
    assert len(one.root.steps) == 12
    assert len({event["params"][0]["hash"] for event in one.root.all("step")}) == 1
    assert any(one.root.all("print"))
    found = folds(one, two)
    assert (found.fault if found else "") == fault


@pytest.mark.skipif(KERAS_2, reason="Keras 3 is not installed: nox -s keras3 runs this")
def test_what_is_drawn_by_a_seed_that_counts_on_from_step_to_step_is_not_computed_on_and_on() -> None:
    import keras
    from tensorflow.python.framework import op_callbacks

    followed, seed = Ops(SimpleNamespace(inside=False)), keras.random.SeedGenerator(0)
    op_callbacks.add_op_callback(followed.called)
    try:
        for followed.round in range(5):
            value = followed.of(keras.random.uniform((2,), seed=seed) + 1)
    finally:
        op_callbacks.remove_op_callback(followed.called)
    assert value is not None and not value.accumulates


ENCODED = """
import keras
import numpy as np
import dl_comm.keras as dl
dl.init()
keras.utils.set_random_seed(0)
x = np.random.RandomState(0).rand(64, 4).astype("float32")
code = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(2)])
net = keras.Sequential([keras.layers.Input((4,)), code, keras.layers.Dense(4)])
net.compile(keras.optimizers.SGD(dl.lr_scale(0.1)), "mse")
dl.distribute(net)
for epoch in range(3):
    for b in dl.shard(range(4)):
        rows = x[16 * b:16 * b + 16]
        net.train_on_batch(rows, rows)
    code.predict(x, verbose=0)
"""


@pytest.mark.skipif(KERAS_2, reason="Keras 3 is not installed: nox -s keras3 runs this")
def test_what_a_loop_predicts_between_its_batches_is_none_of_them(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    serial, sharded = (run(tmp_path / str(ranks), ENCODED, ranks) for ranks in (1, 2))
    batch, rate = global_batch(serial, sharded), learning_rate(serial, sharded)
    print(batch, rate)
    assert batch.finding == "32 samples (2 times the serial 16)"
    assert (rate.status, rate.fault) == ("passed", "")
