"""``--batch global``: the batches that a loop over positions cuts itself, of each of which a rank takes a part."""

from __future__ import annotations

from dataclasses import replace

import libcst as cst

from dlrun.port.facts import Feed
from dlrun.port.feeds import Feeds
from dlrun.port.feeds.positions.positions import gives, keeps, mentions, names_of, positions
from dlrun.port.program.script import walk


def divide(feeds: Feeds) -> None:
    """Let each rank take a part of what loops over positions cut, where every use of a position is known.

    ``pick = order[i : i + 32]`` is a batch, of which a rank takes every n-th entry; the positions stay the serial ones.
    """
    for key, feed in list(feeds.found.items()):
        cuts = _cuts(feeds, feed) if feed.how in ("indices", "positions") else ()
        if cuts:
            feeds.found[key] = replace(feed, how="cut", names=(), picks=cuts)


def _cuts(feeds: Feeds, feed: Feed) -> tuple[cst.Subscript, ...]:
    """Return the slices by which the loop over ``feed`` takes its batches; none where it picks otherwise, too."""
    loops = [loop for loop in feeds.innermost if isinstance(loop, cst.For) and _runs_over(feeds, loop, feed.node)]
    found: list[cst.Subscript] = []
    for loop in loops:
        names = _positions(feeds, loop)
        for node in walk(loop.body):
            if isinstance(node, cst.Call) and gives(feeds.flow, node, names):
                return ()
            if not isinstance(node, cst.Subscript) or not any(mentions(e, names) for e in node.slice):
                continue
            if any(mentions(element, names) for element in node.slice[1:]):
                return ()
            within = any(isinstance(n, cst.Subscript) for n in walk(node.slice[0]))
            if isinstance(node.slice[0].slice, cst.Slice):
                found.append(node)
            elif not within and not keeps(feeds.flow, node.slice[0], loop.body):
                return ()
    return tuple(found)


def _positions(feeds: Feeds, loop: cst.For) -> set[str]:
    """Return the names of the numbers that ``loop`` counts, and of those computed from them, but not of a batch."""
    taken = [
        n
        for n in walk(loop.body)
        if isinstance(n, cst.Assign) and any(isinstance(m, cst.Subscript) for m in walk(n.value))
    ]
    return positions(feeds.flow, loop) - {name for n in taken for name in names_of(n.targets[0].target)}


def _runs_over(feeds: Feeds, loop: cst.For, node: cst.CSTNode) -> bool:
    return node in (feeds.iterated.of(loop), feeds.iterated.source(loop.iter))
