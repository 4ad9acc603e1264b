"""Whether a function that trains can go through a part of each batch: its losses are means over the samples.

A Keras model's own ``train_step``, and the function that makes the model of an Estimator.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import libcst as cst

from dlrun.port.facts.models.kinds import Kinds
from dlrun.port.facts.updates.reductions import Reductions
from dlrun.port.program.script import calls_method, walk

_DEPTH = 4
_DIFFERENTIATES = ("gradient", "gradients", "minimize", "compute_gradients")  # their first argument


def is_train_step(function: cst.FunctionDef) -> bool:
    """Tell whether ``function`` is the method that ``fit()`` calls with each batch."""
    first = function.params.params[0].name.value if function.params.params else ""
    return function.name.value == "train_step" and first == "self"


def undivided(
    kinds: Kinds, step: cst.FunctionDef, given: Sequence[str] | None = None
) -> tuple[cst.CSTNode, str] | None:
    """Return what keeps ``step`` from going through a part of each batch, and why; None where nothing does.

    The losses that it differentiates are to be means over the samples of the batch, which it gets by the parameters
    ``given`` (the one beside ``self``), and its gradients are to be applied at once.
    """
    reached = list(_reached(kinds, step))
    losses = [loss for function in reached for loss in _losses(function)]
    names = given if given is not None else [p.name.value for p in step.params.params[1:]]
    if not losses or (given is None and len(names) != 1):
        return step, "whose loss may be anything: none is seen that is differentiated"

    def data(node: cst.CSTNode) -> str | None:
        named = isinstance(node, cst.Name) and node.value in names and kinds.script.inside(node, step)
        return node.value if named and isinstance(node, cst.Name) else None

    how = Reductions(kinds, losses, data, lambda node: True)
    if how.odd or how.weighted:
        return [*how.odd, *how.weighted][0], "whose loss is no mean over the samples"
    if how.sums:
        return how.sums[0], "whose loss is a sum over the samples"
    levels = [(loss, how.of(loss)) for loss in losses]
    unseen = next((loss for loss, level in levels if level.kind not in ("mean", "free")), None)
    if unseen is not None or not how.means:
        return unseen or losses[0], "whose loss may be anything"
    kept = (c for f in reached for c in walk(f.body) if isinstance(c, cst.Call) and _adds_up(kinds, c))
    return next(((c, "which adds gradients up over several batches") for c in kept), None)


def _reached(kinds: Kinds, step: cst.FunctionDef) -> Iterator[cst.FunctionDef]:
    """Yield ``step`` and what it calls, each once."""
    seen, todo = {step}, [(step, _DEPTH)]
    while todo:
        function, depth = todo.pop(0)
        yield function
        for call in (n for n in walk(function.body) if isinstance(n, cst.Call)):
            for target in kinds.flow.targets(call) if depth else ():
                if target not in seen:
                    seen.add(target)
                    todo.append((target, depth - 1))


def _losses(function: cst.FunctionDef) -> Iterator[cst.BaseExpression]:
    """Yield what ``function`` differentiates: with a tape, an optimizer of TensorFlow's, or PyTorch."""
    for call in (n for n in walk(function.body) if isinstance(n, cst.Call)):
        if calls_method(call, *_DIFFERENTIATES) and call.args:
            value = call.args[0].value
            yield value.body if isinstance(value, cst.Lambda) else value
        elif calls_method(call, "backward") and not call.args:
            yield call.func.value


def _adds_up(kinds: Kinds, call: cst.Call) -> bool:
    """Tell whether ``call`` adds a gradient to a variable that holds those of earlier batches."""
    if not calls_method(call, "assign_add") or not call.args:
        return False
    made = [o.node for o in kinds.flow.origins(call.args[0].value, ("each",))]
    made += [o.node for o in kinds.flow.origins(call.args[0].value)]
    return any(isinstance(n, cst.Call) and calls_method(n, "gradient") for n in made)
