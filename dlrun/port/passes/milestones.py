"""Part of step "steps": a rate that changes once a certain number of steps is reached."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from dlrun.port.facts import Facts
from dlrun.port.facts.rates import changes
from dlrun.port.passes.counters import Counters
from dlrun.port.passes.counts import all_samples, from_length
from dlrun.port.program.script import dotted, walk

_COMPARES = (cst.Equal, cst.In, cst.LessThan, cst.LessThanEqual, cst.GreaterThan, cst.GreaterThanEqual)


def torch(facts: Facts, counters: Counters) -> Iterator[cst.BaseExpression]:
    """Yield what a count of steps is compared with, where that changes the rate: ``if step in (8000, 12000):``.

    What is compared is yielded also where the change is computed with it: ``if step < ramp: lr *= step / ramp``.
    """
    script = facts.script
    known = numbers(facts, counters)
    places = {*changes(facts), *facts.optimizers}  # an optimizer made anew begins with another rate
    for node in script.nodes:
        test = node.test if isinstance(node, cst.If) else None
        if not isinstance(test, cst.Comparison) or len(test.comparisons) != 1 or not isinstance(node, cst.If):
            continue
        target = test.comparisons[0]
        if (script.function_of(node), dotted(test.left)) not in known or not isinstance(target.operator, _COMPARES):
            continue
        if not any(up in facts.loops for up in script.above(node)) or not _sets_rate(facts, node.body, places):
            continue
        if all_samples(facts, target.comparator) or not from_length(facts, target.comparator):
            yield target.comparator
            named = script.code(target.comparator) if dotted(target.comparator) or _is_entry(target.comparator) else ""
            same = [n for n in walk(node.body) if named and script.code(n) == named]
            if not any(getattr(script.parents[n], "target", None) is n for n in same):  # counted on in serial steps
                yield from same  # type: ignore[misc]


def numbers(facts: Facts, counters: Counters) -> Counters:
    """Return ``counters``, the numbers of loops that draw a batch a turn, and what they add up to over epochs."""
    known = counters | set(_counted(facts))
    return known | set(_sums(facts, known))


def _is_entry(node: cst.BaseExpression) -> bool:
    return isinstance(node, cst.Subscript) and bool(dotted(node.value))


def _counted(facts: Facts) -> Iterator[tuple[cst.CSTNode, str]]:
    """Yield the numbers of the loops that draw a batch a turn."""
    for loop, _ in facts.counted:
        if isinstance(loop, cst.For) and isinstance(loop.target, cst.Name):
            yield facts.script.function_of(loop), loop.target.value


def _sums(facts: Facts, known: set[tuple[cst.CSTNode, str]]) -> Iterator[tuple[cst.CSTNode, str]]:
    """Yield the names of steps counted over epochs: ``done = epoch * len(loader) + i``."""
    for node in facts.script.nodes:
        added = isinstance(node, cst.Assign) and isinstance(node.value, cst.BinaryOperation)
        if isinstance(node, cst.Assign) and added and isinstance(node.value.operator, cst.Add):  # type: ignore[attr-defined]
            function = facts.script.function_of(node)
            if any((function, n.value) in known for n in walk(node.value) if isinstance(n, cst.Name)):
                yield function, dotted(node.targets[0].target)


def _sets_rate(facts: Facts, body: cst.CSTNode, places: set[cst.CSTNode], depth: int = 3) -> bool:
    """Tell whether running ``body`` changes the rate of an optimizer."""
    for n in walk(body):
        if n in places:
            return True
        if isinstance(n, (cst.Assign, cst.AugAssign)):
            target = n.target if isinstance(n, cst.AugAssign) else n.targets[0].target
            if places and dotted(target).rsplit(".", 1)[-1] in ("lr", "learning_rate"):
                return True
        targets = facts.flow.targets(n) if isinstance(n, cst.Call) and depth else ()
        if any(_sets_rate(facts, t.body, places, depth - 1) for t in targets):
            return True
    return False
