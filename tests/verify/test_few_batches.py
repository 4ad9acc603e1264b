"""Evaluations with fewer batches than there are ranks, and epochs whose last batch is a short one."""

from __future__ import annotations

from pathlib import Path

import pytest

WHOLE = "DataLoader(test_set, batch_size=10)", "DataLoader(test_set, batch_size=50)"  # 31 samples
SHARED = (
    ("in test_loader:", 'in dl.shard(test_loader, whole="batches"):'),
    ("    val_loss =", "    total, correct = dl.total(total, correct)\n    val_loss ="),
)
SEEN = (
    ("    model.train()\n", "    model.train()\n    seen, summed = 0, 0.0\n"),
    ("        loss.backward()\n", "        loss.backward()\n        seen, summed = seen + len(inputs), summed + {}\n"),
)
MEAN = "\n    model.eval()\n", '\n    print(f"mean {summed / seen:.5f}")\n    model.eval()\n'


def changed(text: str, *edits: tuple[str, str]) -> str:
    for old, new in edits:
        assert old in text
        text = text.replace(old, new)
    return text


def serial_script() -> str:
    return (Path(__file__).parent / "scripts" / "train.py").read_text()


def test_a_rank_whose_share_of_an_evaluation_has_no_batch_is_not_held_against_the_port(prove, port) -> None:
    verdict = prove(changed(port, WHOLE, *SHARED), serial=changed(serial_script(), WHOLE))
    print(*(check for check in verdict.checks if check.status != "passed"), sep="\n")
    assert verdict.faults == set()
    assert next(check for check in verdict.checks if check.name == "metrics").status == "passed"


def test_a_last_batch_that_is_weighed_as_a_full_one_is_named(prove, port) -> None:
    total = "\n    seen, summed = dl.total(seen, summed)" + MEAN[1]
    serial = changed(serial_script(), SEEN[0], (SEEN[1][0], SEEN[1][1].format("loss.item() * len(inputs)")), MEAN)
    wrong = changed(port, SEEN[0], (SEEN[1][0], SEEN[1][1].format("loss.item() * 8")), (MEAN[0], total))
    verdict = prove(wrong, "--samples", "99", serial=serial, shows=True, budget=600.0)
    print(*(check for check in verdict.checks if check.status != "passed"), sep="\n")
    assert verdict.faults == {"shown-otherwise"}
    assert [check.name for check in verdict.checks if check.fault] == ["uneven tail"]


@pytest.mark.parametrize(("budget", "code"), [(0.0, 3), (600.0, 1)])
def test_what_a_second_epoch_shows_is_compared_or_said_not_to_be(prove, port, budget, code) -> None:
    """Three steps end with the first epoch of three batches."""
    seen = SEEN[0], (SEEN[1][0], SEEN[1][1].format("loss.item() * len(inputs)"))
    wrong = "\n    if epoch == 0:\n        seen, summed = dl.total(seen, summed)" + MEAN[1]
    ported, serial = changed(port, *seen, (MEAN[0], wrong)), changed(serial_script(), *seen, MEAN)
    verdict = prove(ported, serial=serial, shows=True, steps=3, budget=budget)
    print(*(check for check in verdict.checks), sep="\n")
    assert verdict.exit_code == code
    assert ("after the first epoch" in str(verdict.checks)) == (budget == 0.0)
