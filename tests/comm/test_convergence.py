"""Softmax regression on the handwritten digits learns in every mode of config_team."""

from __future__ import annotations

import pytest

PROGRAM = """
    import os
    import numpy as np
    from sklearn.datasets import load_digits
    import dl_comm

    dl_comm.init(1, 1, 650)
    rank, n = dl_comm.get_rank(), dl_comm.get_nranks()
    digits = load_digits()
    pixels, labels = (digits.data / 16).astype("f4"), digits.target
    train, test = slice(0, 1400), slice(1400, None)
    mine, wanted = pixels[train][rank::n], np.eye(10, dtype="f4")[labels[train][rank::n]]
    steps = 300
    modes = {
        "blocking": dict(ksteps=steps, max_steps=steps),
        "warm-up": dict(ksteps=30, max_steps=steps),
        "smooth warm-up": dict(transition=16, ksteps=30, max_steps=steps),
        "pipelined": dict(ksteps=0, max_steps=steps),
        "cool-down": dict(ksteps=-270, max_steps=steps),
        "smooth cool-down": dict(transition=16, ksteps=-270, max_steps=steps),
    }
    if os.environ.get("DL_COMM_COOLDOWN") == "last":
        modes = {"cool-down": dict(ksteps=-30, max_steps=steps), "pipelined": modes["pipelined"]}
    for team, (mode, phases) in enumerate(modes.items()):
        dl_comm.config_team(team, **phases)
        weight, bias = np.zeros((64, 10), "f4"), np.zeros(10, "f4")
        for step in range(steps):
            logits = mine @ weight + bias
            likely = np.exp(logits - logits.max(axis=1, keepdims=True))
            error = (likely / likely.sum(axis=1, keepdims=True) - wanted) / len(mine)
            by_weight, by_bias = dl_comm.gradients([mine.T @ error, error.sum(axis=0)], team)
            weight -= 1.0 * by_weight
            bias -= 1.0 * by_bias
        right = np.mean((pixels[test] @ weight + bias).argmax(axis=1) == labels[test])
        assert dl_comm.check_buffers_match([weight, bias]) == 0
        if rank == 0:
            print(f"accuracy {right:.3f} {mode}", flush=True)
"""


def accuracies(ended):
    assert ended.code == 0, ended.output
    return {line.split(maxsplit=2)[2]: float(line.split()[1]) for line in ended.lines("accuracy")}


def test_every_mode_reaches_the_accuracy_of_the_blocking_one(job, any_mpi):
    pytest.importorskip("sklearn")
    ended = job(any_mpi, 2, PROGRAM, OMP_NUM_THREADS="1")
    accuracy = accuracies(ended)
    assert len(accuracy) == 6
    assert accuracy["blocking"] > 0.88, accuracy
    assert all(abs(one - accuracy["blocking"]) < 0.02 for one in accuracy.values()), accuracy


def test_a_cool_down_of_the_last_steps_learns_as_well(job, any_mpi):
    pytest.importorskip("sklearn")
    accuracy = accuracies(job(any_mpi, 2, PROGRAM, OMP_NUM_THREADS="1", DL_COMM_COOLDOWN="last"))
    assert len(accuracy) == 2 and min(accuracy.values()) > 0.88, accuracy
