"""Part of step "shard": where a state is handed on from batch to batch, each rank takes a stretch of the stream."""

from __future__ import annotations

from collections.abc import Iterator

from dlrun.port.edits import Doubt, Edit
from dlrun.port.facts import Facts
from dlrun.port.insert import expression, statements
from dlrun.port.program.script import dotted


def torch(facts: Facts) -> Iterator[Edit | Doubt]:
    """Cut what a loop goes through in order into contiguous stretches, one a rank, along the axis it moves on.

    Before:
        rnn, data = torch.nn.RNN(3, 3), load()
        opt = torch.optim.SGD(rnn.parameters())
        state = None
        for i in range(0, len(data) - 1, 35):
            out, state = rnn(data[i:i + 35], state)
            (out - data[i + 1:i + 36]).pow(2).mean().backward()
            state = state.detach()
            opt.step()

    After:
        rnn, data = torch.nn.RNN(3, 3), load()
        data = dl.stretch(data)  # a stream: this rank's stretch of it
        opt = torch.optim.SGD(rnn.parameters())
        state = None
        for i in range(0, len(data) - 1, 35):
            out, state = rnn(data[i:i + 35], state)
            (out - data[i + 1:i + 36]).pow(2).mean().backward()
            state = state.detach()
            opt.step()
    """
    dl = facts.alias
    why = "a state is handed on from batch to batch: each rank goes through a stretch of the stream, in order"
    for feed in facts.feeds:
        if feed.how == "stretches":
            lines = tuple(
                line
                for name in feed.names
                for line in statements("torch/stretch_name", dl=dl, name=name, axis=feed.axis, again=feed.again)
            )
            before, after = (lines, ()) if feed.before else ((), lines)
            yield Edit(feed.node, f"{', '.join(feed.names)}: {why}", before=before, after=after)
        elif feed.how == "stretch":
            yield Edit(
                feed.node,
                why,
                lambda node, axis=feed.axis: expression(  # type: ignore[misc]
                    "torch/stretch", {"data": node}, dl=dl, axis=axis
                ),
            )
        else:
            continue
        what = ", ".join(feed.names) or dotted(feed.node) or "its batches"
        yield Doubt(
            feed.node,
            f"each rank carries a state of its own through its stretch of {what}, taken to run "
            f"along axis {feed.axis}: n ranks are a serial run with n times the columns, whose state is lost n "
            "times as often",
            "medium",
            name="carried-state",
        )
        for call in feed.draws:
            yield Edit(
                call,
                "it decides how far a step goes: all ranks must take as many steps",
                lambda node: expression("torch/same", {"value": node}, dl=dl),
            )
    for node in facts.carries:
        yield Doubt(
            node,
            "a hidden state is carried from batch to batch: sharded batches are no longer one stream",
            "high",
            "give each rank a part of every stream instead of every n-th batch",
            name="carried-state",
        )
