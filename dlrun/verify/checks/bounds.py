"""Do ranks compare what they decide by with the serial script's bounds: a tolerance, a patience?"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence

from dlrun.verify.checks.numbers import NAME, is_fold
from dlrun.verify.trace import Event, Run, Trace
from dlrun.verify.verdict import Check, failed

NEAR = 1e-3
Use = tuple[float, float, Event]  # what an operand is, what it is compared with, and where
Uses = Sequence[Use]


def bounds(serial: Run, run: Run) -> Check | None:
    """Return a check that failed because a bound is another one, in runs with the same parameters; None of none.

    A bound that is scaled as what it bounds is, such as a rate, is the same one. So is a smaller one of a count: of
    steps n ranks make fewer. One that changes, such as the best so far, is n times the serial one, or a part of it,
    where what it bounds is the same throughout. And one that a rate is compared with is scaled as the rate is.
    """
    theirs = _by_operand(run.root)
    rates = [{lr for step in each.root.steps for lr in step.lr} for each in (serial, run)]
    for key, places in _by_operand(serial.root).items():
        if len(places) == len(theirs.get(key, ())):
            for mine, other in zip(places, theirs[key], strict=True):
                stay = _stays(mine) and _stays(other)
                of_rates = all(use[0][0] in each for use, each in zip((mine, other), rates, strict=True))
                found = [_otherwise(key[1], mine[0], other[0], (*mine, *other))] if stay else []
                found += [_unscaled(key[1], mine[0], other[0])] if stay and of_rates else []
                found += [_folds(key[1], mine, other, len(run.traces))]
                if check := next((check for check in found if check), None):
                    return check
    return None


def _unscaled(name: str, mine: Use, other: Use) -> Check | None:
    (a, x, _), (b, y, event) = mine, other
    if not x or math.isclose(a, b, rel_tol=NEAR) or not math.isclose(x, y, rel_tol=NEAR):
        return None
    finding = f"{name} in `{event['what']}` is {b:.4g}, and {a:.4g} in the serial script, but is compared with {x:.4g}"
    return failed(NAME, f"{finding} in both", "scale this as the rate is: dl.lr_scale()", "other-bound", where=event.at)


def _folds(name: str, mine: Uses, other: Uses, n: int) -> Check | None:
    same = len(mine) == len(other) and all(
        math.isclose(a, b, rel_tol=NEAR) for (a, *_), (b, *_) in zip(mine, other, strict=True)
    )
    for one, two in zip(mine, other, strict=True) if same else ():
        if any(two[1] and is_fold(two[1], one[1], fold) for fold in (n, 1 / n) if fold != 1):
            return _otherwise(name, one, two, (*mine, *other))
    return None


def _otherwise(name: str, mine: Use, other: Use, every: Uses) -> Check | None:
    (a, x, _), (b, y, event) = mine, other
    alike = math.isclose(a, b, rel_tol=NEAR)
    counts = all(float(value).is_integer() for use in every for value in use[:2])
    if math.isclose(x, y, rel_tol=NEAR) or not alike or (counts and y < x):
        return None
    finding = f"{name} in `{event['what']}` is compared with {y:.6g}, and in the serial script with {x:.6g}"
    return failed(NAME, finding, "compare with the serial script's number", "other-bound", where=event.at)


def _stays(uses: Uses) -> bool:
    """Whether the bound is a number that stays, and is none that was just begun with."""
    return math.isfinite(uses[0][1]) and len({bound for _, bound, _ in uses}) == 1


def _by_operand(trace: Trace) -> dict[tuple[str, str], list[Uses]]:
    """Return what each operand is compared with, by the kind of condition; a list for each line."""
    found: dict[tuple[str, str], dict[str, list[Use]]] = defaultdict(dict)
    for event in trace.all("decision", "choice"):
        for name, bound in event.facts.get("bounds", {}).items():
            if (value := event["values"].get(name)) is not None:
                found[event.kind, name].setdefault(event.at, []).append((value, bound, event))
    return {key: list(places.values()) for key, places in found.items()}
