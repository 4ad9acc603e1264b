"""Does a moving average of the weights remember as many samples as in the serial script?

With d kept at each step it forgets a serial step's weights at the rate d; n ranks make one step of n serial ones, and
d ** n keeps its memory (the EMA scaling rule of Busbridge et al., arXiv 2307.13813). With d as it is the average
remembers n times as many samples, and lags behind the weights: at the end of a training it is another model.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from statistics import median

from dlrun.verify.checks.data import batch_factor
from dlrun.verify.trace import Run, Trace
from dlrun.verify.verdict import Check, failed, values

NAME = "moving average"
SAMPLE = 64  # elements of a weight that are looked at
GRID = [1 - 10 ** (-exponent / 40) for exponent in range(4, 200)]  # decays from 0.2 to 0.99999
EXACT, HALVINGS, FEW = 1e-3, 20, 4  # how close it comes to its own; halvings of the distance between decays
LONG = 0.95  # decays above are no plain mean's of a few steps
LEAST = 0.25  # a decay below is not looked for
SHORT = 1.5  # times what is forgotten at a step, so that rounding makes no fault
NEAR, ALIKE = 0.02, 0.1  # how close an average has to come to one with this decay; two decays' 1 - d, relative


def moving(identity: Run, run: Run) -> Check | None:
    """Name a moving average whose decay is that of 1 rank, though a step takes n times the samples; None of others.

    One that is none any more on n ranks, as where its weights do not add up to 1, is a fault.
    """
    n = len(run.traces)
    for name, decay in exactly(identity.root).items():
        if decay**n > LEAST and name in _copies(run.root) and name not in decays(run.root):
            finding = (
                f"{name} is a moving average on 1 rank, which keeps {decay:.4g} of itself at each step, and none on {n}"
            )
            todo = "let its two weights add up to 1: decay, 1 - decay = dl.compound(0.99), 1 - dl.compound(0.99), say"
            return failed(NAME, finding, todo, "other-average", where=run.root.steps[-1].at)
    factor = batch_factor(identity, run)
    if short := _too_short(identity, run, factor):
        return short
    if factor != n:
        return None
    one, now = _certain(identity.root), _certain(run.root)
    for name, decay in now.items():
        if name in one and math.isclose(1 - one[name], 1 - decay, rel_tol=ALIKE):
            finding = f"{name} keeps {decay:.4g} of itself at each step, as on 1 rank, and a step takes {n} times the "
            finding += f"samples: it remembers {n} times as many"
            todo = "dl.compound(decay) keeps as many as the serial script's"
            return failed(NAME, finding, todo, "average-too-long", where=run.root.steps[-1].at)
    return None


def _too_short(identity: Run, run: Run, factor: float) -> Check | None:
    """Name an average that forgets more at a step than a serial one of so many steps, as one that is made twice."""
    one, now = exactly(identity.root), exactly(run.root)
    for name in one.keys() & now.keys():
        kept = one[name] ** factor
        if 1 - now[name] > SHORT * (1 - kept):
            finding = (
                f"{name} keeps {now[name]:.4g} of itself at each step of {len(run.traces)} ranks, where {kept:.4g} "
            )
            finding += f"remembers as many samples as {one[name]:.4g} does on 1 rank: it forgets too soon"
            todo = "move it once a step, with dl.compound(decay) where a step takes n times the samples"
            return failed(NAME, finding, todo, "average-too-short", where=run.root.steps[-1].at)
    return None


def _certain(trace: Trace) -> dict[str, float]:
    """Return the decays that are those of averages: low ones may be a plain mean's, of weights that move evenly."""
    return {name: decay for name, decay in decays(trace).items() if decay > LONG} | exactly(trace)


def exactly(trace: Trace) -> dict[str, float]:
    """Return those decays that bring forth the average itself: what moves evenly may look like one."""
    return decays(trace, EXACT)


def _copies(trace: Trace) -> set[str]:
    held = trace.first("held")
    return {name for name, entry in (held["tensors"] if held else {}).items() if entry["kind"] == "copy"}


def decays(trace: Trace, near: float = NEAR) -> dict[str, float]:
    """Return the decay of each copy of a weight that is a moving average of it, one that every step has changed.

    Of a model most weights have it, and one alike: a single number comes to any average with some decay.
    """
    held, found = trace.first("held"), dict[str, float]()
    for event in trace.all("optimizer") if held is not None else ():
        steps = [step for step in trace.steps if step.optimizer == event["optimizer"]]
        models = defaultdict[str, dict[str, float | None]](dict)
        for name, entry in held["tensors"].items() if held is not None else ():
            number = next((i for i, own in enumerate(event["names"]) if name.endswith((f".{own}", f"[{own!r}]"))), None)
            if entry["kind"] == "copy" and number is not None and len(steps) > 1:
                weights = [_part(event["params"][number]), *(_part(step.params[number]) for step in steps)]
                average, model = _part(entry["note"]), name[: name.rindex(event["names"][number])]
                if weights[0] != average:
                    models[model][name] = _decay(weights, average, near)
        for copies in models.values():
            known = {name: decay for name, decay in copies.items() if decay is not None}
            if 2 * len(known) > len(copies) and _are_one(list(known.values())):
                found |= known
    return found


def _are_one(decays: Sequence[float]) -> bool:
    """Whether these decays are one, but for what a fit leaves open: as much of the weights is new at each step."""
    new = [1 - decay for decay in decays]
    return bool(new) and max(new) <= (1 + ALIKE) * median(new) and min(new) >= median(new) / (1 + ALIKE)


def _part(note: dict[str, object] | None) -> list[float]:
    return list(values(note)[:SAMPLE])


def _decay(weights: Sequence[Sequence[float]], average: Sequence[float], near: float) -> float | None:
    """Return the decay with which an average comes to this; None where none does.

    It begins with the first weights, or with those that the first step leaves, as ``AveragedModel`` does.
    """
    found = (_decay_from(weights[first:], average, near) for first in (0, 1) if len(weights) > first + 2)
    return next((decay for decay in found if decay is not None), None)


def _decay_from(weights: Sequence[Sequence[float]], average: Sequence[float], near: float) -> float | None:
    moved = math.dist(average, weights[0]) if len(average) == len(weights[0]) else 0.0
    if not moved or any(len(weight) != len(average) for weight in weights):
        return None

    def apart(decay: float) -> float:
        return math.dist(_average(weights, decay), average)

    best, width = min(GRID, key=apart), 10 ** (1 / 40)
    for _ in range(HALVINGS if near < NEAR else FEW):
        width **= 0.5
        best = min((best, 1 - (1 - best) * width, 1 - (1 - best) / width), key=apart)
    return best if apart(best) < near * moved else None


def _average(weights: Sequence[Sequence[float]], decay: float) -> list[float]:
    mean = list(weights[0])
    for weight in weights[1:]:
        mean = [decay * x + (1 - decay) * y for x, y in zip(mean, weight, strict=True)]
    return mean
