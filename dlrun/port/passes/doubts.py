"""Part of step "metrics": what no edit can settle, said with the line to write."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from dlrun.port.edits import Doubt
from dlrun.port.facts import Facts
from dlrun.port.script import walk


def torch(facts: Facts) -> Iterator[Doubt]:
    """Yield the doubts about a whole PyTorch script; each kind once."""
    yield from _statistics(facts)
    yield from _environments(facts)
    yield from _sums(facts)
    yield from _hand_made(facts)


def _statistics(facts: Facts) -> Iterator[Doubt]:
    for call in facts.script.calls:
        if "BatchNorm" in facts.script.name_of(call.func):
            model = next((t for top in facts.tops for t in top.things if t not in top.optimizers), "model")
            yield Doubt(call, "each rank's BatchNorm keeps statistics of its own samples; saved are rank 0's", "low",
                        f"{facts.alias}.average({model}) before evaluating or saving")  # fmt: skip
            return


def _environments(facts: Facts) -> Iterator[Doubt]:
    for call in facts.script.calls:
        if facts.script.name_of(call.func) in ("gym.make", "gymnasium.make", "gymnasium.vector.SyncVectorEnv"):
            yield Doubt(call, "every rank plays episodes of its own; with one seed they begin alike", "medium",
                        f"env.reset(seed=seed + {facts.alias}.get_rank())")  # fmt: skip
            return


def _sums(facts: Facts) -> Iterator[Doubt]:
    """Yield a doubt where a loss is a sum over a full batch: the mean over ranks is 1/n of it."""
    if not facts.full_batch:
        return
    for node in facts.script.nodes:
        sums = isinstance(node, cst.Arg) and node.keyword is not None and (
            (node.keyword.value == "reduction" and "sum" in facts.script.code(node.value))
            or (node.keyword.value == "size_average" and facts.script.code(node.value) == "False")
        )  # fmt: skip
        if sums:
            yield Doubt(node, "this loss is a sum: the ranks' mean is 1/n of the serial gradient (Adam does not mind)",
                        "high", f"multiply the loss by {facts.alias}.get_nranks()")  # fmt: skip
            return


def _hand_made(facts: Facts) -> Iterator[Doubt]:
    if facts.full_batch or facts.options.lr_scaling == "none":
        return
    for step in facts.steps:
        if step.optimizer is None and any(isinstance(n, cst.Attribute) for n in walk(step.node)):
            yield Doubt(step.node, "the rate of this update by hand is not scaled", "medium",
                        f"{facts.alias}.lr_scale(rate) in place of the rate")  # fmt: skip
            return
