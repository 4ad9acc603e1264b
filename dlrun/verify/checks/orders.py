"""Do the ranks shard one order, where the script draws it and no loader does, and another one in each epoch?"""

from __future__ import annotations

from collections.abc import Sequence

from dlrun.verify.trace import Epoch, Event, Run, Step
from dlrun.verify.verdict import Check, failed

MOST = 0.9  # of an order's length: a range to that end goes through it, whole batches of it


def other_order(run: Run, name: str) -> Check | None:
    """Return a check that failed because positions are sharded in an order that each rank has drawn for itself."""
    for together in zip(*(trace.steps for trace in run.traces), strict=False):
        orders = [_sharded_order(step) for step in together]
        for rank, order in enumerate(orders):
            if order and orders[0] and order["hash"] != orders[0]["hash"]:
                finding = f"the positions in an order are sharded, and rank {rank} draws another order than rank 0: "
                finding += "samples are read by several ranks, and others by none"
                todo = "let all ranks go through one order: order = dl.broadcast(order)"
                return failed(name, finding, todo, "overlapping-shards", where=order.at, rank=rank)
    return None


def one_order(expected: Sequence[Epoch], found: Sequence[Epoch], name: str) -> Check | None:
    """Return a check that failed because each epoch has the same order, other than in the serial script.

    ``expected``, ``found``: training epochs of 1 rank and of rank 0. As those of a DistributedSampler.
    """
    before, now = ([epoch for epoch in each if epoch.complete][:2] for each in (expected, found))
    again = len(before) == len(now) == 2 and now[0].loader == now[1].loader and now[0].samples == now[1].samples
    if not again or not now[0].samples or before[0].samples == before[1].samples:
        return None
    finding = "each epoch reads the samples in the same order, and the serial script in another one each time"
    todo = "call sampler.set_epoch(epoch) where an epoch begins; or give the loader to dl.shard(), without a sampler"
    return failed(name, finding, todo, "same-order", where=now[1].at)


def _sharded_order(step: Step) -> Event | None:
    """Return the order drawn since the step before whose positions were sharded as they are; None of none."""
    order = None
    for event in step.before:
        if event.kind == "order":
            order = event
        elif event.kind == "return" and event["fn"] == "broadcast":
            order = None
        elif order and any(MOST * order["size"] <= x <= order["size"] for x in event.facts.get("through", ())):
            return order
    return None
