"""Does the port train as long as the serial script: as many epochs, and steps divided by the ranks once?"""

from __future__ import annotations

import re
from collections.abc import Iterator

from dlrun.verify.checks.data import batch_factor, training
from dlrun.verify.checks.lengths import counts_fewer, fewer_turns, loops
from dlrun.verify.trace import Event, Run, Trace
from dlrun.verify.tracer.conditions import TURNS
from dlrun.verify.verdict import Check, failed

NAME = "length of training"
COMPARES = re.compile(r"[<>]|==")


def turns(serial: Run, run: Run) -> Check | None:
    """Return a check that failed because loops of the training end early: a count is divided twice, or one of epochs.

    None where nothing of that is seen.
    """
    n = len(run.traces)
    again = next((call for call in run.root.returns("steps") if call.facts.get("again")), None)
    if again is not None:
        finding = f"dl.steps() is given {again['count']:g}, which dl.steps() has made: {again['result']:g} are left"
        return failed(NAME, finding, "divide what is counted by one dl.steps()", "too-few-steps", where=again.at)
    if batch_factor(serial, run) == 1:
        return None
    for a, b in zip(loops(serial.root), loops(run.root), strict=False):
        before, now = a["values"][TURNS], b["values"][TURNS]
        if _is(now, before, n * n) and not _is(now, before, n):
            finding = f"{b['what']} makes {now:g} iterations, 1/{n * n} of the serial {before:g}: {n} ranks make 1/{n}"
            todo = "divide the number of iterations once: by dl.steps(), or as len() of the sharded loader"
            return failed(NAME, finding, todo, "too-few-steps", where=b.at)
        through = _goes_through_epochs(serial.root, a) and _shares(serial, run)
        if _is(now, before, n) and (through or _inner_is_divided(a, serial, run)):
            finding = f"{b['what']} goes through {now:g} epochs, the serial script through {before:g}, and each epoch "
            finding += f"has 1/{n} of the steps already"
            return failed(NAME, finding, "leave the number of epochs as it is", "too-few-steps", where=b.at)
    return other_epochs(serial, run) or _unbounded(serial, run) or _undivided(serial, run)


def other_epochs(serial: Run, run: Run) -> Check | None:
    """Tell of a loop that goes through more or fewer epochs on ranks than serially, by one, say; None of none.

    Where steps were divided before it, the epochs may follow from them, rounded otherwise.
    """
    for a, b in zip(loops(serial.root), loops(run.root), strict=False):
        before, now = a["values"][TURNS], b["values"][TURNS]
        if now == before:
            continue
        until = run.root.events[: run.root.events.index(b)]
        divided = any(event.kind == "return" and event["fn"] == "steps" for event in until)
        if divided or not (_goes_through_epochs(serial.root, a) and _shares(serial, run)):
            return None
        finding = f"{b['what']} goes through {now:g} epochs, the serial script through {before:g}"
        return failed(NAME, finding, "let it go through the serial script's epochs", "other-epochs", where=b.at)
    return None


def _undivided(serial: Run, run: Run) -> Check | None:
    """Tell of a loop that counts steps and makes as many on n ranks as on 1: n times the training; None of none."""
    n, loops_of = len(run.traces), [[e for e in loops(r.root) if e.facts.get("single")] for r in (serial, run)]
    if fewer_turns(serial, run) or (counts_fewer(run) and any(_counting(run.root))):
        return None
    together = [(one["values"][TURNS], other) for one, other in zip(*loops_of, strict=False)]
    for before, other in together:
        if other["values"][TURNS] == before >= 2 * n:
            return _too_many(other, before, n, "makes", run)
    return None


def _unbounded(serial: Run, run: Run) -> Check | None:
    """Tell of a condition that ends the training after so many steps, and after as many on n ranks; None of none."""
    n, bounds = len(run.traces), [_bounds(each.root) for each in (serial, run)]
    for key, event in bounds[1].items():
        if key in bounds[0] and key[-1] >= 2 * n:
            return _too_many(event, key[-1], n, "lets the training make", run)
    return None


def _bounds(trace: Trace) -> dict[tuple[str, str, float], Event]:
    """Return, by (condition, operand, number), those that compare a count of steps with a number that stays."""
    found: dict[tuple[str, str, float], Event] = {}
    for name, turns in _counting(trace):
        event, what = turns[0][1], turns[0][1]["what"]
        still = [{turn["values"].get(other) for _, turn in turns} for other in event["values"] if other != name]
        numbers = [float(x) for x in re.findall(r"(?<![\w.])\d+(?![\w.])", what)]
        numbers += [next(iter(each)) or 0.0 for each in still if len(each) == 1]
        found |= {(what, name, number): event for number in numbers}
    return found


def _counting(trace: Trace) -> Iterator[tuple[str, list[tuple[int, Event]]]]:
    """Yield the operands that count steps in conditions that end the training, with what they were after each step.

    A count of batches that begins anew with each epoch is one in the first epoch.
    """
    seen: dict[tuple[str, str], list[tuple[int, Event]]] = {}
    for event, (_, made) in trace.in_passes("decision"):
        if event.facts.get("leaves") and COMPARES.search(event["what"]):
            seen.setdefault((event.at, event["what"]), []).append((made, event))
    for turns in seen.values():
        for name in turns[0][1]["values"] if turns[-1][0] > turns[0][0] else ():
            if len({event["values"].get(name, 0) - made for made, event in turns}) == 1:
                yield name, turns


def _too_many(loop: Event, steps: float, n: int, makes: str, run: Run) -> Check:
    finding = f"{loop['what']} at {loop.at} {makes} {steps:g} steps on {n} ranks as on 1, each with {n} times the "
    finding += f"samples: {n} times the serial training"
    divided = (c for c in run.root.returns("steps") if c.facts.get("follows") or c["count"] == steps)
    if call := next(divided, None):
        finding += f", and what dl.steps() divides at {call.at} comes to its end after 1/{n} of them"
    return failed(NAME, finding, f"dl.steps({steps:g})", "too-many-steps", where=loop.at)


def _is(now: float, before: float, factor: int) -> bool:
    """Whether a number of iterations is another one, divided by a factor, rounded up or down."""
    return before >= 2 * factor and abs(now - before / factor) < 1


def epochs_of(trace: Trace) -> float:
    """Return how many epochs a script's longest loop through them has; infinity where none is known."""
    return max((e["values"][TURNS] for e in loops(trace) if _goes_through_epochs(trace, e)), default=float("inf"))


def _goes_through_epochs(trace: Trace, loop: Event) -> bool:
    """Whether each iteration of a loop goes through a loader, in more steps than one."""
    begun = trace.events.index(loop)
    first = next((event.kind for event in trace.events[begun:] if event.kind in ("epoch", "step")), "")
    whole = [epoch for epoch in training(trace) if epoch.loops and epoch.complete]
    return first == "epoch" and bool(whole) and len(trace.steps) > len(whole)


def _inner_is_divided(outer: Event, serial: Run, run: Run) -> bool:
    """Whether each iteration of a loop, ``outer``, is a range of steps, of which each rank makes 1/n already."""
    pairs = list(zip(loops(serial.root), loops(run.root), strict=False))
    place = next(i for i, (one, _) in enumerate(pairs) if one is outer)
    if outer.facts.get("single") or place + 1 == len(pairs):
        return False
    inner, other = pairs[place + 1]
    turns = inner["values"][TURNS], other["values"][TURNS]
    begun, events = serial.root.events.index(outer), serial.root.events
    first = next((i for i, e in enumerate(events) if e.kind == "step" and i > begun), len(events))
    within = events.index(inner) < first
    return bool(inner.facts.get("single")) and within and _is(turns[1], turns[0], len(run.traces))


def _shares(serial: Run, run: Run) -> bool:
    """Whether an epoch has fewer batches on each rank than in the serial script."""
    one, other = training(serial.root), training(run.root)
    counts = [len(epochs[0].batches) + len(epochs[0].rest) for epochs in (one, other) if epochs and epochs[0].complete]
    return len(counts) == 2 and counts[1] < counts[0]
