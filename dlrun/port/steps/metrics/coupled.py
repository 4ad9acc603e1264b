"""Part of step "metrics": losses that compare the samples of a batch with each other."""

from __future__ import annotations

import re
from collections.abc import Iterator

import libcst as cst

from dlrun.port.edits import Doubt
from dlrun.port.facts import Facts, ScriptFacts
from dlrun.port.facts.models.kinds_tensorflow import plain
from dlrun.port.facts.taint import without_gradients
from dlrun.port.program.script import argument, dotted
from dlrun.port.steps.metrics.weighted import of_batches

# Losses that rank samples, or tell them apart: of survival times, and contrastive ones, these by a library's name.
_COMPARES = re.compile(
    r"cox\w*(loss|nll|likelihood)|loss\w*cox|partial_?(log_?)?likelihood|nt_?xent|info_?nce|sup_?con\w*loss|"
    r"n_?pairs_?\w*loss|triplet_?(semi_?)?hard_?loss|"
    r"\.(\w*contrastive|barlow_?twins|vic_?reg)\w*$|logcumsumexp$|pdist$",
    re.IGNORECASE,
)
# Losses whose targets are classes; of TensorFlow's the targets come first.
_OF_CLASSES = re.compile(r"(\.cross_entropy|\.nll_loss|NLLLoss|crossentropy|cross_entropy_with_logits)$")
_NUMBERS = ("torch.arange", "tensorflow.range", "tensorflow.eye")  # of the samples; one row of each

_DATA = ("DataLoader", "TensorDataset", "from_tensor_slices", "from_tensors")


def both(facts: ScriptFacts) -> Iterator[Doubt]:
    """Yield a doubt about the first such loss: on n ranks each sees its own batch, or part, alone."""
    for call in facts.script.calls:
        if not without_gradients(facts.script, call) and (place := _compares(facts, call)) is not None:
            whole = facts.options.batch == "global" or getattr(facts, "full_batch", False)
            mine = "part of the batch" if whole else "own batch"
            yield Doubt(
                place,
                f"this loss compares the samples of a batch with each other: on n ranks each sees only its {mine}",
                "high" if whole else "medium",
                "keep each rank's batch as large as the loss needs",
                name="coupled-samples",
            )
            return


def torch(facts: Facts) -> Iterator[Doubt]:
    """Yield the doubts about losses that compare samples by what they compute, where ranks have parts of a batch."""
    found = list(both(facts))
    yield from found
    if found or facts.options.batch != "global" or facts.full_batch:
        return
    reduced = of_batches(facts)
    write = "port with --batch local, or compute it of what all ranks gathered"
    for node in reduced.coupled[:1]:
        why = "this compares the samples of a batch with each other: on n ranks each sees only its part of the batch"
        yield Doubt(node, why, "high", write, name="coupled-samples")
    for node in reduced.spread[:1] if not reduced.coupled else ():
        why = "a loss made of how the samples of a batch are spread: each rank measures its part of the batch"
        yield Doubt(node, why, "medium", write, name="coupled-samples")


def _compares(facts: ScriptFacts, call: cst.Call) -> cst.BaseExpression | None:
    """Return the loss that ``call`` computes, if its targets are the numbers of the samples or its name tells it.

    Or the one that it is handed: ``model.compile("adam", loss=nt_xent)``.
    """
    name = facts.script.name_of(call.func)
    if _COMPARES.search(name or dotted(call.func).rpartition(".")[2]):
        return call
    given = argument(call, "loss")
    if given is not None and _COMPARES.search(facts.script.name_of(given) or dotted(given)):
        return given
    if not _OF_CLASSES.search(name) and "loss" not in (facts.kinds.of(call.func), facts.kinds.of_call(call)):
        return None
    targets = [argument(call, word) for word in ("target", "labels", "y_true")]
    at = call.args[:1] if name.startswith(("tensorflow", "keras")) or facts.framework != "torch" else call.args[1:2]
    targets += [arg.value for arg in at if arg.keyword is None]
    return call if any(target is not None and _numbers(facts, target) for target in targets) else None


def _numbers(facts: ScriptFacts, target: cst.BaseExpression, depth: int = 3) -> bool:
    """Tell whether ``target`` is the number of each sample in its batch, or is put together of such numbers."""
    for node in (origin.node for origin in facts.flow.origins(target)):
        if not isinstance(node, cst.Call):
            continue
        name = plain(facts.script.name_of(node.func))
        if name in _NUMBERS:
            return True
        if name.rpartition(".")[2] in _DATA:
            continue  # the samples themselves may be numbers
        of = [node.func.value] if isinstance(node.func, cst.Attribute) else []
        for part in [*of, *(arg.value for arg in node.args[:1])] if depth else ():  # one_hot(range(n), n)
            parts = [e.value for e in part.elements] if isinstance(part, (cst.List, cst.Tuple)) else [part]
            if any(_numbers(facts, p, depth - 1) for p in parts):
                return True
    return False
