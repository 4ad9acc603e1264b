"""Part of step "steps": means over the steps between two saves, or two tests, of which n ranks take 1/n."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import libcst as cst

from dlrun.port.facts import ScriptFacts
from dlrun.port.facts.numbers.lists import FILLS, Lists
from dlrun.port.program.script import added, argument, calls_method, dotted, names_in, walk


def means(
    facts: ScriptFacts, loop: cst.CSTNode, places: Sequence[cst.CSTNode], number: cst.BaseExpression
) -> Iterator[cst.BaseExpression]:
    """Yield ``number`` where ``places`` take the mean of as many numbers that the iterations of ``loop`` collect.

    ``print(running / 50)``, ``running /= 50``, ``sum(losses[-50:]) / 50``, also of a ``deque(maxlen=50)``. And where
    each iteration adds a part of a mean that ``places`` begin anew: ``mean += loss / 50``.
    """
    targets = [t.target for place in places for n in walk(place) if isinstance(n, cst.Assign) for t in n.targets]
    begun = {name for target in targets for name in (dotted(target), *names_in(target))} - {""}
    for n in walk(loop):
        part = n.value if isinstance(n, cst.AugAssign) and dotted(n.target) in begun else None
        if isinstance(part, cst.BinaryOperation) and isinstance(part.operator, cst.Divide):
            yield from [part.right] if part.right.deep_equals(number) else []
    if isinstance(number, cst.Integer):  # else all places that name it are told
        yield from _written(facts, loop, places, number)


def _written(
    facts: ScriptFacts, loop: cst.CSTNode, places: Sequence[cst.CSTNode], number: cst.Integer
) -> Iterator[cst.BaseExpression]:
    """Yield ``number`` where it divides what was collected, or says how much of it is taken.

    What goes on over several cadences is no window: its total over the ranks is divided by the number as it is.
    """
    lists = Lists(facts.flow)
    grown = {dotted(found[0]) for n in walk(loop) if (found := added(n)) is not None} - {""}
    anew = _begun_anew(loop)
    for node in (n for place in places for n in walk(place)):
        match node:
            case cst.BinaryOperation(operator=cst.Divide(), left=total, right=count) if _equals(count, number):
                queues = list(_queues(facts, total, number))
                parts = [n for n in walk(total) if isinstance(n, (cst.Name, cst.Attribute))]
                summed = any(dotted(n) in grown or lists.filled(n) for n in parts) and not _is_mean(total, grown)
                sliced = any(isinstance(n, cst.Slice) for n in walk(total))
                if queues or (summed and (sliced or not anew.isdisjoint(base for n in parts for base in _bases(n)))):
                    yield from (count, *queues)
            case cst.AugAssign(operator=cst.DivideAssign(), target=total, value=count) if _equals(count, number):
                yield from [count] if dotted(total) in grown and not anew.isdisjoint(_bases(total)) else []
            case cst.Subscript(value=box, slice=[cst.SubscriptElement(slice=cst.Slice(lower=lower, upper=None))]):
                back = lower.expression if isinstance(lower, cst.UnaryOperation) else None
                yield from [back] if back is not None and _equals(back, number) and lists.filled(box) else []


def _begun_anew(loop: cst.CSTNode) -> set[str]:
    """Return the names that the iterations of ``loop`` set, delete, or call a method of other than to add to them."""
    found: list[cst.CSTNode] = []
    for n in walk(loop):
        match n:
            case cst.Assign(targets=targets) if added(n) is None:
                found += [part for t in targets for part in walk(t.target)]
            case cst.Del(target=target):
                found += walk(target)
            case cst.Call(func=cst.Attribute(value=box)) if not calls_method(n, *FILLS):
                found.append(box)
    return {dotted(n) for n in found if isinstance(n, (cst.Name, cst.Attribute))} - {""}


def _bases(node: cst.BaseExpression) -> list[str]:
    """Return the dotted names of ``node`` and of what it is a part of: ``meter.sum``, ``meter``."""
    found = [dotted(node)]
    while isinstance(node, (cst.Attribute, cst.Subscript)):
        node = node.value
        found.append(dotted(node))
    return [name for name in found if name]


def _is_mean(total: cst.BaseExpression, grown: set[str]) -> bool:
    """Tell whether ``total`` is a mean already, over what the iterations count: ``right / seen``."""
    over = [n.right for n in walk(total) if isinstance(n, cst.BinaryOperation) and isinstance(n.operator, cst.Divide)]
    return any(dotted(n) in grown for right in over for n in walk(right) if isinstance(n, (cst.Name, cst.Attribute)))


def _equals(count: cst.BaseExpression, number: cst.Integer) -> bool:
    """Tell whether ``count`` is written as that ``number``: 50, ``50.0``."""
    return isinstance(count, (cst.Integer, cst.Float)) and count.evaluated_value == number.evaluated_value


def _queues(facts: ScriptFacts, total: cst.BaseExpression, number: cst.Integer) -> Iterator[cst.BaseExpression]:
    """Yield the greatest length of the queues in ``total``, where that is ``number``: of ``deque(maxlen=50)``."""
    for name in (n for n in walk(total) if isinstance(n, (cst.Name, cst.Attribute))):
        for made in (o.node for o in facts.flow.origins(name)):
            if isinstance(made, cst.Call) and facts.script.name_of(made.func) == "collections.deque":
                most = argument(made, "maxlen", 1)
                yield from [most] if most is not None and _equals(most, number) else []
