"""Is a schedule of the rate as long, in its own steps, as n ranks go through it?"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from dlrun.verify.checks.data import batch_factor, training
from dlrun.verify.trace import Event, Run, Step, Trace
from dlrun.verify.tracer.conditions import TURNS
from dlrun.verify.verdict import Check, failed

SHORT, ROUNDED = 4, 0.3  # steps that are too few to tell; how far rounding takes a short schedule's length, relative
NEAR, TINY = 0.1, 1e-3  # how close an epoch's rate has to be; of the highest, a rate that is too low to be compared
LOWEST, APART = 0.02, 0.15  # of the highest rate: how near to its end a schedule is over; how far rates may be apart
LEAST = 0.1  # of the highest rate: lower ones, such as a floor that is not scaled, are not compared

EPOCHS = "n ranks go through as many epochs: leave what it counts as in the serial script"


def other_length(serial: Run, run: Run, promised: float, name: str) -> Check | None:
    """Return a check that failed because a schedule follows steps that n ranks make fewer of, or epochs as if so.

    ``promised``: how many times the serial rate that of the port is. A schedule that steps with every batch has to be
    n times as fast where n ranks make 1/n of the steps; one that steps with every epoch stays.
    """
    n = len(run.traces)
    if batch_factor(serial, run) == 1:
        return None
    fewer, epochs = fewer_steps(serial, run), [_epochs(serial.root), _epochs(run.root)]
    for a, b in zip(serial.root.all("peaks"), run.root.all("peaks"), strict=False):
        if not a.facts.get("ahead") or a["optimizer"] != b["optimizer"]:
            continue
        if a["made"] in epochs[0] == epochs[1] and b["made"] >= 2 * a["made"]:
            often = b["made"] / a["made"]
            finding = f"a schedule that steps with every epoch steps {often:g} times as often as in the serial script"
            return failed(name, finding, EPOCHS, "schedule-too-short", where=b["where"])
        if a["made"] != b["made"]:
            continue
        where = b["where"] or run.root.steps[-1].at  # a schedule of Keras is the optimizer's to ask
        told = a.facts.get("told") and b.facts.get("told")
        each_step = not told and a["made"] >= sum(step.optimizer == a["optimizer"] for step in serial.root.steps) > 1
        if each_step and fewer and _is(b["ahead"], a["ahead"], a["ahead"][::n], promised):
            return _unchanged(name, where, n)
        if each_step and fewer and _top(serial.root, a) == _top(run.root, b) >= 2 * n:
            finding = "a warm-up that steps with every batch is as long as the serial one"
            finding += f", and {n} ranks make 1/{n} of the steps"
            return failed(name, finding, "take its length from dl.steps(count)", "schedule-too-long", where=where)
        if each_step and math.isclose(_half(serial.root, a) / (_half(run.root, b) or math.inf), n * n, rel_tol=ROUNDED):
            finding = f"a schedule that steps with every batch is {n * n} times as fast as the serial one: {n} ranks "
            todo = "divide what it counts once: by dl.steps(count), or as len() of the sharded loader"
            return failed(name, f"{finding}make 1/{n} of the steps", todo, "schedule-too-short", where=where)
        if each_step and fewer and (off := _shape(_all_rates(serial.root, a), _all_rates(run.root, b), n, promised)):
            finding = f"a schedule that steps with every batch has other rates than the serial one, of which {n} ranks "
            finding += f"go through {n} steps at once: mostly {'higher' if off > 0 else 'lower'} ones"
            todo = "divide all that it counts once: by dl.steps(count), or as len() of the sharded loader"
            return failed(name, finding, todo, f"schedule-too-{'long' if off > 0 else 'short'}", where=where)
        by_epoch = told or (not each_step and a["made"] in epochs[0])
        one, other = _by_epoch(serial.root, a), _by_epoch(run.root, b)
        if by_epoch and (_is(other, one[::n], one, promised) or _is(b["ahead"], a["ahead"][::n], a["ahead"], promised)):
            how = "is told the epochs" if told else "steps with every epoch"
            finding = f"a schedule that {how} is {n} times as fast as the serial one"
            return failed(name, finding, EPOCHS, "schedule-too-short", where=where)
        if by_epoch and not told and (apart := _otherwise(one, other, promised)):
            k, x, y = apart
            finding = f"a schedule that steps with every epoch has {y:.4g} after {k} of them, and {x:.4g} serially"
            fault = f"schedule-too-{'short' if y < x else 'long'}"
            return failed(name, finding, EPOCHS, fault, where=where)
    by_hand = not any(serial.root.all("peaks")) and not any(run.root.returns("serial_steps"))
    if fewer and by_hand and not any(run.root.returns("warmup")):
        return _set_by_hand(serial.root, run, promised, name)
    return None


def _epochs(trace: Trace) -> set[int]:
    """Return how often a schedule of epochs has stepped: as many have come to their end, or have begun; 1 is none."""
    begun = [epoch for epoch in training(trace) if epoch.loops]
    return {sum(epoch.complete for epoch in begun), len(begun)} - {0, 1}


def _by_epoch(trace: Trace, event: Event) -> list[float]:
    """Return the rates of a schedule that steps with every epoch: those that epochs began with, and those to come."""
    begun = [steps[0].lr[0] for steps in in_epochs(trace) if steps and steps[0].lr]
    known = not event.facts.get("told") and len(begun) >= event["made"]
    return [*(begun[: event["made"]] if known else ()), *event["ahead"]]


def _half(trace: Trace, event: Event) -> int:
    """Return after how many steps the rate has fallen to half of its highest one; 0 where it is not seen.

    A cosine that goes on beyond its end rises again.
    """
    rates, top = _all_rates(trace, event), _top(trace, event)
    half = max(rates, default=0.0) / 2
    fallen = next((k for k, rate in enumerate(rates) if k > top and rate <= half), 0)
    return fallen if SHORT <= fallen < 0.9 * len(rates) else 0


def _top(trace: Trace, event: Event) -> int:
    """Return after how many steps the rate is at its highest."""
    rates = _all_rates(trace, event)
    return next((k for k, rate in enumerate(rates) if rate >= max(rates) * (1 - 1e-6)), 0)


def _all_rates(trace: Trace, event: Event) -> list[float]:
    made = [step.lr[0] for step in trace.steps if step.optimizer == event["optimizer"] and step.lr]
    return made + list(event["ahead"])


def _otherwise(one: Sequence[float], other: Sequence[float], promised: float) -> tuple[int, float, float] | None:
    """Return the first rates of an epoch that are neither the serial one, nor scaled, nor between; None of none.

    A floor that is not scaled takes the rates above it with it.
    """
    least, low, high = TINY * max(one, default=0.0), min(1.0, promised) / (1 + NEAR), max(1.0, promised) * (1 + NEAR)
    pairs = enumerate(zip(one, other, strict=False))
    return next(((k, x, y) for k, (x, y) in pairs if x > least and not low * x <= y <= high * x), None)


def _shape(one: Sequence[float], other: Sequence[float], n: int, promised: float) -> float:
    """Return how far a schedule's rates are from the serial ones, n steps at once, on average; 0 where they are near.

    Relative to the highest rate, and until the serial ones have fallen to their lowest: some rise again beyond.
    """
    top = max(one, default=0.0)
    peak = next((k for k, rate in enumerate(one) if rate >= top * (1 - 1e-6)), 0)
    low = min(one[peak:], default=0.0)
    end = next((k for k, rate in enumerate(one) if k >= peak and rate <= low + LOWEST * (top - low)), 0)
    steps = min(end // n, len(other))
    unscaled = promised > 1 and math.isclose(max(other, default=0.0), top, rel_tol=1e-6)  # told as what it is
    if steps < 2 * SHORT or not top or unscaled:
        return 0.0
    due = [promised * sum(one[n * k : n * (k + 1)]) / n for k in range(steps)]
    apart = [rate - other for rate, other in zip(other, due, strict=False)]
    return sum(apart) if sum(map(abs, apart)) > APART * steps * promised * top else 0.0


def _unchanged(name: str, where: str, n: int) -> Check:
    finding = f"a schedule that steps with every batch is as long as the serial one, and {n} ranks make 1/{n} of the "
    finding += "steps: they never come to its end"
    todo = "take what it counts from dl.steps(count), or from len() of the sharded loader"
    return failed(name, finding, todo, "schedule-too-long", where=where)


def _is(
    rates: Sequence[float],
    like: Sequence[float],
    unlike: Sequence[float],
    promised: float,
    near: float = 0.05,
    far: float = 0.2,
) -> bool:
    """Whether rates are these serial ones, scaled, and not those others; a floor may be left as it is."""
    high, low, floor = max(like, default=0.0), min(like, default=0.0), min(rates, default=0.0)
    top = LEAST * high
    scaled = [promised * x for x in like]
    if math.isclose(floor, low, rel_tol=near) and high > low > 0:
        scaled = [floor + (x - low) * (promised * high - floor) / (high - low) for x in like]
    alike = all(math.isclose(y, z, rel_tol=near) for x, y, z in zip(like, rates, scaled, strict=False) if x > top)
    together = list(zip(like, unlike, rates, strict=False))
    low = all(y <= promised * top * (1 + near) for x, z, y in together if x <= top < z)
    return alike and low and any(not math.isclose(x, z, rel_tol=far) for x, z, _ in together if max(x, z) > top)


def fewer_steps(serial: Run, run: Run) -> bool:
    """Whether the port is known to make fewer steps than the serial script: in its epochs, or by a count of steps."""
    return counts_fewer(run) or fewer_turns(serial, run)


def counts_fewer(run: Run) -> bool:
    """Whether something that the port counts is divided by dl.steps(), if only how often it evaluates."""
    warm = {call.at for call in run.root.returns("warmup")}
    return any(call["count"] != call["result"] and call.at not in warm for call in run.root.returns("steps"))


def fewer_turns(serial: Run, run: Run) -> bool:
    """Whether loops of steps are known to have fewer iterations, or epochs fewer batches."""
    before, now = (math.prod(loop["values"][TURNS] for loop in loops(trace)) for trace in (serial.root, run.root))
    if now < before and len(loops(serial.root)) == len(loops(run.root)):
        return True
    one, other, n = training(serial.root), training(run.root), len(run.traces)
    if (
        not one
        or not other
        or not (one[0].loops and one[0].complete and other[0].complete)
        or counts_steps(serial.root)
    ):
        return False
    before, now = (len(epoch.batches) + len(epoch.rest) for epoch in (one[0], other[0]))
    return before >= n > 1 and now <= before // n + 1 and now < before


def counts_steps(trace: Trace) -> bool:
    """Whether a condition that decides how long the script trains counts its steps."""
    made, seen = 0, {}  # type: int, dict[tuple[str, str, str], list[tuple[int, float]]]
    for event in trace.events:
        made += event.kind == "step"
        for operand, value in event["values"].items() if event.kind == "decision" else ():
            seen.setdefault((event.at, event["what"], operand), []).append((made, value))
    return any(
        pairs[-1][0] > pairs[0][0] and len({value - made for made, value in pairs}) == 1 for pairs in seen.values()
    )


def _set_by_hand(serial: Trace, run: Run, promised: float, name: str) -> Check | None:
    """Judge rates that the script sets itself, in the steps that were seen, where they change within an epoch."""
    n = len(run.traces)
    for number in {step.optimizer for step in serial.steps}:
        one, other = ([s for s in t.steps if s.optimizer == number and s.lr] for t in (serial, run.root))
        within = any(a.lr != b.lr and not b.count("epoch") for a, b in pairwise(one))
        rates, now = [step.lr[0] for step in one], [step.lr[0] for step in other]
        if within and _is(now, rates, rates[::n], promised, 1e-7, 1e-5):
            finding = f"the rate follows the steps as in the serial script, and {n} ranks make 1/{n} of them"
            todo = "compute it from dl.serial_steps(step), which counts the serial script's"
            return failed(name, finding, todo, "schedule-too-long", where=other[0].at)
    return None


def loops(trace: Trace) -> list[Event]:
    """Return the first event of each loop through a range in which steps are made, in order."""
    found: dict[str, Event] = {}
    for event in trace.all("decision"):
        if TURNS in event["values"]:
            found.setdefault(event.at, event)
    return list(found.values())


def by_group(steps: Sequence[Step]) -> dict[tuple[int, int], list[tuple[str, float]]]:
    """Return (line, rate) of each step, of each optimizer's groups."""
    found: dict[tuple[int, int], list[tuple[str, float]]] = {}
    for step in steps:
        for group, rate in enumerate(step.lr):
            found.setdefault((step.optimizer, group), []).append((step.at, rate))
    return found


def in_epochs(trace: Trace) -> list[list[Step]]:
    """Return the steps of each training epoch; an epoch may have been cut, in which a script counts its own steps."""
    loaders = {epoch.loader for epoch in trace.epochs if epoch.trains}
    found: list[list[Step]] = [[]]
    for step in trace.steps:
        if any(e.kind == "epoch" and e["loader"] in loaders for e in step.before):
            found.append([])
        found[-1].append(step)
    return found
