"""Part of step "shard": what becomes of batches of which each rank takes a part, and of the losses over them."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import libcst as cst

from dlrun.port.edits import Doubt, Edit
from dlrun.port.facts.tensorflow import TensorFlowFacts
from dlrun.port.insert import expression
from dlrun.port.placement.stays_whole_tensorflow import of_pipeline
from dlrun.port.steps.shard import full, rows
from dlrun.port.steps.shard.shard import cut_batches


def tape(facts: TensorFlowFacts) -> Iterator[Edit | Doubt]:
    """Let each rank take a part of every batch; a loss that is a sum stands for that over all of it.

    Before:
        for x, y in data:
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum((model(x) - y) ** 2)
            opt.apply_gradients(zip(tape.gradient(loss, model.variables), model.variables))

    After:
        for x, y in dl.shard(data, batch="global", equal=False):
            with tf.GradientTape() as tape:
                loss = dl.partial_sum(tf.reduce_sum((model(x) - y) ** 2))
            opt.apply_gradients(zip(tape.gradient(loss, model.variables), model.variables))
    """
    judged = False
    for feed in facts.feeds:
        how = feed.gathered
        assert how is not None and isinstance(feed.node, cst.BaseExpression)
        summed = bool(how.sums)
        if feed.how == "cut":
            yield from cut_batches(facts, feed, summed)
        else:
            wrap = partial(_wrapped, facts.alias, summed)
            yield Edit(feed.node, "each rank takes 1/n of every batch", wrap)
        if (why := of_pipeline(facts, feed.node)) and "order" in why:
            yield Doubt(
                feed.node,
                f"{why}: the ranks' parts are to be of one batch",
                "high",
                "shuffle(..., seed=0) where the data set is made",
                name="order-differs",
            )
        if not judged:
            judged = True
            yield from full.judged(facts, feed, how)
    yield from rows.parts(facts)


def _wrapped(dl: str, summed: bool, data: cst.BaseExpression) -> cst.BaseExpression:
    return expression("tensorflow/parts", {"data": data}, dl=dl, summed=summed)
