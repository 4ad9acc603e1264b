"""Moving averages of weights, in the forms that scripts write them: ``m.mul_(d).add_(p, alpha=1 - d)``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import libcst as cst

from dlrun.port.facts import ScriptFacts
from dlrun.port.facts.models.kinds_tensorflow import plain
from dlrun.port.facts.models.weights import of_gradients, of_weights
from dlrun.port.program.script import argument, dotted, walk

_SAME = ("data", "detach", "clone", "float", "cpu", "read_value", "value", "numpy")  # of a tensor, the same numbers
_TAKES = ("copy_", "assign")  # what it is given takes the place of what was there


class Average(NamedTuple):
    """``old`` weighs what is there, ``new`` what comes in. One of them may be left out, or it is not known which is."""

    node: cst.CSTNode
    old: cst.BaseExpression | None
    new: cst.BaseExpression | None


def averages(facts: ScriptFacts) -> Iterator[Average]:
    """Yield the moving averages of a model's weights; those of gradients are an optimizer's own momentum."""
    for average in _found(facts):
        if of_weights(facts, average.node) and not of_gradients(facts, average.node):
            sums = isinstance(average.node, cst.BinaryOperation)
            yield _told_apart(facts, average.node) if sums else average  # type: ignore[arg-type]


def of_numbers(facts: ScriptFacts, decays: Callable[[cst.CSTNode], bool]) -> Iterator[Average]:
    """Yield the moving averages of numbers, such as losses, at what ``decays``."""
    for average in _found(facts):
        node = average.node
        if decays(node.value if isinstance(node, cst.AugAssign) else node) and not of_weights(facts, node):
            yield _told_apart(facts, node) if isinstance(node, cst.BinaryOperation) else average


def _found(facts: ScriptFacts) -> Iterator[Average]:
    for node in facts.script.nodes:
        match node:
            case cst.BinaryOperation(operator=cst.Add(), left=cst.BinaryOperation(), right=cst.BinaryOperation()):
                if _weights(facts, node):
                    yield Average(node, None, None)
            case cst.Call(func=cst.Attribute(value=value, attr=cst.Name("add_")), args=[_, *_]):
                old = _decayed(facts, node, value)
                new = _share(facts, node, old) if old is not None else None
                if new is not None:
                    yield Average(node, old, new)
                elif old is None:
                    yield from _by_share(facts, node, value, node.args[0].value, True)
            case cst.Call(func=cst.Attribute(attr=cst.Name("lerp_")), args=[_, cst.Arg(value=new), *_]):
                yield Average(node, None, new)
            case cst.Call(func=cst.Attribute(attr=cst.Name("_foreach_lerp_")), args=[_, _, cst.Arg(value=new)]):
                yield Average(node, None, new)
            case cst.Call(func=cst.Attribute(attr=cst.Name("_foreach_add_")), args=[cst.Arg(value=kept), _, *_]):
                old = _decayed_all(facts, node, kept)
                new = argument(node, "alpha")
                if old is not None and new is not None and _rest(facts, new, old):
                    yield Average(node, old, new)
            case cst.Call(func=cst.Attribute(value=old, attr=attr), args=[cst.Arg(value=change), *_]):
                if attr.value in ("sub_", "assign_sub", "assign_add"):
                    yield from _by_share(facts, node, old, change, attr.value == "assign_add")
                elif attr.value in _TAKES:
                    yield from _between(facts, node, old, change)
            case cst.AugAssign(target=old, operator=cst.SubtractAssign() | cst.AddAssign() as how, value=change):
                yield from _by_share(facts, node, old, change, isinstance(how, cst.AddAssign))
            case cst.Assign(targets=[cst.AssignTarget(target=old)], value=change):
                yield from _between(facts, node, old, change)
            case _:
                pass


def _before(facts: ScriptFacts, call: cst.Call) -> list[cst.Call]:
    """Return the calls of methods in the line before that of ``call``."""
    block = facts.script.block(line := facts.script.statement_of(call))
    before = block[block.index(line) - 1] if line in block and block.index(line) else None
    return [n for n in walk(before) if isinstance(n, cst.Call) and isinstance(n.func, cst.Attribute)] if before else []


def _decayed_all(facts: ScriptFacts, call: cst.Call, kept: cst.BaseExpression) -> cst.BaseExpression | None:
    """Return ``d`` of ``torch._foreach_mul_(kept, d)`` in the line before ``call``."""
    for c in _before(facts, call):
        if c.func.attr.value == "_foreach_mul_" and len(c.args) == 2 and c.args[0].value.deep_equals(kept):  # type: ignore[attr-defined]
            return c.args[1].value
    return None


def _decayed(facts: ScriptFacts, call: cst.Call, value: cst.BaseExpression) -> cst.BaseExpression | None:
    """Return ``d`` of ``m.mul_(d).add_(...)``, also where it is the statement before."""
    if not isinstance(value, cst.Call):
        same = [c for c in _before(facts, call) if c.func.value.deep_equals(value)]  # type: ignore[attr-defined]
        value = same[0] if same else value
    match value:
        case cst.Call(func=cst.Attribute(attr=cst.Name("mul_")), args=[cst.Arg(value=old)]):
            return old
    return None


def _share(facts: ScriptFacts, call: cst.Call, old: cst.BaseExpression) -> cst.BaseExpression | None:
    """Return what weighs the new weights in ``m.mul_(old).add_(...)``."""
    given = argument(call, "alpha")
    first = call.args[0].value
    sides = [first.left, first.right] if isinstance(first, cst.BinaryOperation) else [first]
    candidates = [given] if given is not None else [first, *sides]  # add_(1 - d, p), as it was once
    return next((side for side in candidates if _rest(facts, side, old)), None)


def _by_share(
    facts: ScriptFacts, node: cst.CSTNode, old: cst.BaseExpression, change: cst.BaseExpression, grows: bool
) -> Iterator[Average]:
    """Yield ``old -= w * (old - new)`` and what is like it: ``old.add_(new - old, alpha=w)``."""
    alpha = argument(node, "alpha") if isinstance(node, cst.Call) else None
    given = change if alpha is None else cst.BinaryOperation(alpha, cst.Multiply(), change)
    yield from (Average(node, None, new) for new in _towards(facts, old, given, grows))


def _between(
    facts: ScriptFacts, node: cst.CSTNode, old: cst.BaseExpression, made: cst.BaseExpression
) -> Iterator[Average]:
    """Yield what takes a value between its own and another: ``old.copy_(torch.lerp(old, new, w))``."""
    match made:
        case cst.Call(func=cst.Attribute(value=cst.Name("torch"), attr=cst.Name("lerp")), args=args):
            ends = [arg.value for arg in args]
        case cst.Call(func=cst.Attribute(value=start, attr=cst.Name("lerp")), args=args):
            ends = [start, *(arg.value for arg in args)]
        case _:
            return
    if len(ends) == 3 and _plain(facts, ends[0]) == _plain(facts, old):
        yield Average(node, None, ends[2])
    elif len(ends) == 3 and _plain(facts, ends[1]) == _plain(facts, old):
        yield Average(node, ends[2], None)


def _towards(
    facts: ScriptFacts, old: cst.BaseExpression, change: cst.BaseExpression, grows: bool = False
) -> Iterator[cst.BaseExpression]:
    """Yield the share ``w`` of ``old -= w * (old - new)``, or where it ``grows`` of ``old += w * (new - old)``."""
    if not (isinstance(change, cst.BinaryOperation) and isinstance(change.operator, cst.Multiply)):
        return
    for share, way in ((change.left, change.right), (change.right, change.left)):
        away = isinstance(way, cst.BinaryOperation) and isinstance(way.operator, cst.Subtract)
        if away and _plain(facts, way.right if grows else way.left) == _plain(facts, old):  # type: ignore[attr-defined]
            yield share


def _weights(facts: ScriptFacts, node: cst.BinaryOperation) -> list[tuple[cst.BaseExpression, cst.BaseExpression]]:
    """Return (weight, what it weighs) of both terms of ``d * a + (1 - d) * b``; nothing where it is something else."""
    terms = [side for side in (node.left, node.right) if isinstance(side, cst.BinaryOperation)]
    if len(terms) < 2:
        return []
    pairs = [_factors(term) for term in terms]
    found = ([a, b] for a in pairs[0] for b in pairs[1] if _rest(facts, a[0], b[0]) or _rest(facts, b[0], a[0]))
    return next(found, [])


def _factors(term: cst.BinaryOperation) -> list[tuple[cst.BaseExpression, cst.BaseExpression]]:
    """Return each factor of a product, with what else is in it: also of ``(1 - d) * a / b``."""
    found = [(term.left, term.right), (term.right, term.left)] if isinstance(term.operator, cst.Multiply) else []
    first = term.left if isinstance(term.operator, (cst.Multiply, cst.Divide)) else None
    while isinstance(first, cst.BinaryOperation) and isinstance(first.operator, (cst.Multiply, cst.Divide)):
        found += [(first.left, term)]
        found += [(first.right, term)] if isinstance(first.operator, cst.Multiply) else []
        first = first.left
    return found


def _told_apart(facts: ScriptFacts, node: cst.BinaryOperation) -> Average:
    """Return the average with its weights, if it is known which one the old values have."""
    script = facts.script
    (a, x), (b, y) = _weights(facts, node)
    statement, boxes = script.statement_of(node), set[str]()
    for line in [statement, *script.block(script.line_of(statement))]:
        for small in walk(line):
            match small:
                case cst.Assign(targets=[cst.AssignTarget(target=box)], value=value):
                    pass
                case cst.Call(func=func, args=[cst.Arg(value=box), cst.Arg(value=value), *_]) if (
                    plain(script.name_of(func)) == "tensorflow.assign"
                ):
                    pass
                case cst.Call(func=cst.Attribute(value=box, attr=attr), args=[cst.Arg(value=value), *_]):
                    if attr.value not in _TAKES:
                        continue
                case _:
                    continue
            if script.inside(node, value) or any(isinstance(n, cst.Name) and n.value in boxes for n in walk(value)):
                boxes.add(_plain(facts, box))
    for (kept, old), (new, coming) in (((a, x), (b, y)), ((b, y), (a, x))):
        if _plain(facts, old) in boxes and _plain(facts, coming) not in boxes:
            return Average(node, kept, new)
    size, rest = _number(facts, a), _number(facts, b)
    if size is None and rest is not None:
        size = 1 - rest
    if size in (None, 0.5):
        return Average(node, None, None)
    return Average(node, a, b) if size > 0.5 else Average(node, b, a)  # it keeps most of the old


def _rest(facts: ScriptFacts, one: cst.BaseExpression, other: cst.BaseExpression) -> bool:
    """Tell whether ``one`` is 1 - ``other``."""
    for n in (one, *(o.node for o in facts.flow.origins(one))):
        taken = taken_from_one(facts, n)
        if taken is not None and facts.script.code(_bare(taken)) == facts.script.code(_bare(other)):
            return True
    if isinstance(one, cst.Float) and isinstance(other, cst.Float):
        return abs(one.evaluated_value + other.evaluated_value - 1) < 1e-9
    return False


def taken_from_one(facts: ScriptFacts, node: cst.CSTNode) -> cst.BaseExpression | None:
    """Return ``d`` of ``1 - d``."""
    takes = isinstance(node, cst.BinaryOperation) and isinstance(node.operator, cst.Subtract)
    return node.right if takes and _number(facts, node.left) == 1 else None  # type: ignore[attr-defined]


def _plain(facts: ScriptFacts, node: cst.BaseExpression) -> str:
    """Return the text of a tensor without what gives the same numbers: ``p`` of ``p.data.float()``."""
    node = node.func if isinstance(node, cst.Call) else node
    while isinstance(node, cst.Attribute) and node.attr.value in _SAME:
        node = node.value.func if isinstance(node.value, cst.Call) else node.value
    return dotted(node) or facts.script.code(node)


def _number(facts: ScriptFacts, node: cst.BaseExpression) -> float | None:
    found = {o.node.evaluated_value for o in facts.flow.origins(node) if isinstance(o.node, (cst.Float, cst.Integer))}
    return float(found.pop()) if len(found) == 1 else None


def _bare(node: cst.BaseExpression) -> cst.BaseExpression:
    return node.with_changes(lpar=(), rpar=())
