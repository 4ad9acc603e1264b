"""Rates that rise by the script's own hand: what they come to is seen at the end of the ramp alone."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from dlrun.verify.checks.data import batch_factor
from dlrun.verify.checks.lengths import by_group
from dlrun.verify.trace import Run
from dlrun.verify.verdict import Check, failed, passed

END = "its end shows which: take more --steps"  # said where these steps do not tell


def to_scaled(serial: Run, run: Run, name: str) -> Check | None:
    """Return a passed check where rates rise from the serial one, or above, to at most n times as much; else None.

    As in the gradual warm-up of Goyal et al., arXiv 1706.02677, section 2.2. The serial ones stay as they are.
    """
    n, one, other = len(run.traces), by_group(serial.root.steps), by_group(run.root.steps)
    if batch_factor(serial, run) == 1 or one.keys() != other.keys():
        return None
    said = ""
    for key, before in one.items():
        now, base = [rate for _, rate in other[key]], before[0][1]
        if not base or len(now) < 3 or any(not math.isclose(rate, base, rel_tol=1e-6) for _, rate in before):
            return None
        risen = all(b >= a for a, b in pairwise(now)) and now[-1] > now[0]
        if not risen or now[0] < base * (1 - 1e-6) or now[-1] > n * base * (1 + 1e-6):
            return None
        said = (
            said
            or f"{base:.4g} on 1 rank; on {n} ranks it rises from {now[0]:.4g} to {now[-1]:.4g} in {len(now)} steps"
        )
    return passed(name, f"{said}, set by the script itself: what it comes to is not seen") if said else None


def at_end(serial: Run, run: Run, promised: float, name: str) -> Check | None:
    """Judge the highest rates of ramps that have come to their end; None where one has not."""
    n, one, other = len(run.traces), by_group(serial.root.steps), by_group(run.root.steps)
    found: list[tuple[float, float, float, str]] = []
    for key, before in one.items():
        base, rate = (_top([rate for _, rate in rates]) for rates in (before, other.get(key, [])))
        if not base or not rate:
            return None
        found.append((rate / base, base, rate, other[key][0][0]))
    if not found:
        return None
    factor, base, rate, where = max(found)
    if math.isclose(factor, n * n, rel_tol=1e-3) or (math.isclose(factor, promised**2, rel_tol=1e-3) and factor > n):
        so = f"a ramp rises to {rate:.4g} on {n} ranks and to {base:.4g} on 1: {factor:.4g} times, scaled twice"
        return failed(name, so, "scale the rate once, where it is set", "double-scaling", where=where)
    if factor > n * (1 + 1e-3):
        return None
    return passed(name, f"a ramp rises to {base:.4g} on 1 rank, to {rate:.4g} on {n} ranks ({factor:.4g} times)")


def _top(rates: Sequence[float]) -> float:
    """Return the highest of rates that rise no more; 0 of those that may rise on."""
    top = max(rates, default=0.0)
    return top if rates and any(math.isclose(rate, top, rel_tol=1e-6) for rate in rates[:-1]) else 0.0
