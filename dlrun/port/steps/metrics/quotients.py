"""Part of step "metrics": losses of TensorFlow and Keras that are means over what counts in a batch, such as words."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from dlrun.port.edits import Doubt
from dlrun.port.facts import ScriptFacts
from dlrun.port.facts.numbers.computed import computed
from dlrun.port.program.flow import Flow
from dlrun.port.program.script import argument, calls_method, dotted
from dlrun.port.steps.metrics.weighted import over_what_counts

_SUMS = ("reduce_sum", "K.sum", "backend.sum", "ops.sum")
_DIVIDES = (".divide", ".divide_no_nan", ".truediv", ".div_no_nan")
_BOUNDS = ("clip", "max", "maximum", "int", "float")


def tensorflow(facts: ScriptFacts) -> Iterator[Doubt]:
    """Yield a doubt about the first such loss: a rank whose batch has less of what counts weighs as much as others."""
    if getattr(facts, "full_batch", False):
        return
    losses: list[cst.BaseExpression] = []
    for call in facts.script.calls:
        if calls_method(call, "gradient", "minimize", "compute_gradients") and call.args:
            losses.append(call.args[0].value)
        elif calls_method(call, "compile") and (given := argument(call, "loss", 1)) is not None:
            made = [f for f in facts.flow.definitions(given) if isinstance(f, cst.FunctionDef)]
            losses += [value for function in made for value in facts.flow.returns(function)]
    odd = [n for n in computed(facts.flow, losses).nodes if _divides_sums(facts.flow, n)]
    yield from (over_what_counts(facts, node, "low") for node in odd[:1])


def _divides_sums(flow: Flow, node: cst.CSTNode) -> bool:
    """Tell whether ``node`` divides a sum over a batch by another: ``reduce_sum(x * mask) / reduce_sum(mask)``."""
    match node:
        case cst.BinaryOperation(operator=cst.Divide(), left=over, right=under):
            pass
        case cst.Call(args=[cst.Arg(value=over), cst.Arg(value=under)]) if dotted(node.func).endswith(_DIVIDES):
            pass
        case _:
            return False
    if isinstance(under, cst.BinaryOperation) and isinstance(under.operator, cst.Add):  # + epsilon
        return _is_sum(flow, over) and (_is_sum(flow, under.left) or _is_sum(flow, under.right))
    kept = isinstance(under, cst.Call) and dotted(under.func).rpartition(".")[2] in _BOUNDS
    parts = [a.value for a in under.args] if kept and isinstance(under, cst.Call) else [under]
    return _is_sum(flow, over) and any(_is_sum(flow, part) for part in parts)


def _is_sum(flow: Flow, node: cst.CSTNode) -> bool:
    """Tell whether ``node`` is the sum of all that is in a tensor, be it by a name."""
    if isinstance(node, cst.UnaryOperation):
        return _is_sum(flow, node.expression)
    return any(
        isinstance(n, cst.Call) and dotted(n.func).endswith(_SUMS) and len(n.args) == 1 for n in flow.through(node)
    )
