"""Longer runs, where a few steps do not show what a rate rises to; where steps are quick alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING

from dlrun.verify.checks import lengths, ramps, rate
from dlrun.verify.checks.data import batch_factor
from dlrun.verify.trace import Run
from dlrun.verify.tracer.recorder import UNCUT
from dlrun.verify.verdict import Check

if TYPE_CHECKING:
    from dlrun.verify.job import Runs

STEPS, FEWER = 256, 64  # as many as come to the end of most ramps, or where those would take too long
SECONDS = 30.0  # that these may take


def to_the_end(runs: Runs, serial: Run, sharded: Run, checks: Sequence[Check]) -> list[Check]:
    """Return the checks, that of a rate on a ramp judged by runs of more steps that come to its end."""
    slowest = max(map(seconds_of_step, (serial, sharded)))
    steps = next((steps for steps in (STEPS, FEWER) if slowest * steps <= SECONDS), 0)
    if runs.job.steps >= steps or not any(_open(check, serial, sharded) for check in checks):
        return list(checks)
    more = replace(runs, job=replace(runs.job, steps=steps), cuts=[UNCUT])
    one, other = more.both(more.longer, lambda: more.sharded(name="longer-sharded"))
    if one.error or other.error or one.hung or other.hung:
        return list(checks)
    fewer = lengths.fewer_steps(serial, sharded)
    judged = ramps.at_end(one, other, rate.promised_by(sharded), fewer, rate.NAME)
    return [judged if judged and _open(check, serial, sharded) else check for check in checks]


def _open(check: Check, serial: Run, sharded: Run) -> bool:
    """Whether the end of a ramp decides on a check."""
    if check.name != rate.NAME or check.status != "passed" or any(sharded.root.returns("warmup")):
        return ramps.END in check.todo
    return batch_factor(serial, sharded) > 1 and ramps.are_by_hand(serial.root)


def seconds_of_step(run: Run) -> float:
    """Return how long an optimizer step of rank 0 mostly takes, with what comes between two; 0 where there are no two.

    The first ones take longer, as where a kernel is chosen, and so may one that waits for other programs.
    """
    clocks = [event.clock for event in run.root.all("step")]
    return median(b - a for a, b in pairwise(clocks)) if len(clocks) > 1 else 0.0


def seconds_of_epoch(run: Run) -> float:
    """Return how long the longest epoch of rank 0 takes, with the evaluation behind it; 0 where there are no two."""
    trained = {event["epoch"] for event in run.root.all("trains")}
    clocks = [event.clock for event in run.root.all("epoch") if event["epoch"] in trained]
    return max((b - a for a, b in pairwise(clocks)), default=0.0)
