"""Counts that go on from a number of the script's: ``left = 100``, and ``left -= 1`` with every iteration.

Likewise ``step = epoch * batches``, and ``step += 1``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import libcst as cst

from dlrun.port.facts import ScriptFacts
from dlrun.port.placement.interpret import Interpreter
from dlrun.port.program.script import Binding

Tells = Callable[[cst.BaseExpression], bool]


def starts(facts: ScriptFacts, run: Interpreter, counts: Tells, is_serial: Tells) -> Iterator[cst.BaseExpression]:
    """Yield the numbers of serial steps from which iterations are counted on, mostly down to 0.

    Divided, they are counted to their end in 1/n of the iterations, and what is shown is n times what is left. Not
    those of what changes by fractions: see ``fractions``.
    """
    for step, down, begun in _counted_on(facts, run, counts):
        whole = [c for node in (step, *begun) for c in _consts(run, node)]
        if not whole or not all(isinstance(c, int) for c in whole):
            continue
        for value in begun:
            first = [c for c in _consts(run, value) if c not in (-1, 0, 1)]  # the number before the first is -1
            computed = isinstance(value, cst.BinaryOperation) and isinstance(value.operator, cst.Multiply)
            if is_serial(value) and (first or ((down or computed) and not _consts(run, value))):
                yield value  # computed: epoch * batches


def fractions(facts: ScriptFacts, run: Interpreter, counts: Tells) -> Iterator[cst.BaseExpression]:
    """Yield by how much of something that is not 0 each iteration takes away, or adds: ``chance -= 0.02``.

    n ranks move it n times as much in each of theirs: so it is the serial script's in all that reads it.
    """
    for step, _, begun in _counted_on(facts, run, counts):
        moves = [c for c in _consts(run, step) if isinstance(c, float) and c != 1]
        if moves and any(c != 0 for value in begun for c in _consts(run, value)):
            yield step


def _counted_on(
    facts: ScriptFacts, run: Interpreter, counts: Tells
) -> Iterator[tuple[cst.BaseExpression, bool, list[cst.BaseExpression]]]:
    """Yield by what counts go on in every iteration, whether down, and from which expressions they begin."""
    for line in (*facts.script.of(cst.AugAssign), *facts.script.of(cst.Assign)):
        found = moved(line)
        if found is None or not counts(found[0]) or _picks(facts, found[0]) or not _runs_always(facts, line):
            continue
        count, step, down = found
        known = (run.shards.counted, run.shards.ramped, run.shards.divided)
        if any(step in nodes for nodes in known):
            continue
        written = [b.written for b in _bindings(facts, count) if b.how == "assign" and b.node is not line]
        yield step, down, [value for value in written if value is not None and not counts(value)]


def moved(line: cst.CSTNode) -> tuple[cst.BaseExpression, cst.BaseExpression, bool] | None:
    """Return what ``line`` counts on, by how much, and whether down: ``left -= 8``, ``left = left - 1``."""
    match line:
        case cst.AugAssign(target=target, operator=cst.AddAssign() | cst.SubtractAssign() as how, value=step):
            return target, step, isinstance(how, cst.SubtractAssign)
        case cst.Assign(
            targets=[cst.AssignTarget(target=target)],
            value=cst.BinaryOperation(left=left, operator=cst.Add() | cst.Subtract() as sign, right=step),
        ) if target.deep_equals(left):
            return target, step, isinstance(sign, cst.Subtract)
    return None


def _runs_always(facts: ScriptFacts, line: cst.CSTNode, depth: int = 3) -> bool:
    """Tell whether no test lets ``line`` run, such as one for every so many steps: these come as often on n ranks."""
    tested = False
    for up in facts.script.above(line):
        if isinstance(up, (cst.For, cst.While)):
            return not tested
        if isinstance(up, cst.FunctionDef):
            calls = facts.flow.callers(up) if depth else []
            return not tested and all(_runs_always(facts, call, depth - 1) for call in calls)
        if isinstance(up, (cst.If, cst.IfExp)):
            tested = tested or not facts.script.inside(line, up.test)
    return True


def _picks(facts: ScriptFacts, count: cst.BaseExpression) -> bool:
    """Tell whether ``count`` is a place among the samples: ``x[at - 8 : at]``."""
    uses = (n for n in facts.script.of(type(count)) if n.deep_equals(count))
    return any(isinstance(up, cst.SubscriptElement) for use in uses for up in facts.script.above(use))


def _bindings(facts: ScriptFacts, count: cst.BaseExpression) -> list[Binding]:
    if not isinstance(count, cst.Attribute):
        return facts.script.bindings_of(count)
    owners = facts.flow.classes(count.value)
    return [b for owner in owners for b in facts.script.attributes.get((owner, count.attr.value), [])]


def _consts(run: Interpreter, node: cst.BaseExpression) -> list[object]:
    """Return the numbers that ``node`` is known to be; of an expression that was never reached what is written."""
    if isinstance(node, (cst.Integer, cst.Float)):
        return [node.evaluated_value]
    return [v.const for v in run.seen.get(node, ()) if isinstance(v.const, (int, float))]
