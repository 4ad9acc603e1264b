"""Faults planted in right ports of a tape, of fit() and of a session are reported as themselves, on two real ranks."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

if find_spec("tensorflow") is None:
    pytest.skip("TensorFlow is not installed: nox -s keras2 keras3 runs these", allow_module_level=True)

from tensorflow_ports import CLIP, FIT, KERAS_2, SESSION, TAPE, run

from dlrun.verify.compare import compare

AVERAGE = "    grads = dl.gradients(grads)\n"
SAVE = '    dl.rank0(model.save_weights)("tape.weights.h5")\n'
OF_GRAPH, CLIP_GRAPH = AVERAGE.lstrip(), "grads, _ = tf.clip_by_global_norm(grads, 0.1)\n"

STATE = "@tf.function\n", "{}\n\n\n@tf.function\n"  # something that the script keeps from step to step
BEST = ("    losses =", "    own = {}\n    losses ="), (SAVE, f"    if own < best:\n        best = own\n    {SAVE}")
OWN = "float(cross_entropy(y, model(x)))"


def keeping(text: str, made: str, used: tuple[str, str], changed: str, within: str = "") -> str:
    """Return a script that makes something once, and uses and changes it in each step."""
    text = text.replace(STATE[0], STATE[1].format(made)).replace(*used).replace(CLIP, CLIP + changed)
    return text.replace("    with tf.Grad", f"    global {within}\n    with tf.Grad") if within else text


def saving_the_best(text: str, own: str) -> str:
    """Return a script that saves only where its number ``own`` is the best so far."""
    (shown, computed), save = BEST
    text = text.replace("dl.reseed()\n", "dl.reseed()\nbest = 9.0\n")
    return text.replace(shown, computed.format(own)).replace(*save)


FAULTS = {
    "nothing-tape": (
        TAPE.replace("@tf.function\n", "queue = tf.Variable(tf.zeros((16, 8)))\n\n\n@tf.function\n").replace(
            CLIP, CLIP + "    queue.assign(tf.concat([x, queue[: -len(x)]], 0))\n"
        ),
        set(),
    ),
    "nothing-fit": (FIT, set()),
    "average-after-clip": (TAPE.replace(AVERAGE, "").replace(CLIP, CLIP + AVERAGE), {"average-after-clip"}),
    "several": (
        TAPE.replace("dl.lr_scale(0.1)", "dl.lr_scale(dl.lr_scale(0.1))")
        .replace(AVERAGE, "")
        .replace("dl.shard(train)", "train")
        .replace("dl.broadcast_variables(model, optimizer)\n", "")
        .replace("dl.reseed()\n", "")
        .replace("dl.rank0(model.save_weights)", "model.save_weights"),
        {
            "missing-average",
            "double-scaling",
            "unsharded-loader",
            "missing-broadcast",
            "equal-seeds",
            "save-by-every-rank",
        },
    ),
    "variable-of-own-samples-and-best-by-all": (
        keeping(
            saving_the_best(TAPE, f"dl.average({OWN})"),
            "center = tf.Variable(tf.zeros(8))",
            ("", ""),
            "    center.assign(0.9 * center + 0.1 * tf.reduce_mean(x, 0))\n",
        ),
        {"state-differs"},
    ),
    "tensor-of-own-samples-and-total-of-shared": (
        keeping(
            TAPE.replace("    losses =", "    rate = dl.total(float(optimizer.learning_rate))\n    losses ="),
            "center = tf.zeros(8)",
            ("model(x, training", "model(x - center, training"),
            "    center = 0.9 * center + 0.1 * tf.reduce_mean(x, 0)\n",
            "center",
        ),
        {"state-differs", "total-of-shared"},
    ),
    "number-and-best-by-own-samples": (
        keeping(
            saving_the_best(TAPE, OWN),
            "base = 0.0",
            ("training=True))", "training=True)) * (1 + base)"),
            "    base = 0.9 * base + 0.1 * float(loss)\n",
            "base",
        ),
        {"state-differs", "rank-dependent-choice"},
    ),
    "uneven-steps": (TAPE.replace("range(20)", "range(1 if dl.get_rank() else 20)"), {"uneven-steps"}),
    "fit-with-all-samples-scaled-twice-and-saved-by-all": (
        FIT.replace("distribute(model)", "distribute(model, shard_data=False)")
        .replace("epochs=2", "epochs=1")
        .replace("dl.lr_scale(0.1)", "dl.lr_scale(dl.lr_scale(0.1))")
        .replace("dl.rank0(model.save)", "model.save"),
        {"unsharded-loader", "double-scaling", "save-by-every-rank"},
    ),
    "fit-not-distributed": (
        FIT.replace("dl.distribute(model)\n", ""),
        {"missing-average", "unsharded-loader", "missing-broadcast", "equal-seeds"},
    ),
    "momentum-by-ranks": (FIT.replace("momentum=0.9", "momentum=0.9 / dl.get_nranks()"), {"other-options"}),
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
