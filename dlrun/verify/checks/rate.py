"""Is the learning rate what the port promises for its global batch?"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from dlrun.verify.checks.data import batch_factor
from dlrun.verify.checks.lengths import EPOCHS, by_group, in_epochs, other_length
from dlrun.verify.checks.ramps import END, goes_to, to_scaled
from dlrun.verify.trace import Run, Step
from dlrun.verify.verdict import Check, failed, passed, skipped

NAME = "learning rate"
RATES = ("", "lost-scaling", "other-rate")  # what a schedule at the serial pace may seem to be
MEASURED = 5e-3  # how close a rate comes that is seen from updates by hand, relative


def _alike(one: float, other: float) -> bool:
    """Whether two rates are the same as far as float32 tells."""
    return math.isclose(one, other, rel_tol=1e-6)


def learning_rate(serial: Run, run: Run) -> Check:
    """Compare each optimizer's first rates with the serial ones, under the rule that the port names.

    Linear scaling: Goyal et al., arXiv 1706.02677; sqrt: Krizhevsky, arXiv 1404.5997.
    """
    n = len(run.traces)
    steps, together = serial.root.steps, list(zip(serial.root.steps, run.root.steps, strict=False))
    if any(serial.root.all("peaks")) or not any(run.root.returns("serial_steps")):
        check = _ramp(serial, run) or _compared([rates[0] for rates in _rates(together)], serial, run)
        longer = other_length(serial, run, promised_by(run), NAME) if check.fault in RATES else None
        if check.status == "passed":
            later = _lost_later(serial, run) or goes_to(serial, run, promised_by(run), NAME)
            return later or longer or _so_far(check, serial, run)
        gradual = to_scaled(serial, run, NAME) if check.fault in ("other-rate", "lost-scaling") else None
        return longer or gradual or _by_peak(check, serial, run)
    # A rate by serial steps is that of every n-th of them, counted from 1 or from 0, or from 0 in each epoch; one that
    # is set behind a step, by the number of steps before it, is that of the next.
    epochs = list(zip(in_epochs(serial.root), in_epochs(run.root), strict=False))
    short = [pair for one, other in epochs for pair in zip(one[::n], other, strict=False)]
    every = [list(zip(some, run.root.steps, strict=False)) for some in (steps[n - 1 :: n], steps[::n])]
    every.append(list(zip(steps[n - 1 :: n], run.root.steps[1:], strict=False)))
    checks = [_compared([at for rates in _rates(pairs) for at in rates], serial, run) for pairs in (*every, short)]
    known = ("lost-scaling", "double-scaling")
    return _by_peak(min(checks, key=lambda c: (c.status != "passed", c.fault not in known)), serial, run)


def _by_peak(check: Check, serial: Run, run: Run) -> Check:
    """Return the check, of a schedule that is too fast where rates seem scaled twice and the highest one is not."""
    before, n = _peaks(serial), len(run.traces)
    for key, peak in _peaks(run).items() if check.fault == "double-scaling" else ():
        rates = [by_group(each.root.steps).get(key, [("", 0.0)])[0][1] for each in (serial, run)]
        if peak and before.get(key) and math.isclose(peak, promised_by(run) * (before[key] or 0.0), rel_tol=1e-3):
            finding = f"a schedule begins with {rates[1]:.4g} on {n} ranks and {rates[0]:.4g} on 1, and rises to "
            finding += f"{peak:.4g}, which is scaled once: it is {n} times as fast as the serial one"
            where = next(event.facts.get("where") for event in run.root.all("peaks") if event["optimizer"] == key[0])
            return failed(NAME, finding, EPOCHS, "schedule-too-short", where=where or check.where)
    rises = not any(run.root.returns("lr_scale")) and any(map(_rises, by_group(serial.root.steps).values()))
    if check.fault == "double-scaling" and rises:  # by the script itself
        so = check.finding.partition(", scaled twice")[0]
        todo = f"{END}; or scale by dl.lr_scale() and dl.serial_steps(), which are known"
        return replace(check, finding=f"{so}, scaled twice, or once on a ramp {n} times as fast", todo=todo)
    return check


def _compared(rates: list[tuple[str, float, float]], serial: Run, run: Run) -> Check:
    n = len(run.traces)
    calls = list(run.root.returns("lr_scale"))
    rules = {call["rule"] for call in calls}
    grown = batch_factor(serial, run)
    factors = {"linear": float(n), "sqrt": math.sqrt(n), "none": 1.0}
    promised = {factors.get(rule, 1.0) for rule in rules} if grown > 1 and rules else {1.0}
    warm = next(iter(run.root.returns("warmup")), None)
    by_hand = any(event["type"] == "by hand" for event in serial.root.all("optimizer"))
    found = []
    for at, base, rate in rates:
        factor = rate / base * (n if warm else 1)
        if by_hand:
            known = (f for f in (*factors.values(), n * n) if math.isclose(factor, f, rel_tol=MEASURED))
            factor = next(known, factor)
        found.append((base, rate, factor))
        lines = ", ".join(sorted({call.at for call in calls})) or at
        if any(_alike(factor, p) for p in promised):
            continue
        if not calls and any(_alike(factor, f) for f in factors.values()) and grown > 1:
            continue  # scaled by hand, by a known rule
        scaled = sum(_alike(b, base) and not _alike(r, b) for _, b, r in rates)
        if _alike(factor, 1) and grown > 1 and sum(math.isclose(c["lr"] or 0, base) for c in calls) <= scaled:
            finding = f"{rate:.4g} on {n} ranks and on 1, though {lines} scales another rate by {max(promised):.4g}"
            return failed(NAME, finding, "scale it, too, with dl.lr_scale()", "lost-scaling", where=at)
        return _wrong(base, rate, factor, n, max(promised), lines, grown)
    seen = by_hand and all(step.lr for step in serial.root.steps) and any(run.root.returns("gradients"))
    if seen and not any(step.lr for step in run.root.steps):
        rate, where = serial.root.steps[0].lr[0], run.root.steps[0].at
        finding = (
            f"on 1 rank each parameter moves by {rate:.4g} times its gradient; on {n} ranks the parameters move by "
        )
        finding += "other multiples of the mean"
        return failed(
            NAME, finding, "scale the rate of all of them, once, with dl.lr_scale()", "lost-scaling", where=where
        )
    if not found:
        what = "what updates by hand take is no multiple of the gradient" if by_hand else "no optimizer has one"
        return skipped(NAME, f"not seen: {what}")
    base, rate, factor = found[0]
    ramp = f", reached by a warm-up from {rate:g}" if warm else ""
    rule = next((rule for rule, f in factors.items() if _alike(factor, f)), "none")
    same = _alike(factor, 1)
    how = "unscaled" if same else f"{rule} scaling"
    how += f", though a step takes {grown} times the samples" if same and grown > 1 and not calls else ""
    return passed(NAME, f"{base:.4g} on 1 rank, {base * factor:.4g} on {n} ({how}{ramp})")


def _rates(pairs: Iterable[tuple[Step, Step]]) -> list[list[tuple[str, float, float]]]:
    """Return, of each optimizer's groups, (line, serial rate, rate on n ranks) at each pair of steps: not of 0."""
    found: dict[tuple[int, int], list[tuple[str, float, float]]] = {}
    for a, b in pairs:
        for group, (x, y) in enumerate(zip(a.lr, b.lr, strict=False)):
            if a.optimizer == b.optimizer and x > 0:
                found.setdefault((a.optimizer, group), []).append((b.at, x, y))
    return list(found.values())


def _shorter(run: Run) -> bool:
    """Whether the port makes a schedule shorter; of functions and lists, which have no count, it is taken for so."""
    faster = any(call.facts.get("faster") for call in run.root.returns("lr_scale"))
    return faster or any(call["count"] is None or call["count"] != call["result"] for call in run.root.returns("steps"))


def _ramp(serial: Run, run: Run) -> Check | None:
    """Judge a schedule that rises from the first step on and that the port makes shorter; None of any other.

    It is shorter where dl.steps() counts fewer, or len() of a sharded loader does. Step k (from 0) of n ranks stands
    for the serial steps kn to kn + n - 1, whose rates are that of the port, scaled. A shorter count is rounded: one
    more step on either side may have it.
    """
    n, calls, promised = len(run.traces), list(run.root.returns("lr_scale")), promised_by(run)
    grown = batch_factor(serial, run)
    if grown == 1 or any(run.root.returns("warmup")) or not any(map(_rises, by_group(serial.root.steps).values())):
        return None
    if calls and (wrong := _other_peak(serial, run, promised, grown)):
        return wrong
    if not (shorter := _shorter(run)) and not _starts_with(promised, serial, run):
        return None
    if beside := next(_beside_ramp(serial.root.steps, run.root.steps, n, promised), None):
        where, base, rate = beside
        rising = list(_rising_epochs(serial, run))  # a script may count an epoch's steps, and the epoch may be cut
        if not rising or any(any(_beside_ramp(*pair, n, promised)) for pair in rising):
            lines = ", ".join(sorted({call.at for call in calls}))
            return _wrong(base, rate, rate / base, n, promised, lines or where, grown) if shorter else None
        steps = [(a.lr[0], b.lr[0]) for pair in rising for a, b in zip(*pair, strict=False) if a.lr and b.lr]
        if not shorter and all(_alike(y, promised * n * x) for x, y in steps):
            finding = f"{promised * n:.4g} times the serial one at each step of a ramp that an epoch counts: scaled "
            finding += f"once, on a ramp {n} times as fast, or twice. Its end shows which: take more --steps"
            return skipped(NAME, finding)
    how = f"{promised:.4g} times the serial one, on a schedule that is {n} times as fast"
    how += "" if calls or grown == 1 else f": unscaled, though a step takes {grown} times the samples"
    return passed(NAME, how)


def _beside_ramp(
    before: Sequence[Step], now: Sequence[Step], n: int, promised: float
) -> Iterator[tuple[str, float, float]]:
    """Yield the steps of ranks whose rate is that of none of the serial steps that they stand for: line and rates."""
    one, other = by_group(before), by_group(now)
    for key in one.keys() & other.keys():
        rates = [rate for _, rate in one[key]]
        seen = len(rates)
        rates += [2 * rates[-1] - rates[-2]] if seen > 1 else []  # the next one, on a straight line
        for k, (at, rate) in enumerate(other[key][: seen // n]):
            around = rates[max(0, n * k - 1) : n * k + n + 1]
            if not promised * min(around) * (1 - 1e-6) <= rate <= promised * max(around) * (1 + 1e-6):
                yield at, rates[n * k + n - 1], rate


def _rising_epochs(serial: Run, run: Run) -> Iterator[tuple[list[Step], list[Step]]]:
    """Yield the steps of those training epochs, serial and of the port, in which the serial rate rises at first."""
    for one, other in zip(in_epochs(serial.root), in_epochs(run.root), strict=False):
        if any(map(_rises, by_group(one).values())):
            yield one, other


def promised_by(run: Run) -> float:
    """Return how many times the serial rate the port's is, by its calls of dl.lr_scale()."""
    n = len(run.traces)
    factors = {"linear": float(n), "sqrt": math.sqrt(n)}
    calls = run.root.returns("lr_scale")
    return max((c["result"] / c["lr"] if c["lr"] else factors.get(c["rule"], 1.0) for c in calls), default=1.0)


def _so_far(check: Check, serial: Run, run: Run) -> Check:
    """Return the check with the remark that a rate which the script sets itself still rises, where one does."""
    known, found = _peaks(run), by_group(serial.root.steps)
    for key, rates in found.items():
        if key not in known and len(rates) > 1 and rates[-1][1] > max(rate for _, rate in rates[:-1]):
            said = f"after {len(rates)} steps it still rises, set by the script itself: what it comes to is not seen"
            return replace(check, finding=f"{check.finding}; {said}")
    return check


def _other_peak(serial: Run, run: Run, promised: float, grown: int) -> Check | None:
    """Return a check that failed because a schedule's highest rate is not the serial one, scaled; None if it is.

    The steps of a schedule that was made shorter may pass the peak by: a factor counts as the nearest known one.
    """
    n, lines = len(run.traces), ", ".join(sorted({call.at for call in run.root.returns("lr_scale")}))
    schedules = {event["optimizer"]: event.facts for event in run.root.all("peaks")}
    for key, peak in _peaks(run).items():
        before, steps = _peaks(serial).get(key), by_group(run.root.steps).get(key, [])
        if not before or not peak or schedules[key[0]].get("made", math.inf) < len(steps) - 1:
            continue  # one of epochs: what rises with the steps is the script's own
        near = min({1.0, promised, promised**2}, key=lambda factor: abs(math.log(peak / before / factor)))
        if not math.isclose(near, promised) and near == 1:
            finding = f"a schedule rises to {before:.4g} on {n} ranks and on 1, though {lines} scales the rate"
            todo = "scale the rates that the schedule is made with, too: max_lr=dl.lr_scale(max_lr), say"
            where = schedules[key[0]].get("where") or lines
            return failed(NAME, finding, todo, "lost-scaling", where=where)
        if not math.isclose(near, promised):
            return _wrong(before, near * before, near, n, promised, lines, grown)
    return None


def _peaks(run: Run) -> dict[tuple[int, int], float | None]:
    """Return the highest rate of each optimizer's groups, over its steps and those to come; None where it rises on."""
    found: dict[tuple[int, int], float | None] = {}
    seen = by_group(run.root.steps)
    for event in run.root.all("peaks"):
        for group, peak in enumerate(event["rates"]):
            key = (event["optimizer"], group)
            found[key] = max([peak, *(rate for _, rate in seen.get(key, []))]) if peak else None
    return found


def _starts_with(promised: float, serial: Run, run: Run) -> bool:
    """Whether each optimizer was made with the serial rate, scaled as promised, before any schedule."""
    rates = [[event.facts.get("base") for event in trace.all("optimizer")] for trace in (serial.root, run.root)]
    pairs = [pair for one, two in zip(*rates, strict=False) for pair in zip(one or (), two or (), strict=False)]
    return bool(pairs) and all(_alike(promised * x, y) for x, y in pairs)


def _rises(rates: list[tuple[str, float]]) -> bool:
    return len(rates) > 1 and rates[0][1] < rates[1][1]


def _lost_later(serial: Run, run: Run) -> Check | None:
    """Return a check that failed because a later epoch begins with the serial rate, None where none does.

    Of a schedule that the port makes shorter nothing can be said here. A warm-up is the serial rate at first.
    """
    if _shorter(run):
        return None
    if warm := next(iter(run.root.returns("warmup")), None):
        for rates in _rates(zip(serial.root.steps, run.root.steps, strict=False)):
            for at, x, y in rates[1:] if _alike(rates[0][1], rates[0][2]) else ():
                if y < x * (1 - 1e-3):
                    finding = f"{y:.4g} on {len(run.traces)} ranks and {x:.4g} on 1, in the warm-up of {warm.at}"
                    todo = "the rate that is set then has to be scaled, too, with dl.lr_scale(): a warm-up rises to it"
                    return failed(NAME, finding, todo, "lost-scaling", where=at)
        return None
    begun = ([steps[0] for steps in in_epochs(trace)[1:]] for trace in (serial.root, run.root))
    n, starts = len(run.traces), list(zip(*begun, strict=False))
    for number, (a, b) in enumerate(starts[1:], 2):
        first = starts[0]
        if not a.optimizer == b.optimizer == first[1].optimizer:
            continue
        for x, y, *before in zip(a.lr, b.lr, first[0].lr, first[1].lr, strict=False):
            if x > 0 and _alike(x, y) and not _alike(*before):
                times = before[1] / before[0]
                finding = f"{y:g} on {n} ranks and on 1 in epoch {number}, {times:.4g} times as much in the first"
                todo = "the rate that is set between the epochs has to be scaled, too, with dl.lr_scale()"
                return failed(NAME, finding, todo, "lost-scaling", where=b.at, step=b.number)
    return None


def _wrong(base: float, rate: float, factor: float, n: int, promised: float, lines: str, grown: int) -> Check:
    so = f"{rate:.4g} on {n} ranks, {base:.4g} on 1: {factor:.4g} times"
    if factor > 1 and any(_alike(factor, twice) for twice in (promised**2, n * n)):
        todo = "scale it once: call dl.lr_scale() where the rate is set, and nowhere else"
        return failed(NAME, f"{so}, scaled twice ({lines})", todo, "double-scaling", where=lines.split(", ")[-1])
    if grown == 1:
        todo = "with the serial global batch the rate stays as it is"
        return failed(NAME, f"{so}, though the global batch did not grow", todo, "scaled-rate", where=lines)
    if _alike(factor, 1):
        todo = "something sets the rate again after dl.lr_scale(): scale the value that is set there"
        return failed(NAME, f"{so}, though {lines} scales it by {promised:.4g}", todo, "lost-scaling", where=lines)
    return failed(NAME, f"{so}, promised are {promised:.4g}", "scale it with dl.lr_scale()", "other-rate", where=lines)
