"""Do losses or gradients have the ranks' number in them, on top of the mean that dl_comm makes?

Only ports that share their data by the ranks' numbers are asked: elsewhere ranks that repeat the serial run show it.
"""

from __future__ import annotations

import math
from typing import Any

from dlrun.verify.checks.data import batch_factor
from dlrun.verify.checks.gradients import ROUNDING, uses
from dlrun.verify.trace import Run, Step
from dlrun.verify.verdict import Check, failed, values

TODO = "leave them out: dl.gradients() makes the mean over the ranks"


def scaled(serial: Run, alone: Run, run: Run) -> Check | None:
    """Return a check that failed because what goes into the mean, or comes out of it, is scaled by the ranks' number.

    ``alone``: the port on ranks that are each told to be the only one; None where nothing is scaled.
    """
    n, parts = len(run.traces), list(run.root.all("ranks in a loss"))
    many = next((event for event in parts if event.facts.get("many")), None)
    part = many or next(iter(parts), None)
    finding, where = "", part.at if part else ""
    if many or (part and not _balanced(alone, run)):
        finding = f"the ranks' numbers are part of {'what the loss is made of' if many else 'the loss'}"
    elif batch_factor(serial, run) > 1 and (where := _loss(alone, run)):
        finding = f"what the loss is made of counts 1/{n} as much on {n} ranks as on 1"
    elif found := _gradients(run) or _added(alone, run):
        finding, where = found
    return failed("replicate", finding, TODO, "no-mean", where=where) if finding else None


def _loss(alone: Run, run: Run) -> str:
    """Return the line that makes a loss of many numbers, whose weight in what goes backward is divided; else nothing.

    One that is divided by the number of a rank's samples weighs more where those are fewer: that is no fault.
    """
    for a, b in zip(alone.root.steps, run.root.steps, strict=False):
        for (line, x), (other, y) in zip(weights_of(a), weights_of(b), strict=False):
            if line == other and x and math.isclose(y * len(run.traces), x, rel_tol=1e-5):
                return line
    return ""


def _balanced(alone: Run, run: Run) -> bool:
    """Whether the losses of a step weigh as much together as on 1 rank: fewer of them, say, each divided by less.

    Or, where they are divided by sums over the ranks, of numbers that differ, about as much.
    """
    steps = list(zip(alone.root.steps, run.root.steps, strict=False))
    sums = [[sum(weight for _, weight in weights_of(step)) for step in pair] for pair in steps]
    near = len(run.traces) ** 0.5 - 1 if any(run.root.returns("total")) else 1e-5
    return any(x for x, _ in sums) and all(math.isclose(x, y, rel_tol=near) for x, y in sums)


def weights_of(step: Step) -> list[tuple[str, float]]:
    """Return the line and the weight of each number made of many, such as a loss, that goes backward in a step."""
    return [(event["made"], event["weight"]) for event in step.before if event.kind == "weight"]


def _gradients(run: Run) -> tuple[str, str] | None:
    """Return how gradients are scaled beside the averaging, and the line of the step; None where they are not."""
    n, steps = len(run.traces), uses(run.root)
    for when, pairs in (
        ("before they are averaged", [(use.made or use.own, use.own) for use in steps]),
        ("after they were averaged", [(use.mean, use.used) for use in steps]),
    ):
        some = [(a, b) for a, b in pairs if a and b and a["norm"] > 0]
        for how, times in (("divided", 1 / n), ("multiplied", n)):
            if some and all(_is_times(a, b, times) for a, b in some):
                return f"the gradients are {how} by {n}, the number of ranks, {when}", steps[0].at
    return None


def _added(alone: Run, run: Run) -> tuple[str, str] | None:
    """Return how the mean of gradients that a script adds up itself is scaled, and the line; None where it is not."""
    n, calls = len(run.traces), list(zip(alone.root.returns("gradients"), run.root.returns("gradients"), strict=False))
    pairs = [
        pair
        for one, two in calls
        for pair in zip(one.facts.get("weights", ()), two.facts.get("weights", ()), strict=False)
        if all(pair)
    ]
    for how, times in (("divided", 1 / n), ("multiplied", n)):
        if pairs and all(math.isclose(y, times * x, rel_tol=1e-3) for x, y in pairs):
            return f"the gradients that are added up are {how} by {n}, the number of ranks", calls[0][1].at
    return None


def _is_times(note: dict[str, Any], other: dict[str, Any], times: float) -> bool:
    before, after = values(note), values(other)
    largest = max(map(abs, before), default=0.0)
    apart = max((abs(x * times - y) for x, y in zip(before, after, strict=False)), default=0.0)
    return apart <= ROUNDING.get(note["type"], 2e-5) * largest * times
