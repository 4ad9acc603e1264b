"""Batches that are drawn before a loop, and anew at the end of its iterations: ``x, y = get_batch()``."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from dlrun.port.feeds import Feeds
from dlrun.port.program.script import dotted, walk

_STATEMENTS = (cst.Assign, cst.AnnAssign, cst.Expr)


def drawn_ahead(feeds: Feeds) -> Iterator[tuple[cst.CSTNode, bool]]:
    """Yield the statements that draw at random, before a training loop, what its first iterations train on.

    And whether something between them and the loop draws what is no batch, and maybe the same for all ranks.
    """
    script, order = feeds.script, feeds.script.order
    alike = {call for call, _ in feeds.late_orders()}  # sharded
    drawn = [n for n in script.nodes if isinstance(n, _STATEMENTS) and not alike.issuperset(_made(feeds, n))]
    for top in feeds.orders.tops if feeds.counted else ():
        iterations = [loop for loop in feeds.counted if loop is top.loop or script.inside(loop, top.loop)]
        inner = [n for n in drawn if any(script.inside(n, loop) for loop in iterations)]
        before = [
            n
            for n in drawn
            if order[n] < order[top.loop]
            and not script.inside(n, top.loop)
            and script.function_of(n) is script.function_of(top.loop)
        ]
        first = next((n for n in before if any(_goes_first(feeds, n, again) for again in inner)), None)
        if first is not None:
            between = [n for n in before if order[n] > order[first] and not any(_names(n) == _names(m) for m in inner)]
            yield first, any(not feeds.orders.is_weight(c) for n in between for c in _made(feeds, n))


def _made(feeds: Feeds, node: cst.Assign | cst.AnnAssign | cst.Expr) -> list[cst.Call]:
    """Return what draws at random the value that ``node`` assigns, or the order in which it puts a list."""
    if isinstance(node, cst.Expr):
        return [node.value] if isinstance(node.value, cst.Call) and feeds.draws.shuffles(node.value) else []
    return feeds.draws.random(node.value) if node.value is not None else []


def _goes_first(feeds: Feeds, first: cst.CSTNode, again: cst.CSTNode) -> bool:
    """Tell whether ``again``, in a loop, draws anew what ``first`` drew, and what that drew is read there before."""
    script, names = feeds.script, _names(first)
    if not names or names != _names(again):
        return False
    loop = next(up for up in script.above(again) if isinstance(up, (cst.For, cst.While)))
    tests = [up for up in script.above(again) if isinstance(up, cst.If) and script.inside(up, loop)]
    reads = (n for n in walk(loop.body) if dotted(n) in names and not script.inside(n, again))
    return bool(tests) or any(script.order[n] < script.order[again] for n in reads)


def _names(node: cst.CSTNode) -> tuple[str, ...]:
    """Return what an assignment binds, ``x`` and ``y``, ``self.batch``, or what a call shuffles."""
    if isinstance(node, cst.Expr) and isinstance(node.value, cst.Call) and node.value.args:
        return (dotted(node.value.args[0].value),)
    target = node.targets[0].target if isinstance(node, cst.Assign) else getattr(node, "target", None)
    parts = [e.value for e in target.elements] if isinstance(target, (cst.Tuple, cst.List)) else [target]
    names = tuple(dotted(part) for part in parts if part is not None)
    return names if all(names) else ()
