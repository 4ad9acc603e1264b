"""Part of step "metrics": what no edit can settle, said with the line to write."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from dlrun.port.edits import Doubt
from dlrun.port.facts import Facts
from dlrun.port.facts.taint import without_gradients
from dlrun.port.feeds.positions import nested
from dlrun.port.feeds.positions.beside import keeps_order
from dlrun.port.placement.values import SAME
from dlrun.port.program.script import argument, calls_method, dotted
from dlrun.port.steps.counts.counters import feeds_of
from dlrun.port.steps.metrics import coupled, environments, weighted
from dlrun.port.steps.shard import rows


def torch(facts: Facts) -> Iterator[Doubt]:
    """Yield the doubts about a whole PyTorch script; each kind once."""
    yield from environments.torch(facts)
    yield from _uneven_batches(facts)
    yield from _sums(facts)
    yield from coupled.torch(facts)
    yield from weighted.torch(facts)
    yield from list(_in_pairs(facts))[:1]
    if facts.options.batch == "global":
        yield from _batch_sizes(facts)


def _in_pairs(facts: Facts) -> Iterator[Doubt]:
    """Yield the doubts about loops that take from several loaders in their order, batches of different sizes."""
    drawn = [loop for loop, _ in facts.counted]
    for loop in facts.loops:
        feeds = list(facts.feeds) if loop in drawn else feeds_of(facts, loop) if isinstance(loop, cst.For) else []
        made = [o.node for feed in feeds for o in facts.flow.origins(feed.node)]
        loaders = [n for n in made if isinstance(n, cst.Call) and facts.kinds.of_call(n) == "loader"]
        sizes = {
            facts.script.code(size) if (size := argument(c, "batch_size", 1)) is not None else "1": c
            for c in loaders
            if keeps_order(c)
        }
        if len(sizes) > 1:
            yield Doubt(
                list(sizes.values())[1],
                f"loaders that keep their order give batches of {' and '.join(sizes)} "
                "to one step: a rank's shares hold other samples of the one than of the other, and what "
                "belongs together comes apart",
                "high",
                "one loader, of pairs",
                name="order-differs",
            )


def _uneven_batches(facts: Facts) -> Iterator[Doubt]:
    """Yield a doubt where a batch has as many updates as it has parts: slices of a volume, chunks of a text."""
    for loop in facts.loops:
        if nested.uneven(facts.kinds, loop):
            yield Doubt(
                loop,
                "a rank whose batch has fewer parts makes fewer updates, and leaves the others waiting for ever",
                "high",
                "give all batches as many parts, or update once for a batch",
                name="may-hang",
            )
            return


def _sums(facts: Facts) -> Iterator[Doubt]:
    """Yield a doubt where a loss may be a sum over a global batch: the mean over ranks is 1/n of it."""
    if facts.full_batch or facts.options.batch == "local" or weighted.of_batches(facts).gathered:
        return
    for node in facts.script.nodes:
        sums = (
            isinstance(node, cst.Arg)
            and node.keyword is not None
            and (
                (node.keyword.value == "reduction" and "sum" in facts.script.code(node.value))
                or (node.keyword.value == "size_average" and facts.script.code(node.value) == "False")
            )
        )
        if sums and not without_gradients(facts.script, node):
            yield Doubt(
                node,
                "this loss is a sum: the ranks' mean is 1/n of the serial gradient (Adam does not mind)",
                "high",
                f"{facts.alias}.partial_sum(loss)",
                name="loss-scale",
            )
            return
    for step in facts.steps:
        for call in _summed(facts, step.node):
            yield Doubt(
                call,
                "if this loss is a sum over the batch, the ranks' mean is 1/n of the serial gradient",
                "high",
                f"{facts.alias}.partial_sum(loss)",
                name="loss-scale",
            )
            return


def _summed(facts: Facts, node: cst.CSTNode) -> Iterator[cst.Call]:
    """Yield the sums over whole tensors in the loops around ``node`` that lead to a loss."""
    function = facts.script.function_of(node)
    for call in facts.script.calls:
        summed = calls_method(call, "sum")
        if summed and not call.args and facts.script.function_of(call) is function:
            user = facts.script.parents[call]
            if isinstance(user, (cst.Assign, cst.BinaryOperation)) or (
                isinstance(user, cst.Attribute) and user.attr.value == "backward"
            ):
                yield call


def _batch_sizes(facts: Facts) -> Iterator[Doubt]:
    """Yield a doubt where a training loop uses the batch size itself: each rank's batches are 1/n of it."""
    local = set(rows.local_sizes(facts))
    for feed in facts.feeds:
        size = rows.of_batches(facts, feed.node)
        if not isinstance(size, (cst.Name, cst.Attribute)):
            continue
        for node in facts.script.nodes:
            if not isinstance(node, type(size)) or dotted(node) != dotted(size) or node in local:
                continue
            loops = [loop for loop in facts.loops if facts.script.inside(node, loop.body)]
            own = any(facts.script.inside(b.node, loop.body) for b in facts.script.bindings_of(node) for loop in loops)
            if loops and not own and not facts.script.inside(node, feed.node) and not _counts_samples(facts, node):
                if _is_shown(facts, node):
                    continue
                yield Doubt(
                    node,
                    f"{dotted(size)} is the global batch; a rank's batch is 1/n of it",
                    "medium",
                    "take the size from the batch itself: x.size(0)",
                    name="global-size",
                )
                return


def _counts_samples(facts: Facts, size: cst.CSTNode) -> bool:
    """Tell whether a batch size counts or weighs the samples of an iteration: ``total += loss * batch_size``.

    An iteration of all ranks has as many as a serial one.
    """
    up = facts.script.parents[size]
    while isinstance(up, cst.BinaryOperation) and isinstance(up.operator, cst.Multiply):
        up = facts.script.parents[up]
    return isinstance(up, cst.AugAssign) and isinstance(up.operator, cst.AddAssign)


def _is_shown(facts: Facts, size: cst.CSTNode) -> bool:
    """Tell whether a batch size is shown beside numbers that are serial: ``print((i + 1) * batch_size)``."""
    from dlrun.port.placement.torch import interpreted

    run = interpreted(facts)
    up = facts.script.parents[size]
    serial = isinstance(up, cst.BinaryOperation) and all(v.place == SAME for v in run.seen.get(up, ()))
    return serial and any(
        facts.script.inside(size, shown) for sinks in run.sinks.values() for sink in sinks for shown in sink.shows
    )
