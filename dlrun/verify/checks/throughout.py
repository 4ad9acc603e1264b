"""Is what holds of the first steps so of all, such as those of the last fold, with a model and an optimizer of its own?

Runs that take each update back come to the end of a script in few steps. What their ranks used as gradients, started
from, and scaled is seen there, too.
"""

from __future__ import annotations

import ast
import math
from itertools import takewhile, zip_longest

from dlrun.verify.checks.gradients import mean_gradients, otherwise
from dlrun.verify.checks.rate import NAME as RATE
from dlrun.verify.checks.rate import promised_by
from dlrun.verify.checks.start import broadcast
from dlrun.verify.trace import Event, Run
from dlrun.verify.verdict import Check, failed


def throughout(serial: Run, run: Run, sharded: Run, source: str = "") -> Check | None:
    """Return the first check that failed of steps that the sharded run does not come to; None of none.

    ``serial`` and ``run``: the runs whose updates were taken back. ``source``: the serial script. A port that averages
    by another library than dl_comm is judged by its values, of which these runs keep none.
    """
    if otherwise(sharded):
        return None
    found = [_rates(serial, run), _unscaled(serial, run, sharded), _reset(serial, run, sharded, source)]
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
    promised, known, left = promised_by(sharded), _first_rates(sharded), _left(run)
    one, other = _first_rates(serial), _first_rates(run)
    rates = {key: (x, other[key][1]) for key, (_, x) in one.items() if key in other and x and x not in left}
    before = [math.isclose(y, promised * x) for key, (x, y) in rates.items() if key in known]
    later = [key for key, (x, y) in rates.items() if key not in known and _is_either(y / x, 1, promised**2)]
    if promised == 1 or not later or not before or not all(before):
        return None
    (_, base), (at, rate) = one[later[0]], other[later[0]]
    return _not_scaled(base, rate, at, promised, len(run.traces), "those before it are")


def _reset(serial: Run, run: Run, sharded: Run, source: str) -> Check | None:
    """Tell of a rate that is set anew later, as for a second phase with the same optimizer, and not scaled, or twice.

    Of the first change, of two in a row, or of a rate that is computed: one that falls on and on may come to a least
    one, which is written in the script, and not to be scaled.
    """
    promised, left = promised_by(sharded), _left(run)
    levels, others = _levels(serial), _levels(run)
    for key, one in levels.items() if promised != 1 else ():
        two = others.get(key, [])
        pairs = zip(one, two, strict=True) if len(one) == len(two) else ()
        ratios = [y / x for (_, x), (_, y) in takewhile(lambda pair: pair[0][1], pairs)]
        first = next((i for i, ratio in enumerate(ratios) if not _is_either(ratio, promised)), 0)
        if not first or one[first][1] in left or not _is_either(ratios[first], 1, promised**2):
            continue
        in_a_row = first == 1 or _is_either(ratios[first], *ratios[first + 1 : first + 2])
        if in_a_row or (source and not _is_written(one[first][1], source)):
            at, rate = two[first]
            return _not_scaled(one[first][1], rate, at, promised, len(run.traces), "the one before it is")
    return None


def _is_written(number: float, source: str) -> bool:
    """Whether a number is written as such in a script."""
    constants = (node.value for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Constant))
    return any(isinstance(value, (int, float)) and math.isclose(value, number, rel_tol=1e-6) for value in constants)


def _not_scaled(base: float, rate: float, at: str, promised: float, n: int, others: str) -> Check:
    finding = f"{rate:.4g} on {n} ranks and {base:.4g} on 1, where {others} scaled by {promised:.4g}"
    lost = math.isclose(rate, base)
    todo = f"scale it{', too, with' * lost}{' once: one' * (not lost)} dl.lr_scale()"
    return failed(RATE, finding, todo, "lost-scaling" if lost else "double-scaling", where=at)


def _left(run: Run) -> set[float]:
    """Return the rates that are not scaled by the rule "none"."""
    return {call["lr"] for call in run.root.returns("lr_scale") if call["lr"] == call["result"]}


def _levels(run: Run) -> dict[tuple[int, int], list[tuple[str, float]]]:
    """Return the rates of each optimizer's groups, one after the other, with the line of the first step with each."""
    found: dict[tuple[int, int], list[tuple[str, float]]] = {}
    for step in run.root.steps:
        for group, rate in enumerate(step.lr):
            levels = found.setdefault((step.optimizer, group), [])
            if not levels or not math.isclose(levels[-1][1], rate, rel_tol=1e-6):
                levels.append((step.at, rate))
    return found


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
