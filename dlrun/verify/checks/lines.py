"""Do ranks that share each serial batch show what the serial script shows, line by line?"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

from dlrun.verify.checks.numbers import NAME, RATES, TODO, Key, Number, is_rate, numbers_of, varying
from dlrun.verify.trace import Run
from dlrun.verify.verdict import Check, failed

NEAR = 2e-3  # relative: so far the parameters may be apart


def line_by_line(serial: Run, run: Run, again: Sequence[Run], known: Collection[Key] = ()) -> Check | None:
    """Return a check that failed because a line has another number; None of none, or where lines are others.

    Left aside are times, rates and what two serial runs have differently. So are numbers that are n times the serial
    ones, or 1/n: a batch size that the script has as a constant is not that of the ranks here. So are those in places
    that are ``known`` to have the serial script's where ranks take whole batches: the greatest loss of a part of a
    batch, say, is not that of all of it.
    """
    n, mine, theirs = len(run.traces), numbers_of(serial), numbers_of(run)
    loose = varying([numbers_of(each) for each in again])
    rates = [{f"{lr:.4g}" for step in r.root.steps for lr in step.lr} for r in (serial, run)]
    found: list[tuple[Key, Number, Number]] = []
    for key, ones in mine.items():
        twos = theirs.get(key, ())
        if key in loose or key in known or key[0] == "decided" or key[2].startswith(RATES) or len(ones) != len(twos):
            continue
        for one, two in zip(ones, twos, strict=True):
            named = is_rate(one, rates[0]) and is_rate(two, rates[1])
            if not named and not _alike(one, two) and not any(_near(two.value, f * one.value) for f in (n, 1 / n)):
                found.append((key, one, two))
    if not found:
        return None
    _, one, two = found[0]
    finding = f"{two.said}, where the serial script, whose batches {n} ranks share here, has {one.text[:70]!r}"
    finding += f"; so have {len(found) - 1} more numbers" if len(found) > 1 else ""
    return failed(NAME, finding, TODO["shown-otherwise"], "shown-otherwise", where=two.at if ":" in two.at else "")


def _alike(one: Number, two: Number) -> bool:
    """Whether numbers are equal up to two units of the last digit that is shown, or what rounding makes of training."""
    digits = one.digits.lower().partition("e")[0].partition(".")[2]
    unit = 2.02 * 10.0 ** -len(digits) if digits and "e" not in one.digits.lower() else 0.0
    x, y = one.value, two.value
    return x == y or (math.isnan(x) and math.isnan(y)) or abs(x - y) <= max(unit, NEAR * abs(x))


def _near(x: float, y: float) -> bool:
    return math.isclose(x, y, rel_tol=NEAR)
