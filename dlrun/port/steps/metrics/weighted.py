"""Part of step "metrics": losses that are no means over samples, but over words or classes, or made of such means."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from dlrun.port.edits import Danger, Doubt
from dlrun.port.facts import Facts, ScriptFacts
from dlrun.port.facts.taint import without_gradients
from dlrun.port.facts.updates.reductions import Reductions
from dlrun.port.program.script import argument, calls_method, dotted, walk

_BOUNDS = ("clamp", "clamp_min", "clip", "max", "maximum", "int", "float")
_BENDS = ("sqrt", "square", "pow", "log", "log1p", "exp", "abs", "relu", "softplus")
# Where the weights of classes are among the arguments: of the function, and of what is made to be called.
_WEIGHTS = {"cross_entropy": 2, "nll_loss": 2, "CrossEntropyLoss": 0, "NLLLoss": 0}


def torch(facts: Facts) -> Iterator[Doubt]:
    """Yield a doubt where a rank whose batch has less of what counts weighs as much as the others."""
    reduced = of_batches(facts)
    odd = reduced.odd
    whole = facts.options.batch == "global"
    for node in [*_uneven(facts), *(n for n in odd if _is_ratio(n) or _bounds_sum(n))][:1]:
        yield over_what_counts(facts, node, "medium" if whole else "low")
    for node in [n for n in odd if _is_bent(reduced, n)][:1]:
        mine = "its part of the batch" if whole else "its own batch"
        why = f"a loss of means over the batch that is no mean itself: each rank's is made of {mine}"
        write = "port with --batch local" if whole else "keep each rank's batch as large as the loss needs"
        yield Doubt(node, why, "high" if whole else "low", write)


def of_batches(facts: Facts) -> Reductions:
    """Return what the losses of the training loops do to the samples of a batch."""
    return Reductions(facts.kinds, losses(facts), lambda n: _of_batch(facts, n), lambda n: True)


def losses(facts: Facts) -> list[cst.BaseExpression]:
    """Return what ``backward`` is called of."""
    return [
        call.func.value
        for call in facts.script.calls
        if isinstance(call.func, cst.Attribute)
        and calls_method(call, "backward")
        and not without_gradients(facts.script, call)
    ]


def over_what_counts(facts: ScriptFacts, node: cst.CSTNode, danger: Danger) -> Doubt:
    """Return the doubt about ``node``, at which a loss divides by what counts in a local batch."""
    why = "a mean over what counts, not over samples: a rank whose batch has less of it weighs as much"
    return Doubt(node, why, danger, f"sum the loss, and divide by {facts.alias}.average() of what counts in a batch")


def _uneven(facts: Facts) -> Iterator[cst.CSTNode]:
    for call in facts.script.calls:
        name = facts.script.name_of(call.func)
        last = name.rpartition(".")[2] if name.startswith("torch.") else ""
        if last not in _WEIGHTS and "loss" not in (facts.kinds.of(call.func), facts.kinds.of_call(call)):
            continue
        means = (how := argument(call, "reduction")) is None or "mean" in facts.script.code(how)
        given = argument(call, "ignore_index")
        if given is None and last in _WEIGHTS and not facts.full_batch:
            given = argument(call, "weight", _WEIGHTS[last])
        if given is not None and means and dotted(given) != "None" and not _is_parameter(facts, given):
            yield given


def _is_ratio(node: cst.CSTNode) -> bool:
    return isinstance(node, cst.BinaryOperation) and isinstance(node.operator, cst.Divide)


def _is_bent(reduced: Reductions, node: cst.CSTNode) -> bool:
    """Tell whether ``node`` makes of means over a batch what is no mean: ``(p.mean() - 0.5) ** 2``, ``sqrt(mse)``."""
    if isinstance(node, cst.BinaryOperation):
        means = reduced.of(node.left).kind == reduced.of(node.right).kind == "mean"
        return isinstance(node.operator, cst.Power) or (isinstance(node.operator, cst.Multiply) and means)
    func = node.func if isinstance(node, cst.Call) else None
    name = func.attr.value if isinstance(func, cst.Attribute) else dotted(func) if func is not None else ""
    return name in _BENDS


def _bounds_sum(node: cst.CSTNode) -> bool:
    """Tell whether ``node`` keeps a sum, by which something is divided, above 0: ``mask.sum().clamp(min=1)``."""
    func = node.func if isinstance(node, cst.Call) else None
    named = func.attr.value if isinstance(func, cst.Attribute) else dotted(func) if func is not None else ""
    return named in _BOUNDS and any(calls_method(n, "sum") for n in walk(node))


def _is_parameter(facts: Facts, node: cst.CSTNode) -> bool:
    """Tell whether ``node`` is what a function is given, which may be None."""
    return any(bound.how == "param" for bound in facts.script.bindings_of(node))


def _of_batch(facts: Facts, node: cst.CSTNode) -> str | None:
    """Return the name of what a training loop takes of each batch, None of anything else."""
    if any(node in feed.picks for feed in facts.feeds if feed.how in ("cut", "drawn")):
        return facts.script.code(node)
    for bound in facts.script.bindings_of(node) if isinstance(node, cst.Name) else ():
        counted = isinstance(bound.value, cst.Call) and facts.script.name_of(bound.value.func) == "builtins.enumerate"
        if bound.node in facts.loops and not (counted and bound.path[1:2] == (0,)):
            return bound.name
    return None
