"""What a test asks of a count: whether it is at, below or beyond some number, or at every so many-th."""

from __future__ import annotations

from collections.abc import Collection, Iterator

import libcst as cst

from dlrun.port.edits import Edit
from dlrun.port.facts import ScriptFacts
from dlrun.port.facts.updates.rates import is_least
from dlrun.port.insert import expression
from dlrun.port.program.flow import Flow
from dlrun.port.program.script import Script, dotted, walk

_RESTS = ("mod", "remainder", "fmod", "divmod")
_UPDATES = ("apply_gradients", "apply", "minimize", "gradient", "backward", "step")
_COMPARES = (cst.Equal, cst.In, cst.LessThan, cst.LessThanEqual, cst.GreaterThan, cst.GreaterThanEqual)


def goes_on(body: cst.BaseSuite) -> bool:
    """Tell whether ``body`` goes on with the next iteration, and does nothing else: ``if step % 100: continue``."""
    only = body.body[0] if len(body.body) == 1 else None
    return isinstance(only.body[0] if isinstance(only, cst.SimpleStatementLine) else only, cst.Continue)


def ends_iteration(script: Script, body: cst.CSTNode, how: tuple[type[cst.CSTNode], ...] = (cst.Continue,)) -> bool:
    """Tell whether ``body`` ends the iteration of the loop around it: that of a loop inside it does not count."""
    loops = (cst.For, cst.While)
    ends = (n for n in walk(body) if isinstance(n, how))
    return any(not any(script.inside(up, body) for up in script.above(n) if isinstance(up, loops)) for n in ends)


def skipped(test: cst.BaseExpression) -> Iterator[tuple[cst.BaseExpression, cst.BaseExpression]]:
    """Yield what a ``test`` compares that leaves out all iterations but some: ``step % n``, ``(step + 1) % n != 0``."""
    match test:
        case cst.BooleanOperation(operator=cst.Or()):
            yield from skipped(test.left)
            yield from skipped(test.right)
        case cst.BinaryOperation() | cst.Call():
            yield from ((_before(count), every) for count, every in divided(test))
        case cst.Comparison(left=left, comparisons=[cst.ComparisonTarget(cst.NotEqual(), number)]):
            yield from ((_before(count), every) for count, every in divided(left) if _is_rest_of(number, every))


def asked(
    flow: Flow, test: cst.BaseExpression, deep: int = 4
) -> Iterator[tuple[cst.BaseExpression, cst.BaseExpression]]:
    """Yield what ``test`` compares, ``step`` and ``n`` of ``step > 0 and step == n``, or of ``(step + 1) % n == 0``.

    Also of a name for that, ``due = step % n == 0``, and of a function of the script, ``is_due(step, n)``, calls within
    calls up to ``deep``.
    """
    match test:
        case cst.Name():
            kept = _kept(flow, test)
            yield from asked(flow, kept, deep) if isinstance(kept, (cst.Comparison, cst.Call)) else ()
        case cst.Call():
            yield from _by_function(flow, test, deep - 1) if deep else ()
        case cst.BooleanOperation(operator=cst.And()):
            yield from asked(flow, test.left, deep)
            yield from asked(flow, test.right, deep)
        case cst.BooleanOperation(operator=cst.Or()):  # the last step is the loop's to tell
            sides = [*asked(flow, test.left, deep), *asked(flow, test.right, deep)]
            yield from ((count, n) for count, n in sides if isinstance(n, cst.Integer) or _is_divisor(n, test))
        case cst.UnaryOperation(operator=cst.Not(), expression=rest):
            yield from ((_before(count), every) for count, every in divided(rest))
        case cst.Comparison(left=left, comparisons=[cst.ComparisonTarget(operator=operator, comparator=number)]):
            if rests := divided(left):
                equals = isinstance(operator, cst.Equal)
                yield from ((_before(n), every) for n, every in rests if equals and _is_rest_of(number, every))
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


def _by_function(flow: Flow, call: cst.Call, deep: int) -> Iterator[tuple[cst.BaseExpression, cst.BaseExpression]]:
    """Yield what ``call`` hands to the function of the script that compares it: ``is_due(step, 100)``.

    A number that stands in the function itself is yielded where no other call asks it.
    """
    targets = flow.targets(call)
    told = [value for target in targets for value in flow.returns(target) if dotted(value) not in ("True", "False")]
    if len(targets) != 1 or len(told) != 1 or isinstance(told[0], (cst.Call, cst.Name)):
        return

    def handed(node: cst.BaseExpression) -> cst.BaseExpression | None:
        return flow.argument(call, targets[0], node.value) if isinstance(node, cst.Name) else None

    for count, number in asked(flow, told[0], deep):
        given, every = handed(count), handed(number)
        bound = flow.script.bindings_of(number)
        if every is None and not any(b.how == "param" for b in bound) and len(flow.callers(targets[0])) == 1:
            every = number
        if every is not None:
            yield given if given is not None else count, every


def divided(node: cst.BaseExpression) -> list[tuple[cst.BaseExpression, cst.BaseExpression]]:
    """Return what ``node`` divides, and by what, where it is what remains: ``step % n``, ``np.mod(step, n)``."""
    if isinstance(node, cst.BinaryOperation) and isinstance(node.operator, cst.Modulo):
        return [(node.left, node.right)]
    rests = isinstance(node, cst.Call) and dotted(node.func).rsplit(".", 1)[-1] in _RESTS and len(node.args) == 2
    return [(node.args[0].value, node.args[1].value)] if isinstance(node, cst.Call) and rests else []


def is_last(script: Script, value: cst.BaseExpression, counts: Collection[cst.CSTNode]) -> bool:
    """Tell whether ``value`` is the number, from 0, of the last of some steps: 99 in ``step % 100 == 99``.

    And 999 in ``step == 999``, where 1000 is one of the ``counts`` of steps.
    """
    up = script.parents[value]
    if every := rest_of(script, value):
        return any(is_one_less(value, number) for number in every)
    equals = isinstance(up, cst.ComparisonTarget) and isinstance(up.operator, cst.Equal)
    test = script.parents[up] if equals else None
    alone = isinstance(test, cst.Comparison) and not isinstance(test.left, cst.BinaryOperation)
    return alone and any(is_one_less(value, number) for number in counts)


def rest_of(script: Script, value: cst.CSTNode) -> list[cst.BaseExpression]:
    """Return of what ``value`` is the rest that is asked for: 100 in ``step % 100 == 50``; none if it is none."""
    up = script.parents[value]
    equals = isinstance(up, cst.ComparisonTarget) and isinstance(up.operator, (cst.Equal, cst.NotEqual))
    test = script.parents[up] if equals else None
    return [every for _, every in divided(test.left)] if isinstance(test, cst.Comparison) else []


def rests_of(script: Script, every: cst.BaseExpression) -> Iterator[cst.BaseExpression]:
    """Yield the rests that are asked for of a division by the number ``every``: 50, 100 - 1, and 99, of 100."""
    test = next((up for up in script.above(every) if isinstance(up, cst.Comparison)), None)
    if test is None or not isinstance(every, cst.Integer) or not script.inside(every, test.left):
        return
    compared = test.comparisons[0].comparator
    kept = divided(test.left) and isinstance(compared, cst.Integer) and compared.evaluated_value > 0  # == 50
    found = [compared] if kept else walk(compared)
    last = [compared] if is_one_less(compared, every) else []
    yield from last or (n for n in found if kept or n.deep_equals(every))  # type: ignore[misc]


def fewer(facts: ScriptFacts, value: cst.BaseExpression, why: str, counts: Collection[cst.CSTNode] = ()) -> Edit:
    """Make ``value``, which counts serial steps, one of n ranks: ``dl.steps(100)``, ``dl.steps(100) - 1`` of 99.

    The last of some steps, ``len(loader) - 1``, stays one less than all.
    Of 50 in ``step % 100 == 50`` what remains of ``dl.steps(100)``. ``counts`` are what else is divided.
    """
    alias, every = facts.alias, rest_of(facts.script, value)
    if is_last(facts.script, value, counts):
        count = cst.Integer(str(value.evaluated_value + 1))  # type: ignore[attr-defined]
        return Edit(value, why, lambda _: expression("torch/last_step", {"count": count}, dl=alias))
    if every:
        return Edit(value, why, lambda n: expression("torch/rest_of_steps", {"count": n, "every": every[0]}, dl=alias))
    if isinstance(value, cst.BinaryOperation) and isinstance(value.operator, cst.Subtract) and _is_one(value.right):
        return Edit(value, why, lambda n: expression("torch/last_step", {"count": n.left}, dl=alias))
    return Edit(value, why, lambda n: expression("torch/steps", {"count": n}, dl=alias))


def _is_one(number: cst.BaseExpression) -> bool:
    return isinstance(number, cst.Integer) and number.evaluated_value == 1


def is_apart(flow: Flow, body: cst.CSTNode) -> bool:
    """Tell whether ``body`` is beside the updates: it makes none, and no part of a loss."""
    for n in (n for part in flow.bodies(body, 3) for n in walk(part)):
        if isinstance(n, cst.Call) and dotted(n.func).rpartition(".")[2] in _UPDATES:
            return False
        targets = [n.target] if isinstance(n, cst.AugAssign) else [t.target for t in getattr(n, "targets", ())]
        if flow.script.inside(n, body) and any(isinstance(target, cst.Name) for target in targets):
            return False
    return True


def _is_rest_of(number: cst.BaseExpression, every: cst.BaseExpression) -> bool:
    """Tell whether ``number`` may remain of a division by ``every``: 0, ``n - 1``, and 2 of 500."""
    if isinstance(number, cst.Integer) and isinstance(every, cst.Integer):
        return number.evaluated_value < every.evaluated_value
    return isinstance(number, cst.Integer) or any(n.deep_equals(every) for n in walk(number))


def is_one_less(number: cst.CSTNode, every: cst.CSTNode) -> bool:
    """Tell whether both are written as numbers, and ``number`` is one less than ``every``."""
    whole = isinstance(number, cst.Integer) and isinstance(every, cst.Integer)
    return whole and number.evaluated_value == every.evaluated_value - 1  # type: ignore[attr-defined]


def _is_divisor(number: cst.BaseExpression, test: cst.BaseExpression) -> bool:
    return any(
        isinstance(n, cst.BinaryOperation) and isinstance(n.operator, cst.Modulo) and n.right is number
        for n in walk(test)
    )


def _before(count: cst.BaseExpression) -> cst.BaseExpression:
    """Return ``step`` of ``step + 1``."""
    adds = isinstance(count, cst.BinaryOperation) and isinstance(count.operator, (cst.Add, cst.Subtract))
    return count.left if isinstance(count, cst.BinaryOperation) and adds else count


def picked_by(script: Script, length: cst.BaseExpression) -> cst.Subscript | None:
    """Return ``batches[at]`` where ``length`` is ``len(batches)`` of ``if at >= len(batches): at = 0``."""
    if not isinstance(length, cst.Call) or dotted(length.func) != "len" or len(length.args) != 1:
        return None
    test = next((up for up in script.above(length) if isinstance(up, cst.Comparison)), None)
    loop = next((up for up in script.above(length) if isinstance(up, (cst.For, cst.While))), None)
    counter = test.left if test is not None and isinstance(test.left, cst.Name) else None
    if loop is None or counter is None:
        return None
    for node in walk(loop.body):
        if isinstance(node, cst.Subscript) and node.value.deep_equals(length.args[0].value):
            index = node.slice[0].slice
            if isinstance(index, cst.Index) and index.value.deep_equals(counter):
                return node
    return None
