"""Runs whose updates are taken back, of more steps: what the ranks show must be what the serial script shows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dlrun.verify.checks.data import batch_factor
from dlrun.verify.checks.folds import folds
from dlrun.verify.checks.whole import is_eager
from dlrun.verify.longer import seconds_of_step
from dlrun.verify.trace import Run
from dlrun.verify.verdict import Check

if TYPE_CHECKING:
    from dlrun.verify.job import Runs

STEPS = 256  # serial ones: as many as most scripts show something in
SECONDS = 10.0  # that these may take


def frozen(runs: Runs, serial: Run, sharded: Run) -> Check | None:
    """Return a check that failed because numbers that are shown are n times, or 1/n of, the serial ones; else None.

    With the same parameters at all steps, a number of an epoch, or of so many batches, follows from its samples alone,
    and n ranks go through the same ones. Not where something else than an optimizer of PyTorch or Keras updates, or a
    session does.
    """
    n = len(sharded.traces)
    by_hand = any(event["type"] == "by hand" for event in serial.root.all("optimizer"))
    if by_hand or n < 2 or not is_eager(serial):
        return None
    affordable = SECONDS / max(seconds_of_step(serial), seconds_of_step(sharded), 1e-9)
    fewer = n if batch_factor(serial, sharded) > 1 else 1  # so many serial steps are one of the ranks
    each = max(runs.job.steps, min(STEPS, int(affordable)) // fewer)
    one, other = runs.both(lambda: runs.frozen_serial(fewer * each), lambda: runs.frozen(each))
    if one.error or other.error or one.hung or other.hung:
        return None
    return folds(one, other)
