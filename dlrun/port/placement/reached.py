"""Numbers of serial steps or samples at which a script only shows something: ``if seen >= 1000: print(...)``."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from dlrun.port.edits import Edit
from dlrun.port.facts import ScriptFacts
from dlrun.port.insert import expression
from dlrun.port.placement.interpret import Interpreter
from dlrun.port.placement.values import Kind, Place
from dlrun.port.program.script import walk
from dlrun.port.steps.counts.conditions import divided, fewer, rests_of
from dlrun.port.steps.counts.milestones import passes_by

_WHY = "this counts serial steps, of which n ranks take 1/n"
_REACHED = (cst.Equal, cst.GreaterThan, cst.GreaterThanEqual)


def reached(facts: ScriptFacts, run: Interpreter) -> Iterator[Edit]:
    """Divide what counts of this rank's iterations are compared with, where a test does nothing but show.

    What is done there beside, milestones are looked for: see ``steps/counts/milestones``.
    """
    if run.shards.parts or run.shards.episodes:
        return
    shown = {call for call, sinks in run.sinks.items() if not any(s.kept for s in sinks)}
    for tested in (tests[-1] for tests in run.tests.values()):
        node = tested.node
        if tested.loop is None or not isinstance(node, cst.If) or not _only_shows(node, shown):
            continue
        for every, count in (pair for n in walk(node.test) if isinstance(n, cst.BaseExpression) for pair in _rests(n)):
            place = None if passes_by(facts, count, every) else _place(run, count)
            if place is not None and _counts(place) and _is_serial(run, every) and not _is_done(run, node.test):
                yield from (fewer(facts, n, _WHY) for n in (every, *rests_of(facts.script, every)))
        for test in _compared(node.test):
            number, count = test.comparisons[0].comparator, test.left
            if not isinstance(test.comparisons[0].operator, _REACHED) or _is_done(run, test):
                continue
            place = None if passes_by(facts, count, number) else _place(run, count)
            if place is not None and _counts(place) and _is_serial(run, number):
                index = place.kind is Kind.INDEX and isinstance(test.comparisons[0].operator, cst.Equal)
                yield Edit(number, _WHY, lambda n, index=index: _divided(facts.alias, n, index))  # type: ignore[misc]


def _divided(dl: str, number: cst.BaseExpression, index: bool) -> cst.BaseExpression:
    """Return this rank's count for ``number``; of an iteration's number, from 0, that of the one that stands for it."""
    if not index:
        return expression("torch/steps", {"count": number}, dl=dl)
    count: cst.BaseExpression = cst.BinaryOperation(number, cst.Add(), cst.Integer("1"))
    if isinstance(number, cst.Integer):
        count = cst.Integer(str(number.evaluated_value + 1))
    return expression("torch/last_step", {"count": count}, dl=dl)


def _compared(test: cst.BaseExpression) -> Iterator[cst.Comparison]:
    """Yield the comparisons that must all hold."""
    if isinstance(test, cst.BooleanOperation) and isinstance(test.operator, cst.And):
        yield from _compared(test.left)
        yield from _compared(test.right)
    elif isinstance(test, cst.Comparison) and len(test.comparisons) == 1:
        yield test


def _only_shows(node: cst.If, shown: set[cst.Call]) -> bool:
    """Tell whether the body shows something, and else sets flags alone: ``told = True``."""
    lines = node.body.body if isinstance(node.body, (cst.IndentedBlock, cst.SimpleStatementSuite)) else ()
    small = [s for line in lines for s in (line.body if isinstance(line, cst.SimpleStatementLine) else [line])]
    calls = [s for s in small if isinstance(s, cst.Expr) and s.value in shown]
    flags = [s for s in small if isinstance(s, cst.Assign) and _is_flag(s.value)]
    return bool(calls) and len(calls) + len(flags) == len(small) and node.orelse is None


def _rests(node: cst.BaseExpression) -> list[tuple[cst.BaseExpression, cst.BaseExpression]]:
    """Return by what ``node`` divides a count, and that, where it asks for what remains: ``step % n``."""
    counts = divided(node)
    return [(every, count.left if _adds_one(count) else count) for count, every in counts]  # type: ignore[attr-defined]


def _adds_one(count: cst.BaseExpression) -> bool:
    return isinstance(count, cst.BinaryOperation) and isinstance(count.operator, cst.Add)


def _is_flag(value: cst.BaseExpression) -> bool:
    return isinstance(value, cst.Name) and value.value in ("True", "False", "None")


def _is_done(run: Interpreter, test: cst.BaseExpression) -> bool:
    """Tell whether a part of ``test`` follows the number of ranks already."""
    return any(n in run.shards.divided or n in run.shards.counted for n in walk(test))


def _place(run: Interpreter, node: cst.BaseExpression) -> Place | None:
    places = {value.place for value in run.seen.get(node, ()) if not value.refs and value.name != "remainder"}
    return places.pop() if len(places) == 1 else next((p for p in places if p.counts), None)


def _counts(place: Place) -> bool:
    return (place.kind in (Kind.COUNT, Kind.INDEX) and place.at is None) or (place.kind is Kind.RUN and place.counts)


def _is_serial(run: Interpreter, number: cst.BaseExpression) -> bool:
    """Tell whether ``number`` is one of the serial script's, above 1: written, or handed to the program."""
    if isinstance(number, cst.Integer):
        return number.evaluated_value > 1
    plain = isinstance(number, (cst.Name, cst.Attribute))
    values = run.seen.get(number, ())
    return plain and bool(values) and all(v.place == Place() and v.scalar and not v.refs for v in values)
