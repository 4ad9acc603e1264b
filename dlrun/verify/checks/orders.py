"""Do the ranks deal out the positions of one order, where the script draws it and no loader does?"""

from __future__ import annotations

from dlrun.verify.trace import Event, Run, Step
from dlrun.verify.verdict import Check, failed

MOST = 0.9  # of an order's length: a range to that end goes through it, whole batches of it


def other_order(run: Run, name: str) -> Check | None:
    """Return a check that failed because positions are dealt out in an order that each rank has drawn for itself."""
    for together in zip(*(trace.steps for trace in run.traces), strict=False):
        orders = [_dealt_order(step) for step in together]
        for rank, order in enumerate(orders):
            if order and orders[0] and order["hash"] != orders[0]["hash"]:
                finding = f"the positions in an order are dealt out, and rank {rank} draws another order than rank 0: "
                finding += "samples are read by several ranks, and others by none"
                todo = "let all ranks go through one order: order = dl.broadcast(order)"
                return failed(name, finding, todo, "overlapping-shards", where=order.at, rank=rank)
    return None


def _dealt_order(step: Step) -> Event | None:
    """Return the order drawn since the step before whose positions were dealt out as they are; None of none."""
    order = None
    for event in step.before:
        if event.kind == "order":
            order = event
        elif event.kind == "return" and event["fn"] == "broadcast":
            order = None
        elif order and any(MOST * order["size"] <= x <= order["size"] for x in event.facts.get("through", ())):
            return order
    return None
