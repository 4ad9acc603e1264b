"""The samples, and the numbers of samples, that are local."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from dlrun.port.facts import Feed
from dlrun.port.facts.taint import Taint
from dlrun.port.feeds import Feeds
from dlrun.port.feeds.positions.positions import uses_of_number
from dlrun.port.program.script import dotted


def samples(feeds: Feeds) -> Iterator[cst.CSTNode]:
    """Yield what loops run over, and what next() or chance draws for a step, where that is the local share."""
    loops = [x for x in (*feeds.loops.training, *feeds.loops.accumulating) if isinstance(x, cst.For)]
    yield from (feed.node for feed in feeds.found.values() if feed.how == "iterable")
    yield from (pick for feed in feeds.found.values() if feed.how in ("cut", "drawn") for pick in feed.picks)
    for source in (feeds.iterated.source(loop.iter) for loop in loops):
        if any(_holds(feeds, feed, source) for feed in feeds.found.values()):
            yield source
    for call in feeds.script.calls:
        iterator = feeds.iterated.advanced(call)
        if iterator is not None and any(_holds(feeds, feed, iterator) for feed in feeds.found.values()):
            yield call
    alike = {call for feed in feeds.found.values() for call in feed.alike}
    led = [feeds._loss(c) for c in feeds.loops.gradients.backwards]
    for call in (c for loop in feeds.counted if not feeds.episodes for c in feeds.draws.random(loop.body)):
        if call not in alike and any(map(Taint(feeds.script, feeds.loops.kinds, [call]), led)):
            yield call


def cut(feeds: Feeds) -> Iterator[cst.Name]:
    """Yield the uses of arrays that hold a rank's share from the line on that cuts them, be it after the training."""
    script = feeds.script
    for feed in (f for f in feeds.found.values() if f.how == "arrays" and not f.picks):
        home, scope = script.function_of(feed.node), script.scopes[feed.node]
        bound = {id(scope.lookup(name)[1]) for name in feed.names}
        for n in script.of(cst.Name):
            late = script.order[n] > script.order[feed.node] or script.function_of(n) is not home
            if late and n.value in feed.names and id(script.scope_of(n)) in bound:
                yield n


def _holds(feeds: Feeds, feed: Feed, node: cst.BaseExpression) -> bool:
    """Tell whether ``node`` is the share, or an iterator over it, that ``feed`` is cut into."""
    if feed.how == "named":
        names = feeds.script.scopes[feed.node].names
        bound = [b for name in feed.names for b in names.get(name, ()) if b.node is feed.node]
        handed = {(b.value, b.path) for b in bound if b.value is not None}  # by a function, beside others
        here = dotted(node) in feed.names and any(b.node is feed.node for b in feeds.script.bindings_of(node))
        return here or not handed.isdisjoint(feeds.flow.ways(node))
    return feed.how in ("loader", "iterable") and feed.node in feeds.flow.through(node)


def numbers(feeds: Feeds) -> Iterator[cst.Name]:
    """Yield the uses of numbers of samples, or of batches, that are local."""
    for feed in feeds.found.values():
        yield from (n for n in feed.picks if feed.how == "positions" and isinstance(n, cst.Name))
        for loop in feeds.loops.training if feed.how == "indices" else ():
            if isinstance(loop, cst.For) and feeds.iterated.of(loop) is feed.node:
                yield from uses_of_number(loop)
