"""Faults planted in right ports of a tape, of fit() and of a session are reported as themselves, on two real ranks."""

from __future__ import annotations

from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

import pytest

if find_spec("tensorflow") is None:
    pytest.skip("TensorFlow is not installed: nox -s keras2 keras3 runs these", allow_module_level=True)

from dlrun.verify.checks.metrics import evaluated_whole
from dlrun.verify.checks.rate import learning_rate
from dlrun.verify.compare import compare
from dlrun.verify.job import Job, Runs
from dlrun.verify.runs import Task, execute, orders

SCRIPTS = Path(__file__).parent / "scripts"
TAPE = (SCRIPTS / "tape_dist.py").read_text()
FIT = (SCRIPTS / "fit_dist.py").read_text()
SESSION = (SCRIPTS / "session_dist.py").read_text()
AVERAGE = "    grads = dl.gradients(grads)\n"
SAVE = '    dl.rank0(model.save_weights)("tape.weights.h5")\n'
OF_GRAPH, CLIP_GRAPH = AVERAGE.lstrip(), "grads, _ = tf.clip_by_global_norm(grads, 0.1)\n"
CLIP = "    grads, _ = tf.clip_by_global_norm(grads, 0.1)\n"

FAULTS = {
    "nothing-tape": (
        TAPE.replace("@tf.function\n", "queue = tf.Variable(tf.zeros((16, 8)))\n\n\n@tf.function\n").replace(
            CLIP, CLIP + "    queue.assign(tf.concat([x, queue[: -len(x)]], 0))\n"
        ),
        set(),
    ),
    "nothing-fit": (FIT, set()),
    "missing-average": (TAPE.replace(AVERAGE, ""), {"missing-average"}),
    "average-after-clip": (TAPE.replace(AVERAGE, "").replace(CLIP, CLIP + AVERAGE), {"average-after-clip"}),
    "several": (
        TAPE.replace("dl.lr_scale(0.1)", "dl.lr_scale(dl.lr_scale(0.1))")
        .replace("dl.shard(train)", "train")
        .replace("dl.broadcast_variables(model, optimizer)\n", "")
        .replace("dl.reseed()\n", "")
        .replace("dl.rank0(model.save_weights)", "model.save_weights"),
        {"double-scaling", "unsharded-loader", "missing-broadcast", "equal-seeds", "save-by-every-rank"},
    ),
    "variable-of-own-samples": (
        TAPE.replace("@tf.function\n", "center = tf.Variable(tf.zeros(8))\n\n\n@tf.function\n").replace(
            CLIP, CLIP + "    center.assign(0.9 * center + 0.1 * tf.reduce_mean(x, 0))\n"
        ),
        {"state-differs"},
    ),
    "tensor-of-own-samples": (
        TAPE.replace("@tf.function\n", "center = tf.zeros(8)\n\n\n@tf.function\n")
        .replace("    with tf.Grad", "    global center\n    with tf.Grad")
        .replace("model(x, training", "model(x - center, training")
        .replace(CLIP, CLIP + "    center = 0.9 * center + 0.1 * tf.reduce_mean(x, 0)\n"),
        {"state-differs"},
    ),
    "number-of-own-samples": (
        TAPE.replace("@tf.function\n", "base = 0.0\n\n\n@tf.function\n")
        .replace("    with tf.Grad", "    global base\n    with tf.Grad")
        .replace("training=True))", "training=True)) * (1 + base)")
        .replace(CLIP, CLIP + "    base = 0.9 * base + 0.1 * float(loss)\n"),
        {"state-differs"},
    ),
    "best-by-own-samples": (
        TAPE.replace("dl.reseed()\n", "dl.reseed()\nbest = 9.0\n")
        .replace("    losses =", "    own = float(cross_entropy(y, model(x)))\n    losses =")
        .replace(SAVE, f"    if own < best:\n        best = own\n    {SAVE}"),
        {"rank-dependent-choice"},
    ),
    "best-by-all-samples": (
        TAPE.replace("dl.reseed()\n", "dl.reseed()\nbest = 9.0\n")
        .replace("    losses =", "    own = dl.average(float(cross_entropy(y, model(x))))\n    losses =")
        .replace(SAVE, f"    if own < best:\n        best = own\n    {SAVE}"),
        set(),
    ),
    "total-of-shared": (
        TAPE.replace("    losses =", "    rate = dl.total(float(optimizer.learning_rate))\n    losses ="),
        {"total-of-shared"},
    ),
    "uneven-steps": (TAPE.replace("range(20)", "range(1 if dl.get_rank() else 20)"), {"uneven-steps"}),
    "fit-with-all-samples": (
        FIT.replace("distribute(model)", "distribute(model, shard_data=False)"),
        {"unsharded-loader"},
    ),
    "fit-scaled-twice-and-saved-by-all": (
        FIT.replace("dl.lr_scale(0.1)", "dl.lr_scale(dl.lr_scale(0.1))").replace("dl.rank0(model.save)", "model.save"),
        {"double-scaling", "save-by-every-rank"},
    ),
    "fit-not-distributed": (
        FIT.replace("dl.distribute(model)\n", ""),
        {"missing-average", "unsharded-loader", "missing-broadcast", "equal-seeds"},
    ),
    "nothing-session": (SESSION, set()),
    "session-average-after-clip": (
        SESSION.replace(OF_GRAPH, "").replace(CLIP_GRAPH, CLIP_GRAPH + OF_GRAPH).replace("dl.lr_scale(0.1)", "0.5"),
        {"average-after-clip", "other-rate"},
    ),
    "session-several": (
        SESSION.replace(OF_GRAPH, "")
        .replace("dl.lr_scale(0.1)", "dl.lr_scale(dl.lr_scale(0.1))")
        .replace("dl.shard(range(0, 48, 8))", "range(0, 48, 8)")
        .replace("    sess.run(dl.broadcast_variables())\n", "")
        .replace("dl.rank0(saver.save)", "saver.save"),
        {"missing-average", "double-scaling", "unsharded-loader", "missing-broadcast", "save-by-every-rank"},
    ),
}


def run(folder: Path, text: str, ranks: int):
    """Return what a port did in six steps."""
    folder.mkdir()
    script = folder / "train_dist.py"
    script.write_text(text)
    given = orders(6, 3, framework="tensorflow", lineage=ranks > 1)
    return execute(Task("run", script, (), ranks, folder / "run", given, {}, 60.0))


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """What the right ports do on one rank, which is what their serial scripts do."""
    made = {}

    def of(text: str):
        right = next(right for right in (TAPE, FIT, SESSION) if right[:50] == text[:50])
        if right not in made:
            made[right] = run(tmp_path_factory.mktemp("alone") / "work", right, 1)
            assert made[right].whole, made[right].log
        return made[right]

    return of


RISING = "tf.keras.optimizers.schedules.CosineDecay(0.001, dl.steps(60), warmup_target={}, warmup_steps=dl.steps(24))"


@pytest.mark.parametrize(
    ("peak", "fault"),
    [("dl.lr_scale(0.1)", ""), ("0.1", "lost-scaling"), ("dl.lr_scale(dl.lr_scale(0.1))", "double-scaling")],
)
def test_a_peak_behind_a_warm_up_that_lost_its_scaling_is_found(peak, fault, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    right, planted = (TAPE.replace("dl.lr_scale(0.1)", RISING.format(lr).replace("0.001", "dl.lr_scale(0.001)"))
                      for lr in ("dl.lr_scale(0.1)", peak))  # fmt: skip
    check = learning_rate(run(tmp_path / "alone", right, 1), run(tmp_path / "work", planted, 2))
    print(check)
    assert check.fault == fault


KERAS_2 = metadata.version("keras").startswith("2.")
WITH_KERAS_2 = ("nothing-tape", "nothing-fit", "fit-not-distributed", *(n for n in FAULTS if "session" in n))


@pytest.mark.parametrize("name", [n for n in FAULTS if (n in WITH_KERAS_2) == KERAS_2 or n == "nothing-fit"])
def test_a_fault_in_a_port_of_tensorflow_is_reported_as_itself(name, alone, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    text, expected = FAULTS[name]
    serial = alone(text)
    checks = compare(serial, serial, serial, serial, run(tmp_path / "work", text, 2))
    print(*checks, sep="\n")
    assert {check.fault for check in checks if check.fault and check.status == "failed"} == expected
    assert expected or {check.name: check.status for check in checks}["shards"] == "passed"


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
    check = runs.metrics(alone(text), alone(text), identity, False)
    print(check)
    assert check.fault == fault


@pytest.mark.skipif(KERAS_2, reason="Keras 3 is not installed: nox -s keras3 runs this")
@pytest.mark.parametrize(
    ("reduction", "status"), [("sum_over_batch_size", "passed"), ("sum", "passed"), ("none", "n/a")]
)
def test_ranks_that_share_serial_batches_train_alike_with_dropout_off(
    reduction, status, tmp_path, monkeypatch
) -> None:
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
    check = runs.whole(runs.identity(), runs.sharded(), False)
    print(check)
    assert check.status == status
    assert status != "passed" or "with dropout off" in check.finding
    assert reduction != "sum" or "the parts of a loss that is a sum added up" in check.finding


NOISE = "class Noisy(keras.Sequential):\n    def train_step(self, data):\n        import tensorflow as tf\n"
NOISE += "        noise = tf.random.normal(tf.shape(data[0]))\n"
NOISE += "        return super().train_step((data[0] + noise, data[1]))\n\n\nmodel = Noisy("


PART = ", validation_batch_size=4, validation_steps=dl.steps(2)"


@pytest.mark.parametrize(
    ("text", "status", "validation"),
    [
        (FIT.replace("from_logits=True", "from_logits=True, reduction='sum'"), "passed", ""),
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
    check, evaluation = runs.whole(serial, sharded, False), evaluated_whole(serial, sharded)
    print(check, evaluation)
    assert check.status == status
    assert (evaluation.fault if evaluation else "") == ("evaluates-less" if validation else "")
    said = "the parts of a loss that is a sum added up" if status == "passed" else "random numbers are drawn"
    assert said in check.finding
