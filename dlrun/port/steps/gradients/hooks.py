"""Part of step "gradients": hooks that change the gradients of weights before these are averaged."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from dlrun.port.edits import Doubt
from dlrun.port.facts import Facts
from dlrun.port.facts.updates.weights import is_weight
from dlrun.port.program.script import names_in, walk

_HOOKS = ("register_hook", "register_post_accumulate_grad_hook")
_FACTORS = (cst.Multiply, cst.Divide)


def doubts(facts: Facts) -> Iterator[Doubt]:
    """Yield the hooks of weights that bend a gradient: ``p.register_hook(lambda g: g.clamp(-1, 1))``.

    Each rank bends that of its own samples, and the mean of these is applied. A factor leaves the mean what it is.
    """
    for call in facts.script.calls:
        match call:
            case cst.Call(func=cst.Attribute(value=owner, attr=cst.Name(how)), args=[cst.Arg(value=hook), *_]) if (
                how in _HOOKS and is_weight(facts, owner)
            ):
                if any(_bends(result, name) for result, name in _results(facts, hook)):
                    yield Doubt(
                        call,
                        f"{facts.script.code(hook)}: each rank changes the gradient of its own samples, "
                        "and the mean of these is applied",
                        "high",
                        f"change p.grad behind {facts.alias}.gradients(...), before the step",
                        name="changed-early",
                    )


def _results(facts: Facts, hook: cst.BaseExpression) -> Iterator[tuple[cst.BaseExpression, str]]:
    """Yield what a hook returns, each with the name of the gradient that it is given."""
    made = hook if isinstance(hook, cst.Lambda) else facts.flow.definition(hook)
    if not isinstance(made, (cst.Lambda, cst.FunctionDef)) or not made.params.params:
        return
    name = made.params.params[-1].name.value
    if isinstance(made, cst.Lambda):
        yield made.body, name
    else:
        yield from ((n.value, name) for n in walk(made.body) if isinstance(n, cst.Return) and n.value is not None)


def _bends(result: cst.BaseExpression, name: str) -> bool:
    """Tell whether ``result`` is another function of the gradient ``name`` than a multiple of it."""
    match result:
        case cst.Name() | cst.Call(func=cst.Name("print") | cst.Attribute(attr=cst.Name("append"))):
            return False
        case cst.UnaryOperation(expression=inner):
            return _bends(inner, name)
        case cst.BinaryOperation(left=left, operator=operator, right=right) if isinstance(operator, _FACTORS):
            sides = [side for side in (left, right) if name in names_in(side)]
            return len(sides) > 1 or any(_bends(side, name) for side in sides)
    return name in names_in(result)
