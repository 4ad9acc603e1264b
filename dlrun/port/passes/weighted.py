"""Part of step "metrics": losses that are means over what counts, such as words or classes by weight, not samples."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from dlrun.port.edits import Doubt
from dlrun.port.facts import Facts
from dlrun.port.facts.reductions import Reductions
from dlrun.port.facts.taint import without_gradients
from dlrun.port.program.script import argument, calls_method, dotted, walk

_BOUNDS = ("clamp", "clamp_min", "clip", "max", "maximum", "int", "float")
# Where the weights of classes are among the arguments: of the function, and of what is made to be called.
_WEIGHTS = {"cross_entropy": 2, "nll_loss": 2, "CrossEntropyLoss": 0, "NLLLoss": 0}


def torch(facts: Facts) -> Iterator[Doubt]:
    """Yield a doubt where a rank whose batch has less of what counts weighs as much as the others."""
    for node in _uneven(facts):
        yield Doubt(node, "a mean over what counts, not over samples: a rank whose batch has less of it weighs as much",
                    "medium" if facts.options.batch == "global" else "low",
                    f"sum the loss, and divide by {facts.alias}.average() of what counts in a batch")  # fmt: skip
        return


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
    losses = [call.func.value for call in facts.script.calls
              if isinstance(call.func, cst.Attribute) and calls_method(call, "backward")
              and not without_gradients(facts.script, call)]  # fmt: skip
    yield from (
        n
        for n in Reductions(facts.kinds, losses, lambda n: _of_batch(facts, n), lambda n: True).odd
        if (isinstance(n, cst.BinaryOperation) and isinstance(n.operator, cst.Divide)) or _bounds_sum(n)
    )


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
    for bound in facts.script.bindings_of(node) if isinstance(node, cst.Name) else ():
        counted = isinstance(bound.value, cst.Call) and facts.script.name_of(bound.value.func) == "builtins.enumerate"
        if bound.node in facts.loops and not (counted and bound.path[1:2] == (0,)):
            return bound.name
    return None
