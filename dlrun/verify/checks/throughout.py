"""Is what holds of the first steps so of all, such as those of the last fold, with a model and an optimizer of its own?

Runs that take each update back come to the end of a script in few steps. What their ranks used as gradients, started
from, and scaled is seen there, too.
"""

from __future__ import annotations

import math
from itertools import zip_longest

from dlrun.verify.checks.gradients import mean_gradients, otherwise
from dlrun.verify.checks.rate import NAME as RATE
from dlrun.verify.checks.rate import promised_by
from dlrun.verify.checks.start import broadcast
from dlrun.verify.trace import Event, Run
from dlrun.verify.verdict import Check, failed


def throughout(serial: Run, run: Run, sharded: Run) -> Check | None:
    """Return the first check that failed of steps that the sharded run does not come to; None of none.

    ``serial`` and ``run``: the runs whose updates were taken back. A port that averages by another library than dl_comm
    is judged by its values, of which these runs keep none.
    """
    if otherwise(sharded):
        return None
    found = [_rates(serial, run), _unscaled(serial, run, sharded)]
    found += [judge(run) for judge in (mean_gradients, broadcast) if judge(sharded).status != "failed"]
    return next((check for check in found if check and check.status == "failed"), None)


def _rates(serial: Run, run: Run) -> Check | None:
    """Tell of an optimizer that is made with another rate than one before it was, where the serial ones are alike."""
    pairs = list(zip_longest(serial.root.all("optimizer"), run.root.all("optimizer")))
    if any(one is None or other is None or one["type"] != other["type"] for one, other in pairs):
        return None
    first: dict[tuple[str, str, float, int], tuple[float, float]] = {}
    for one, other in pairs:
        for group, (x, y) in enumerate(zip(_bases(one), _bases(other), strict=False)):
            known, rate = first.setdefault((one.at, one["type"], x, group), (y, x))
            if not math.isclose(known, y, rel_tol=1e-6):
                finding = f"an optimizer is made with the rate {y:.4g}, one before it with {known:.4g}, where the "
                finding += f"serial script makes both with {rate:.4g}"
                return failed(RATE, finding, "scale all of them alike: dl.lr_scale()", "lost-scaling", where=other.at)
    return None


def _unscaled(serial: Run, run: Run, sharded: Run) -> Check | None:
    """Tell of an optimizer beyond those of the first steps, as of a second phase, that is not scaled, or twice.

    Where those of the first steps are all scaled, and nothing says that this one is not to be.
    """
    promised, known = promised_by(sharded), _first_rates(sharded)
    left = {call["lr"] for call in run.root.returns("lr_scale") if call["lr"] == call["result"]}  # by the rule "none"
    one, other = _first_rates(serial), _first_rates(run)
    rates = {key: (x, other[key][1]) for key, (_, x) in one.items() if key in other and x and x not in left}
    before = [math.isclose(y, promised * x) for key, (x, y) in rates.items() if key in known]
    later = [key for key, (x, y) in rates.items() if key not in known and _is_either(y / x, 1, promised**2)]
    if promised == 1 or not later or not before or not all(before):
        return None
    (_, base), (at, rate) = one[later[0]], other[later[0]]
    finding = f"{rate:.4g} on {len(run.traces)} ranks and {base:.4g} on 1, where those before it are scaled by "
    finding += f"{promised:.4g}"
    lost = math.isclose(rate, base)
    todo = f"scale it{', too, with' * lost}{' once: one' * (not lost)} dl.lr_scale()"
    return failed(RATE, finding, todo, "lost-scaling" if lost else "double-scaling", where=at)


def _is_either(ratio: float, *known: float) -> bool:
    return any(math.isclose(ratio, one, rel_tol=1e-6) for one in known)


def _first_rates(run: Run) -> dict[tuple[int, int], tuple[str, float]]:
    """Return line and rate of the first step with each optimizer's groups."""
    found: dict[tuple[int, int], tuple[str, float]] = {}
    for step in run.root.steps:
        for group, rate in enumerate(step.lr):
            found.setdefault((step.optimizer, group), (step.at, rate))
    return found


def _bases(made: Event) -> list[float]:
    return list(made.facts.get("base") or ())
