"""Part of step "steps": means over the steps between two saves, or two tests, of which n ranks take 1/n."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import libcst as cst

from dlrun.port.facts import ScriptFacts
from dlrun.port.facts.numbers.lists import Lists
from dlrun.port.program.script import added, argument, dotted, names_in, walk


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
    """Yield ``number`` where it divides what was collected, or says how much of it is taken."""
    lists = Lists(facts.flow)
    grown = {dotted(found[0]) for n in walk(loop) if (found := added(n)) is not None} - {""}
    for node in (n for place in places for n in walk(place)):
        match node:
            case cst.BinaryOperation(operator=cst.Divide(), left=total, right=count) if _equals(count, number):
                queues = list(_queues(facts, total, number))
                parts = [n for n in walk(total) if isinstance(n, (cst.Name, cst.Attribute))]
                summed = any(dotted(n) in grown or lists.filled(n) for n in parts) and not _is_mean(total, grown)
                if queues or summed:
                    yield from (count, *queues)
            case cst.AugAssign(operator=cst.DivideAssign(), target=total, value=count) if _equals(count, number):
                yield from [count] if dotted(total) in grown else []
            case cst.Subscript(value=box, slice=[cst.SubscriptElement(slice=cst.Slice(lower=lower, upper=None))]):
                back = lower.expression if isinstance(lower, cst.UnaryOperation) else None
                yield from [back] if back is not None and _equals(back, number) and lists.filled(box) else []


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
