"""What a test asks of a count: whether it is at, below or beyond some number, or at every so many-th."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from dlrun.port.facts.rates import is_least, is_zero
from dlrun.port.program.flow import Flow
from dlrun.port.program.script import dotted, walk

_COMPARES = (cst.Equal, cst.In, cst.LessThan, cst.LessThanEqual, cst.GreaterThan, cst.GreaterThanEqual)


def goes_on(body: cst.IndentedBlock) -> bool:
    """Tell whether ``body`` goes on with the next turn, and does nothing else: ``if step % 100: continue``."""
    only = body.body[0] if len(body.body) == 1 else None
    return isinstance(only, cst.SimpleStatementLine) and isinstance(only.body[0], cst.Continue)


def skipped(test: cst.BaseExpression) -> Iterator[tuple[cst.BaseExpression, cst.BaseExpression]]:
    """Yield what a ``test`` compares that leaves out all turns but some: ``step % n``, ``(step + 1) % n != 0``."""
    match test:
        case cst.BooleanOperation(operator=cst.Or()):
            yield from skipped(test.left)
            yield from skipped(test.right)
        case cst.BinaryOperation(operator=cst.Modulo()):
            yield _before(test.left), test.right
        case cst.Comparison(left=cst.BinaryOperation(operator=cst.Modulo()) as rest, comparisons=[only]):
            known = is_zero(only.comparator) or _is_rest_of(only.comparator, rest.right)
            if known and isinstance(only.operator, cst.NotEqual):
                yield _before(rest.left), rest.right


def asked(flow: Flow, test: cst.BaseExpression) -> Iterator[tuple[cst.BaseExpression, cst.BaseExpression]]:
    """Yield what ``test`` compares, ``step`` and ``n`` of ``step > 0 and step == n``, or of ``(step + 1) % n == 0``.

    Also of a name for that, ``due = step % n == 0``, and of a function of the script, ``is_due(step, n)``.
    """
    match test:
        case cst.Name():
            kept = _kept(flow, test)
            yield from asked(flow, kept) if isinstance(kept, (cst.Comparison, cst.Call)) else ()
        case cst.Call():
            yield from _by_function(flow, test)
        case cst.BooleanOperation(operator=cst.And()):
            yield from asked(flow, test.left)
            yield from asked(flow, test.right)
        case cst.BooleanOperation(operator=cst.Or()):  # the last step is the loop's to tell
            sides = [*asked(flow, test.left), *asked(flow, test.right)]
            yield from ((count, n) for count, n in sides if isinstance(n, cst.Integer) or _is_divisor(n, test))
        case cst.UnaryOperation(operator=cst.Not(), expression=cst.BinaryOperation(operator=cst.Modulo()) as rest):
            yield _before(rest.left), rest.right
        case cst.Comparison(left=left, comparisons=[cst.ComparisonTarget(operator=operator, comparator=number)]):
            if isinstance(left, cst.BinaryOperation) and isinstance(left.operator, cst.Modulo):
                if isinstance(operator, cst.Equal) and (is_zero(number) or _is_rest_of(number, left.right)):
                    yield _before(left.left), left.right
            elif parts := [part for side in (left, number) if (part := _part(flow, side)) is not None]:
                yield from ((_before(part.left), part.right) for part in parts)
            elif isinstance(operator, _COMPARES) and not is_least(number):
                yield left, number
                if (count := _before(left)) is not left:  # step - saved >= n
                    yield count, number


def _kept(flow: Flow, name: cst.Name) -> cst.BaseExpression | None:
    """Return what the one assignment of ``name`` gives it."""
    bound = flow.script.bindings_of(name)
    return bound[0].value if len(bound) == 1 and bound[0].how == "assign" and not bound[0].path else None


def _part(flow: Flow, side: cst.BaseExpression) -> cst.BinaryOperation | None:
    """Return the whole-number division that ``side`` is, or is a name for: ``step // 200 > saved``."""
    side = (_kept(flow, side) or side) if isinstance(side, cst.Name) else side
    divides = isinstance(side, cst.BinaryOperation) and isinstance(side.operator, cst.FloorDivide)
    return side if isinstance(side, cst.BinaryOperation) and divides else None


def _by_function(flow: Flow, call: cst.Call) -> Iterator[tuple[cst.BaseExpression, cst.BaseExpression]]:
    """Yield what ``call`` hands to the function of the script that compares it: ``is_due(step, 100)``.

    A number that stands in the function itself is yielded where no other call asks it.
    """
    targets = flow.targets(call)
    told = [value for target in targets for value in flow.returns(target) if dotted(value) not in ("True", "False")]
    if len(targets) != 1 or len(told) != 1 or isinstance(told[0], (cst.Call, cst.Name)):
        return

    def handed(node: cst.BaseExpression) -> cst.BaseExpression | None:
        return flow.argument(call, targets[0], node.value) if isinstance(node, cst.Name) else None

    for count, number in asked(flow, told[0]):
        given, every = handed(count), handed(number)
        bound = flow.script.bindings_of(number)
        if every is None and not any(b.how == "param" for b in bound) and len(flow.callers(targets[0])) == 1:
            every = number
        if every is not None:
            yield given if given is not None else count, every


def _is_rest_of(number: cst.BaseExpression, every: cst.BaseExpression) -> bool:
    """Tell whether ``number`` is the last rest of a division by ``every``: ``n - 1``, and 99 of 100."""
    return any(n.deep_equals(every) for n in walk(number)) or is_one_less(number, every)


def is_one_less(number: cst.CSTNode, every: cst.CSTNode) -> bool:
    """Tell whether both are written as numbers, and ``number`` is one less than ``every``."""
    whole = isinstance(number, cst.Integer) and isinstance(every, cst.Integer)
    return whole and number.evaluated_value == every.evaluated_value - 1  # type: ignore[attr-defined]


def _is_divisor(number: cst.BaseExpression, test: cst.BaseExpression) -> bool:
    return any(isinstance(n, cst.BinaryOperation) and isinstance(n.operator, cst.Modulo) and n.right is number
               for n in walk(test))  # fmt: skip


def _before(count: cst.BaseExpression) -> cst.BaseExpression:
    """Return ``step`` of ``step + 1``."""
    adds = isinstance(count, cst.BinaryOperation) and isinstance(count.operator, (cst.Add, cst.Subtract))
    return count.left if isinstance(count, cst.BinaryOperation) and adds else count
