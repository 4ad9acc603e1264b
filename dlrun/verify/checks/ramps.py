"""Rates that rise by the script's own hand: what they come to, and how fast, is seen at the end of the ramp alone."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from operator import lt

from dlrun.verify.checks.data import batch_factor
from dlrun.verify.checks.lengths import by_group
from dlrun.verify.trace import Run, Trace
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


def goes_to(serial: Run, run: Run, promised: float, name: str) -> Check | None:
    """Return a check that failed because SWALR goes to the serial rate, or to one that is scaled twice; else None."""
    for a, b in zip(serial.root.all("goes to"), run.root.all("goes to"), strict=False):
        for x, y in zip(a["rates"], b["rates"], strict=False):
            factor = y / x if x else promised
            if promised > 1 and (math.isclose(factor, 1) or math.isclose(factor, promised**2)):
                lost = math.isclose(factor, 1)
                finding = (
                    f"SWALR goes to {y:.4g} on {len(run.traces)} ranks and to {x:.4g} on 1, and dl.lr_scale() scales "
                )
                finding += f"a rate by {promised:.4g}"
                todo = "scale where it goes to, once: swa_lr=dl.lr_scale(swa_lr)"
                return failed(name, finding, todo, "lost-scaling" if lost else "double-scaling", where=b["where"])
    return None


def are_by_hand(trace: Trace) -> bool:
    """Whether rates rise from step to step in an epoch, and no schedule that steps as often makes them."""
    for number in {step.optimizer for step in trace.steps}:
        mine = [step for step in trace.steps if step.optimizer == number]
        rises = any(not b.count("epoch") and any(map(lt, a.lr, b.lr)) for a, b in pairwise(mine))
        known = any(e["optimizer"] == number and e["made"] >= len(mine) - 1 for e in trace.all("peaks"))
        if rises and not known:
            return True
    return False


@dataclass(frozen=True)
class Ramp:
    """A ramp on 1 rank and on n: what it comes to, and after how many steps."""

    base: float
    rate: float
    serial: int
    steps: int
    where: str

    @property
    def factor(self) -> float:
        """How many times as high the one on n ranks is."""
        return self.rate / self.base


def at_end(serial: Run, run: Run, promised: float, fewer: bool, name: str) -> Check | None:
    """Judge the highest rates of ramps that have come to their end, and when they have; None where one has not.

    ``fewer``: the ranks are known to make 1/n of the steps, and a ramp has to be as much shorter.
    """
    n, one, other = len(run.traces), by_group(serial.root.steps), by_group(run.root.steps)
    found: list[Ramp] = []
    for key, before in one.items():
        (base, first), (rate, last) = (_top([rate for _, rate in rates]) for rates in (before, other.get(key, [])))
        if not base or not rate:
            return None
        found.append(Ramp(base, rate, first, last, other[key][last][0]))
    if not found:
        return None
    high, low = max(found, key=lambda ramp: ramp.factor), min(found, key=lambda ramp: ramp.factor)
    so = "a ramp rises to {0.rate:.4g} on {1} ranks and to {0.base:.4g} on 1".format
    twice = math.isclose(high.factor, promised**2, rel_tol=1e-3) and high.factor > n
    if twice or math.isclose(high.factor, n * n, rel_tol=1e-3):
        finding = f"{so(high, n)}: {high.factor:.4g} times, scaled twice"
        return failed(name, finding, "scale the rate once, where it is set", "double-scaling", where=high.where)
    if promised > 1 and math.isclose(low.factor, 1, rel_tol=1e-3):
        finding = f"{so(low, n)}, though dl.lr_scale() scales a rate by {promised:.4g}"
        todo = "scale what it comes to, with dl.lr_scale(), and divide its length once, where it ends and in its slope"
        return failed(name, finding, todo, "lost-scaling", where=low.where)
    if high.factor > n * (1 + 1e-3):
        return None
    if fewer and (wrong := next((each for each in found if each.serial == each.steps > n), None)):
        finding = f"a ramp has {wrong.steps + 1} steps on {n} ranks as on 1, and {n} ranks make 1/{n} of the steps"
        return failed(name, finding, "take its length from dl.steps(count)", "schedule-too-long", where=wrong.where)
    said = f"a ramp rises to {high.base:.4g} on 1 rank, to {high.rate:.4g} on {n} ranks ({high.factor:.4g} times)"
    return passed(name, said)


def _top(rates: Sequence[float]) -> tuple[float, int]:
    """Return the highest of rates that rise no more, and after how many steps it comes; 0 of those that may rise on."""
    top = max(rates, default=0.0)
    ended = rates and any(math.isclose(rate, top, rel_tol=1e-6) for rate in rates[:-1])
    return (top, next(k for k, rate in enumerate(rates) if math.isclose(rate, top, rel_tol=1e-6))) if ended else (0, 0)
