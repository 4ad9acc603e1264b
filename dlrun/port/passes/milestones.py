"""Part of step "steps": what changes the rate, saves, or ends the training at certain numbers of steps."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from dlrun.port.facts import Facts
from dlrun.port.facts.computed import leaves
from dlrun.port.facts.rates import changes, is_least, is_zero
from dlrun.port.passes.counters import Counters, count_name, innermost
from dlrun.port.passes.counts import all_samples, from_length
from dlrun.port.program.script import dotted, walk

_COMPARES = (cst.Equal, cst.In, cst.LessThan, cst.LessThanEqual, cst.GreaterThan, cst.GreaterThanEqual)


def torch(facts: Facts, counters: Counters) -> Iterator[cst.BaseExpression]:
    """Yield what a count of steps is compared with, where that changes the rate: ``if step in (8000, 12000):``.

    And where it is a part of an epoch: ``if step % (len(data) // 5) == 0:``. What is compared is yielded also where the
    change is computed with it: ``if step < ramp: lr *= step / ramp``. So are the steps at which the script saves, or
    decides whether to go on: 64 ranks might not make 1000 steps, and save nothing. What is only shown is left.
    """
    script = facts.script
    known = numbers(facts, counters)
    places = {*changes(facts), *facts.optimizers}  # an optimizer made anew begins with another rate
    for node in script.of(cst.If):
        inside = any(up in facts.loops for up in script.above(node))
        for count, number in _asked(node.test) if inside else ():
            counts = (script.function_of(node), count_name(facts, count)) in known
            if not counts:
                continue
            if _of_all(facts, number) or _sets_rate(facts, node.body, places) or _acts(facts, node):
                yield from _serial(facts, node, number)


def _asked(test: cst.BaseExpression) -> Iterator[tuple[cst.BaseExpression, cst.BaseExpression]]:
    """Yield what ``test`` compares, ``step`` and ``n`` of ``step > 0 and step == n``, or of ``(step + 1) % n == 0``."""
    match test:
        case cst.BooleanOperation(operator=cst.And()):
            yield from _asked(test.left)
            yield from _asked(test.right)
        case cst.BooleanOperation(operator=cst.Or()):  # the last step is the loop's to tell
            sides = [*_asked(test.left), *_asked(test.right)]
            yield from ((count, n) for count, n in sides if isinstance(n, cst.Integer) or _is_divisor(n, test))
        case cst.UnaryOperation(operator=cst.Not(), expression=cst.BinaryOperation(operator=cst.Modulo()) as rest):
            yield _before(rest.left), rest.right
        case cst.Comparison(left=left, comparisons=[cst.ComparisonTarget(operator=operator, comparator=number)]):
            if isinstance(left, cst.BinaryOperation) and isinstance(left.operator, cst.Modulo):
                same = any(n.deep_equals(left.right) for n in walk(number))  # step % n == n - 1
                if isinstance(operator, cst.Equal) and (is_zero(number) or same):
                    yield _before(left.left), left.right
            elif isinstance(operator, _COMPARES) and not is_least(number):
                yield left, number


def _is_divisor(number: cst.BaseExpression, test: cst.BaseExpression) -> bool:
    return any(isinstance(n, cst.BinaryOperation) and isinstance(n.operator, cst.Modulo) and n.right is number
               for n in walk(test))  # fmt: skip


def _before(count: cst.BaseExpression) -> cst.BaseExpression:
    """Return ``step`` of ``step + 1``."""
    adds = isinstance(count, cst.BinaryOperation) and isinstance(count.operator, (cst.Add, cst.Subtract))
    return count.left if isinstance(count, cst.BinaryOperation) and adds else count


def _serial(facts: Facts, node: cst.If, number: cst.BaseExpression) -> Iterator[cst.BaseExpression]:
    """Yield ``number``, where it counts serial steps, and the places in ``node`` that compute with it."""
    if _of_all(facts, number) or not from_length(facts, number):
        yield number
        named = facts.script.code(number) if dotted(number) or _is_entry(number) else ""
        asked = next((up for up in facts.script.above(number) if isinstance(up, cst.Comparison)), node.body)
        same = [n for part in dict.fromkeys((asked, node.body)) for n in walk(part)
                if named and n is not number and facts.script.code(n) == named]  # fmt: skip
        if not any(getattr(facts.script.parents[n], "target", None) is n for n in same):  # counted on in serial steps
            yield from same  # type: ignore[misc]


def _of_all(facts: Facts, number: cst.BaseExpression) -> bool:
    """Tell whether ``number`` is made of the number of all samples."""
    return any(all_samples(facts, leaf) for leaf in leaves(facts.flow, number))


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
            function, name = facts.script.function_of(node), count_name(facts, node.targets[0].target)
            if name and any((function, n.value) in known for n in walk(node.value) if isinstance(n, cst.Name)):
                yield function, name


def _acts(facts: Facts, node: cst.If) -> bool:
    """Tell whether ``node`` saves or decides, beside the steps: a body that updates is one of several batches."""
    around = innermost(facts, node)
    updates = any(facts.script.inside(step.node, node.body) for step in facts.steps)
    trains = around in facts.loops or isinstance(around, cst.FunctionDef)
    return trains and not updates and _saves_or_decides(facts, node.body)


def _saves_or_decides(facts: Facts, node: cst.CSTNode) -> bool:
    """Tell whether running ``node`` saves, tells a scheduler a metric, or end the loop around it."""
    for end in (n for n in walk(node) if isinstance(n, cst.Break)):
        loops = (up for up in facts.script.above(end) if isinstance(up, (cst.For, cst.While)))
        if not any(facts.script.inside(loop, node) for loop in loops):
            return True
    for call in (n for body in facts.flow.bodies(node, 3) for n in walk(body) if isinstance(n, cst.Call)):
        told = isinstance(call.func, cst.Attribute) and call.func.attr.value == "step" and call.args
        if told and facts.kinds.of(call.func.value) == "scheduler":  # type: ignore[attr-defined]
            return True
        if facts.script.name_of(call.func) == "torch.save":
            return True
    return False


def _sets_rate(facts: Facts, node: cst.CSTNode, places: set[cst.CSTNode]) -> bool:
    """Tell whether running ``node`` changes the rate of an optimizer."""
    for n in (n for body in facts.flow.bodies(node, 3) for n in walk(body)):
        if n in places:
            return True
        if isinstance(n, (cst.Assign, cst.AugAssign)):
            target = n.target if isinstance(n, cst.AugAssign) else n.targets[0].target
            if places and dotted(target).rsplit(".", 1)[-1] in ("lr", "learning_rate"):
                return True
    return False
