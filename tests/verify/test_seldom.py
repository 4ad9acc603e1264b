"""Lines that come every k iterations, or once an epoch: whether n ranks show as many."""

from __future__ import annotations

import ast
from collections.abc import Sequence

import pytest
from by_hand import event, optimizer, run, step

from dlrun.verify.checks.seldom import lines_under, seldom
from dlrun.verify.trace import Event

SCRIPT = """for epoch in range(2):
    for i, batch in enumerate(loader):
        opt.step()
        if i % 10 == 0:
            print("batch", i)
    print("epoch", epoch)
    if loss < best:
        print("best", loss)
"""
BATCH, EPOCH, BEST = "t.py:5", "t.py:6", "t.py:8"


def training(batches: int, after: Sequence[int], per_step: int = 1, ends: Sequence[str] = ("epoch 0",)) -> list[Event]:
    """An epoch of so many batches, lines after some of them, and lines behind it."""
    events = [optimizer(), event("epoch", epoch=0, loader=0, data=0, size=99), event("trains", epoch=0)]
    for number in range(1, batches + 1):
        events += [event("batch", epoch=0, indices=[number], hash=str(number))]
        events += [step(number, 0.9)] if number % per_step == 0 else []
        events += [event("print", BATCH, text=f"batch {number - 1}")] if number in after else []
    events += [event("over", epoch=0)]
    lines = [event("print", BEST if line.startswith("best") else EPOCH, text=line) for line in ends]
    return [*events, *lines, event("end", how="finished")]


@pytest.mark.parametrize(
    ("serial", "ranks", "per_step", "says"),
    [
        ((1, 11, 21, 31), (1, 6, 11, 16), 1, ""),
        ((1, 11, 21, 31), (1, 11), 1, "after 1, 11 batches of 2 ranks"),
        ((20,), (10,), 1, ""),
        ((20,), (), 1, "never on 2 ranks"),
        ((1,), (1,), 1, ""),
        (range(1, 33), range(1, 17), 1, ""),  # each iteration of the ranks shows it
        (range(1, 33, 3), range(1, 17, 2), 1, ""),  # a period that 2 does not divide, rounded up
        (range(1, 33, 3), range(1, 17, 3), 1, "after 1, 4, 7"),
        (range(4, 33, 4), range(4, 17, 4), 4, ""),  # each update, of 4 batches
        (range(8, 33, 8), range(8, 17, 8), 4, "after 8, 16"),
    ],
)
def test_a_line_that_comes_every_so_many_batches_comes_after_as_many_samples(serial, ranks, per_step, says) -> None:
    mine, theirs = training(32, serial, per_step), training(16, ranks, per_step)
    check = seldom(SCRIPT, "t.py", run(mine), run(theirs, theirs))
    assert bool(check) is bool(says)
    assert check is None or (check.status == "open" and says in check.finding and BATCH in check.finding)


@pytest.mark.parametrize(
    ("serial", "ranks", "says"),
    [
        (("epoch 0", "epoch 1"), ("epoch 0", "epoch 1"), ""),
        (("best 0.5", "best 0.4"), ("best 0.5",), ""),  # what rounding makes another epoch the best one
    ],
)
def test_what_comes_once_an_epoch_is_shown_by_the_ranks_as_often(serial, ranks, says) -> None:
    check = seldom(SCRIPT, "t.py", run(training(32, (), 1, serial)), run(*[training(16, (), 1, ranks)] * 2))
    assert check is None


def test_an_epoch_whose_line_is_left_out_is_named() -> None:
    def epochs(length: int, *shown: int) -> list[Event]:
        events = [optimizer()]
        for number in range(3):
            events += [event("epoch", epoch=number, loader=0, data=0, size=9), event("trains", epoch=number)]
            events += [event("batch", epoch=number, indices=[k], hash=str(k)) for k in range(length)]
            events += [step(number + 1, 0.9), event("over", epoch=number)]
            events += [event("print", EPOCH, text=f"epoch {number}")] if number in shown else []
        return [*events, event("end", how="finished")]

    serial = run(epochs(4, 0, 1, 2))
    assert seldom(SCRIPT, "t.py", serial, run(*[epochs(2, 0, 1, 2)] * 2)) is None
    check = seldom(SCRIPT, "t.py", serial, run(*[epochs(2, 0, 2)] * 2))
    assert check is not None
    assert check.finding == (
        "'epoch 1' of the serial script (t.py:6): 2 ranks show no such line after as many samples, 2 in place of 3"
    )


def test_lines_of_functions_that_a_condition_calls_are_under_it() -> None:
    script = "def show(x):\n    print(x)\nif i % 3 == 0:\n    show(i)\nif __name__ == '__main__':\n    show(0)\n"
    assert lines_under(ast.parse(script), True) == {1, 2, 4}
    assert lines_under(ast.parse(script), False) == set()
