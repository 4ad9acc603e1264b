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
    """Return a check that failed because a rate changes too late, or too early, or to another one; None of none.

    ``fewer`` serial steps are one of the ranks. Rates that go on changing are not judged here.
    """
    if any(run.root.returns("warmup")):
        return None
    now, begun = by_group(run.root.steps), [steps[0].number for steps in in_epochs(run.root)[1:] if steps]
    for key, before in by_group(serial.root.steps).items():
        one, other = _levels([rate for _, rate in before]), _levels([rate for _, rate in now.get(key, [])])
        if not other or any(b - a <= SPARE * fewer for (a, _), (b, _) in pairwise(one)):
            continue
        levels = [(one[0][1], other[0][1])]
        for i, (after, rate) in enumerate(one[1:], 1):
            due, made = after / fewer, len(now[key])
            at, reached = other[i] if i < len(other) else (made, 0.0)
            if not reached and at < due:  # it ended
                break
            numbers = [step.number for step in run.root.steps if step.optimizer == key[0]]
            passed = sum(numbers[0] < first <= numbers[min(int(due), made - 1)] for first in begun)
            if reached and not math.isclose(reached * one[0][1], rate * other[0][1], rel_tol=1e-3):
                if abs(at - due) > SPARE + passed:
                    break
                levels.append((rate, reached))
            elif abs(at - due) > SPARE + passed:
                return _off(at, after, reached, rate, len(run.traces), at > due, now[key][min(at, made - 1)][0])
        if wrong := _come_to_others(levels, len(run.traces), now[key][0][0]):
            return wrong
    return None


def _come_to_others(levels: Sequence[tuple[float, float]], n: int, where: str) -> Check | None:
    """Return a check that failed because a rate changes by other factors than the serial one; None of none.

    ``levels``: the first of both, and those that follow whose ratio is another one. A part that is not scaled, such as
    a least rate, is the same number in all of them.
    """
    (first, scaled), *others = levels
    if not others or not first:
        return None
    ratio = scaled / first
    if not math.isclose(ratio, 1):
        parts = [(ratio * x - y) / (ratio - 1) for x, y in others if not math.isclose(x, y, rel_tol=1e-3)]
        within = all(min(1, ratio) * x <= y <= max(1, ratio) * x for x, y in others)
        if within and all(math.isclose(part, parts[0], rel_tol=1e-2) for part in parts):
            return None
    rate, reached = others[-1]
    finding = f"on 1 rank the rate goes from {first:.4g} to {rate:.4g}; on {n} ranks, at the same time, from "
    finding += f"{scaled:.4g} to {reached:.4g}"
    todo = "what comes with each epoch comes as often on n ranks: leave its factor as it is"
    return failed(NAME, finding, todo, "other-rate", where=where)


def _levels(rates: Sequence[float]) -> list[tuple[int, float]]:
    """Return after how many steps each rate comes, of those that follow each other."""
    return [(i, rate) for i, rate in enumerate(rates) if not i or not math.isclose(rate, rates[i - 1], rel_tol=1e-9)]


def _off(at: int, due: int, reached: float, rate: float, n: int, late: bool, where: str) -> Check:
    came = f"comes to {reached:.4g} after {at}" if reached else f"has not changed after {at}"
    finding = f"on 1 rank the rate comes to {rate:.4g} after {due} steps; on {n} ranks it {came}"
    todo = "let it change after as many samples: one of dl.steps(count) and dl.serial_steps(step), once"
    return failed(NAME, finding, todo, "schedule-too-long" if late else "schedule-too-short", where=where)
