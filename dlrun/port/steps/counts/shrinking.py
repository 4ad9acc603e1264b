"""Part of step "steps": weights that the script itself makes smaller at every step, as a decay of its own does."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from dlrun.port.edits import Edit
from dlrun.port.facts import Facts
from dlrun.port.facts.models.moving import taken_from_one
from dlrun.port.facts.models.weights import of_gradients, of_weights
from dlrun.port.facts.numbers.computed import computed
from dlrun.port.steps.counts.changing_rates import compound

_SHRINKS = "it makes the weights smaller at every step, and n ranks take 1/n of the steps"


def torch(facts: Facts) -> Iterator[tuple[cst.CSTNode, Edit]]:
    """Yield what multiplies the weights, ``p.data.mul_(1 - decay)``, with its Edit: it does so for n serial steps.

    Not with an optimizer's own rate, which is scaled: ``p.data.mul_(1 - group["lr"] * decay)``.
    """
    for node in facts.script.nodes:
        match node:
            case cst.Expr(value=cst.Call(func=cst.Attribute(attr=cst.Name("mul_")), args=[cst.Arg(value=factor)])):
                pass
            case cst.AugAssign(operator=cst.MultiplyAssign(), value=factor):
                pass
            case _:
                continue
        lost = taken_from_one(facts, factor)
        if lost is None or facts.unequal(lost) or not of_weights(facts, node) or of_gradients(facts, node):
            continue
        if not _follows_rate(facts, lost):
            yield node, compound(facts, factor, _SHRINKS)


def _follows_rate(facts: Facts, lost: cst.BaseExpression) -> bool:
    """Tell whether ``lost`` is computed from the rate of an optimizer's group, which is scaled."""
    return any(
        (isinstance(n, cst.SimpleString) and n.evaluated_value == "lr")
        or (isinstance(n, cst.Attribute) and n.attr.value in ("get_last_lr", "get_lr"))
        for n in computed(facts.flow, [lost]).nodes
    )
