"""Are lines that come every k iterations shown as often as by the serial script?

An iteration of n ranks stands for n of the serial script: what that shows every k iterations comes every k/n of theirs.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Iterator
from itertools import pairwise

from dlrun.verify.checks.numbers import numbers_of
from dlrun.verify.checks.output import NUMBER, shown
from dlrun.verify.trace import Event, Run, Trace
from dlrun.verify.tracer.syntax import callee, inside
from dlrun.verify.verdict import Check, unjudged

NAME = "lines shown"
TODO = "let it come as often: if i % dl.steps(k) == 0"


def seldom(source: str, file: str, serial: Run, run: Run) -> Check | None:
    """Name a line that the port leaves out, or shows after as many batches of each rank as the serial script; None.

    ``serial`` has gone through as many batches as all ranks together.
    """
    tree = ast.parse(source)
    often, between = ({f"{file}:{line}" for line in lines_under(tree, modulo)} for modulo in (True, False))
    return _within(often, serial, run) or _left_out(between, serial, run)


def _within(periodic: set[str], serial: Run, run: Run) -> Check | None:
    """Look at lines under a condition with ``%``, in the first epoch, or in a loop of steps."""
    n, mine, theirs = len(run.traces), _shown(serial.root), _shown(run.root)
    unit, length = _batches_of_update(serial.root), _length(run.root)
    for words, lines in mine.items():
        first, after = lines[0][1], sorted({batches for batches, _ in lines})
        if any(event.at not in periodic for _, event in lines):
            continue
        now = sorted({batches for batches, _ in theirs.get(words, ())})
        if now == [batches for batches in after if batches <= length] and len(now) < _expected(after, length, unit, n):
            comes = f"after {', '.join(map(str, now[:3]))} batches of {n} ranks" if now else f"never on {n} ranks"
            finding = f"{shown(first['text']).strip()[:70]!r} ({first.at}) comes {comes}, and in the serial script "
            finding += f"after {', '.join(map(str, after[:3]))} of its own: {n} times the samples lie between"
            return unjudged(NAME, finding, TODO)
    return None


def _left_out(conditional: set[str], serial: Run, run: Run) -> Check | None:
    """Look at lines between epochs, under no condition but one with ``%``: not at those of a best epoch, say."""
    if not any(epoch.trains for epoch in serial.root.epochs):
        return None
    n, theirs = len(run.traces), numbers_of(run)
    for key, ones in numbers_of(serial).items():
        twos = theirs.get(key, ())
        if key[0] != "shown" or not 0 < len(twos) < len(ones) or any(one.at in conditional for one in ones):
            continue
        missing = [one for one in ones if not one.within and all(one.batches != n * two.batches for two in twos)]
        if missing:
            finding = f"{missing[0].text[:70]!r} of the serial script ({missing[0].at}): {n} ranks show no such line "
            return unjudged(NAME, f"{finding}after as many samples, {len(twos)} in place of {len(ones)}")
    return None


def lines_under(tree: ast.Module, modulo: bool) -> set[int]:
    """Return the lines of statements under a condition with ``%``, or without, and of the functions called there."""
    functions = {n.name: n for n in ast.walk(tree) if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef))}
    conditions = (node for node in ast.walk(tree) if isinstance(node, ast.If) and not _asks_name(node.test))
    conditional = [node for node in conditions if _has_modulo(node.test) is modulo]
    found, todo = set[int](), [statement for node in conditional for statement in (*node.body, *node.orelse)]
    while todo:
        node = todo.pop()
        lines = set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
        if not lines <= found:
            found |= lines
            called = {callee(each) for each in (node, *inside(node)) if isinstance(each, ast.Call)}
            todo += [functions[name] for name in called & functions.keys()]
    return found


def _has_modulo(test: ast.expr) -> bool:
    return any(isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod) for node in ast.walk(test))


def _asks_name(test: ast.expr) -> bool:
    """Whether a condition is whether the script is run, and not imported."""
    return any(isinstance(node, ast.Name) and node.id == "__name__" for node in ast.walk(test))


def _expected(after: list[int], length: int, unit: int, n: int) -> int:
    """Return how many lines ``length`` batches of each rank have at least; 0 where they come with each update.

    The serial script shows them ``after`` so many batches, ``unit`` of which make an update.
    """
    period = min((b - a for a, b in pairwise(after)), default=after[0])
    first, every = (unit * math.ceil(batches / unit / n) for batches in (after[0], period))
    return 1 + (length - first) // every if period >= 2 * unit and length >= first else 0


def _shown(trace: Trace) -> dict[str, list[tuple[int, Event]]]:
    """Return what is shown until the first epoch ends, by its words, each line with the batches read before."""
    found: dict[str, list[tuple[int, Event]]] = {}
    for batches, event in _first_epoch(trace):
        if batches and event.kind == "print":
            found.setdefault(NUMBER.sub("#", shown(event["text"])).strip(), []).append((batches, event))
    return found


def _length(trace: Trace) -> int:
    """Return after how many batches of the first epoch all was shown: not after the last one where it was left."""
    events = list(_first_epoch(trace))
    ended = trace.epochs and any(event.kind in ("over", "cut") for _, event in events[-1:])
    finished = (trace.last("end") or {"how": ""})["how"] == "finished"
    batches = events[-1][0] if events else 0
    return batches if ended or finished else batches - _batches_of_update(trace)


def _first_epoch(trace: Trace) -> Iterator[tuple[int, Event]]:
    """Yield the events until the first epoch ends, or of the whole training if no loader is read, with the batches."""
    training, batches = {event["epoch"] for event in trace.all("trains")}, 0
    for event in trace.events:
        of_epoch = event.kind in ("batch", "over", "cut") and event["epoch"] in training
        batches += of_epoch and event.kind == "batch" if training else _is_update(event)
        yield batches, event
        if of_epoch and event.kind != "batch":
            return


def _batches_of_update(trace: Trace) -> int:
    """Return how many batches make an update of each optimizer, 1 where no loader is read."""
    training = {event["epoch"] for event in trace.all("trains")}
    batches = sum(event["epoch"] in training for event in trace.all("batch"))
    steps = [event["optimizer"] for event in trace.all("step")]
    return max((round(batches / steps.count(each)) for each in set(steps)), default=1) or 1


def _is_update(event: Event) -> bool:
    return event.kind == "step" and bool(event["optimizer"] == 0)
