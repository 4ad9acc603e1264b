"""Part of step "metrics": samples per second, which rank 0 computes from its own batches."""

from __future__ import annotations

import re
from collections.abc import Iterator

import libcst as cst

from dlrun.port.edits import Edit
from dlrun.port.facts.taint import Taint
from dlrun.port.passes import counts
from dlrun.port.passes.metrics import Metrics
from dlrun.port.program.script import dotted, walk

_CLOCKS = ("time.", "datetime.", "timeit.default_timer")
_BATCH_SIZE = re.compile(r"^(?!.*(global|total|effective)).*batch_?size$", re.I)
_DEPTH = 3
_RANKS = re.compile(r"(get_nranks|world_?size|num_replicas|hvd\.size|num_processes)\b")


def torch(metrics: Metrics) -> Iterator[Edit]:
    """Yield n times the rate at which a rank goes through its samples: all ranks take their steps together.

    Before:
        for x, y in loader:
            opt.step()
            print(len(x) / (time.time() - start), "samples/s")

    After:
        for x, y in loader:
            opt.step()
            print(dl.get_nranks() * len(x) / (time.time() - start), "samples/s")
    """
    facts, script = metrics.facts, metrics.script
    if facts.full_batch or facts.options.origin or _RANKS.search(script.module.code):
        return
    found = [
        node for node in script.nodes
        if isinstance(node, cst.BinaryOperation) and isinstance(node.operator, cst.Divide)
        and _factor(node.left) and _while_training(metrics, node) and _counts_own(metrics, node.left)
    ]  # fmt: skip
    if not found:
        return
    clocks = [call for call in script.calls if script.name_of(call.func).startswith(_CLOCKS)]
    spans = Taint(script, facts.kinds, clocks)
    for node in found:
        if spans(node.right) and not spans(node.left):
            yield Edit(node.left, "the samples of all ranks in this time, not rank 0's own", metrics.of_all_ranks)


def _factor(node: cst.BaseExpression) -> bool:
    """Tell whether n times ``node`` can be written without parentheses around it."""
    return not isinstance(node, cst.BinaryOperation) or isinstance(node.operator, cst.Multiply) or bool(node.lpar)


def _while_training(metrics: Metrics, node: cst.CSTNode) -> bool:
    """Tell whether training alone reaches ``node``: all loops around it train or hold one that does, or it is a hook's.

    A hook is what a session of TensorFlow 1 calls in each step.
    """
    function, owner = metrics.script.function_of(node), metrics.script.class_of(node)
    loops = [up for up in metrics.script.above(node) if isinstance(up, (cst.For, cst.While))]
    training = [loop for loop in metrics.facts.loops if metrics.script.function_of(loop) is function]
    if owner is not None and any(dotted(base.value).endswith("SessionRunHook") for base in owner.bases):
        return True
    return bool(training) and all(any(t is up or metrics.script.inside(t, up) for t in training) for up in loops)


def _counts_own(metrics: Metrics, count: cst.BaseExpression, depth: int = 0) -> bool:
    """Tell whether ``count`` is of this rank's samples, as its batch size or the length of its batch are."""
    if depth > _DEPTH or metrics.trained(count) or counts.all_samples(metrics.facts, count):
        return False
    if isinstance(count, cst.BinaryOperation) and isinstance(count.operator, cst.Subtract):
        return _counts_own(metrics, count.left, depth)  # seen - seen_before
    names = [n for n in walk(count) if isinstance(n, cst.Name)]
    fresh = [n.value for n in names if _is_made_in_turn(metrics, n)]
    return (
        any(metrics.sums.is_size(n, batch) for n in walk(count) for batch in fresh)
        or any(_is_batch_size(metrics, n) for n in walk(count))
        or any(_is_made_of_own(metrics, n, depth + 1) for n in names)
    )


def _is_batch_size(metrics: Metrics, node: cst.CSTNode) -> bool:
    name = dotted(node).rpartition(".")[2]
    return metrics.facts.options.batch == "local" and _BATCH_SIZE.match(name) is not None


def _is_made_of_own(metrics: Metrics, name: cst.Name, depth: int) -> bool:
    """Tell whether ``name`` is computed from counts of this rank's samples, or adds up sizes of what the loop takes."""
    for binding in metrics.script.bindings_of(name):
        match binding.node:
            case cst.AugAssign(operator=cst.AddAssign(), value=value) if _trains(metrics, binding.node):
                if not metrics.trained(value) and any(_is_made_in_turn(metrics, n) for n in walk(value)):
                    return True
                if _counts_own(metrics, value, depth):
                    return True
            case cst.Assign(value=cst.BinaryOperation() as value) if _counts_own(metrics, value, depth):
                return True
    return False


def _is_made_in_turn(metrics: Metrics, node: cst.CSTNode) -> bool:
    """Tell whether ``node`` is a name that a training loop gives another value in each turn."""
    bound = metrics.script.bindings_of(node) if isinstance(node, cst.Name) else ()
    return any(_trains(metrics, b.node) for b in bound)


def _trains(metrics: Metrics, node: cst.CSTNode) -> bool:
    """Tell whether the innermost loop at ``node`` trains."""
    loop = next((up for up in (node, *metrics.script.above(node)) if isinstance(up, (cst.For, cst.While))), None)
    return loop in metrics.facts.loops
