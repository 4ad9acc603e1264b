"""Rates that stay for a while and change at once: after as many samples as in the serial script?"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from dlrun.verify.checks.lengths import by_group, in_epochs
from dlrun.verify.checks.rate import NAME
from dlrun.verify.trace import Run
from dlrun.verify.verdict import Check, failed

SPARE = 2  # steps by which a change may be off, and one more for each epoch, whose last batches may be shared unevenly


def plateaus(serial: Run, run: Run, fewer: int) -> Check | None:
    """Return a check that failed because a rate changes too late, or too early; None of none.

    ``fewer`` serial steps are one of the ranks. Rates that go on changing, or come to others, are not judged here.
    """
    if any(run.root.returns("warmup")):
        return None
    now, begun = by_group(run.root.steps), [steps[0].number for steps in in_epochs(run.root)[1:] if steps]
    for key, before in by_group(serial.root.steps).items():
        one, other = _levels([rate for _, rate in before]), _levels([rate for _, rate in now.get(key, [])])
        if not other or any(b - a <= SPARE * fewer for (a, _), (b, _) in pairwise(one)):
            continue
        for i, (after, rate) in enumerate(one[1:], 1):
            due, made = after / fewer, len(now[key])
            at, reached = other[i] if i < len(other) else (made, 0.0)
            if not reached and at < due:  # it ended
                break
            if reached and not math.isclose(reached * one[0][1], rate * other[0][1], rel_tol=1e-3):
                break
            numbers = [step.number for step in run.root.steps if step.optimizer == key[0]]
            passed = sum(numbers[0] < first <= numbers[min(int(due), made - 1)] for first in begun)
            if abs(at - due) > SPARE + passed:
                return _off(at, after, reached, rate, len(run.traces), at > due, now[key][min(at, made - 1)][0])
    return None


def _levels(rates: Sequence[float]) -> list[tuple[int, float]]:
    """Return after how many steps each rate comes, of those that follow each other."""
    return [(i, rate) for i, rate in enumerate(rates) if not i or not math.isclose(rate, rates[i - 1], rel_tol=1e-9)]


def _off(at: int, due: int, reached: float, rate: float, n: int, late: bool, where: str) -> Check:
    came = f"comes to {reached:.4g} after {at}" if reached else f"has not changed after {at}"
    finding = f"on 1 rank the rate comes to {rate:.4g} after {due} steps; on {n} ranks it {came}"
    todo = "let it change after as many samples: one of dl.steps(count) and dl.serial_steps(step), once"
    return failed(NAME, finding, todo, "schedule-too-long" if late else "schedule-too-short", where=where)
