"""Longer runs, where a few steps do not show what a rate rises to; where steps are quick alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from dlrun.verify.checks import ramps, rate
from dlrun.verify.trace import Run
from dlrun.verify.tracer.recorder import UNCUT
from dlrun.verify.verdict import Check

if TYPE_CHECKING:
    from dlrun.verify.job import Runs

STEPS = 64
SECONDS = 30.0  # that these may take


def to_the_end(runs: Runs, serial: Run, sharded: Run, checks: Sequence[Check]) -> list[Check]:
    """Return the checks, an open one of the rate judged by runs of more steps that come to the end of its ramp."""
    if runs.job.steps >= STEPS or not any(ramps.END in check.todo for check in checks):
        return list(checks)
    slowest = max(_seconds(run) / max(1, len(run.root.steps) - 1) for run in (serial, sharded))
    if slowest * STEPS > SECONDS:
        return list(checks)
    more = replace(runs, job=replace(runs.job, steps=STEPS), cuts=[UNCUT])
    one, other = more.both(more.longer, lambda: more.sharded(name="longer-sharded"))
    if one.error or other.error or one.hung or other.hung:
        return list(checks)
    judged = ramps.at_end(one, other, rate.promised_by(sharded), rate.NAME)
    return [judged if judged and ramps.END in check.todo else check for check in checks]


def _seconds(run: Run) -> float:
    clocks = [event.clock for event in run.root.all("step")]
    return clocks[-1] - clocks[0] if clocks else 0.0
