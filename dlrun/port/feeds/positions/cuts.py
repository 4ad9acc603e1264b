"""``--batch global``: the batches that a loop over positions cuts itself, of each of which a rank takes a part."""

from __future__ import annotations

from dataclasses import replace

import libcst as cst

from dlrun.port.facts import Feed
from dlrun.port.feeds import Feeds
from dlrun.port.feeds.positions.positions import gives, keeps, mentions, names_of, positions
from dlrun.port.program.flow import Flow
from dlrun.port.program.script import walk


def divide(feeds: Feeds) -> None:
    """Let each rank take a part of what loops over positions cut, where every use of a position is known.

    ``pick = order[i : i + 32]`` is a batch, of which a rank takes every n-th entry; the positions stay the serial ones.
    """
    for key, feed in list(feeds.found.items()):
        counts = feed.how in ("indices", "positions") or feeds.is_order(feed.node)
        cuts = _cuts(feeds, feed) if counts else ()
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
    return node in (
        feeds.iterated.of(loop),
        feeds.iterated.source(loop.iter),
        feeds.iterated.counted(loop.iter),
    )


def generates_batches(flow: Flow, node: cst.CSTNode) -> bool | None:
    """Tell whether ``node`` calls a generator of the script's own that yields batches; None where it calls none."""
    targets = flow.targets(node) if isinstance(node, cst.Call) else ()
    yields = [n for target in targets for n in walk(target) if isinstance(n, cst.Yield)]
    return all(_yields_batch(flow, n) for n in yields) if yields else None


def _yields_batch(flow: Flow, node: cst.Yield) -> bool:
    """Tell whether a generator yields slices of arrays, or what a slice picks: ``X[i : i + 8], Y[order[i : i + 8]]``.

    These are batches; anything else may be a sample.
    """
    value = node.value
    if isinstance(value, (cst.Dict, cst.Tuple, cst.List)):
        return bool(value.elements) and all(_is_slice(flow, e.value) for e in value.elements)
    return isinstance(value, cst.BaseExpression) and _is_slice(flow, value)


def _is_slice(flow: Flow, node: cst.BaseExpression, depth: int = 3) -> bool:
    """Tell whether ``node`` is a slice along axis 0, is picked by one, or is converted from one."""
    if isinstance(node, cst.Subscript):
        at = node.slice[0].slice
        if isinstance(at, cst.Slice):
            return at.lower is not None or at.upper is not None
        return isinstance(at, cst.Index) and _is_slice(flow, at.value, depth)
    if isinstance(node, cst.Call):  # torch.from_numpy(x[i : i + 8]), x[i : i + 8].to(device)
        of = node.func.value if isinstance(node.func, cst.Attribute) else None
        return any(
            _is_slice(flow, n, depth) for n in [*([of] if of is not None else []), *(a.value for a in node.args)]
        )
    origins = [o.node for o in flow.origins(node)] if isinstance(node, cst.Name) and depth else []
    made = [n for n in origins if n is not node and isinstance(n, cst.BaseExpression)]
    return bool(made) and all(_is_slice(flow, n, depth - 1) for n in made)
