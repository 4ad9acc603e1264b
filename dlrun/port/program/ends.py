"""Where a loop ends: behind it, or, where it has an ``else``, at the head of that and at each ``break``."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from dlrun.port.program.nodes import children


def ends(loop: cst.CSTNode) -> list[cst.CSTNode]:
    """Return the first statement of a loop's ``else``, and each ``break`` out of it; none where it has no ``else``.

    What stands in the ``else`` is run before anything behind the loop, and may leave the block: ``else: continue``.
    """
    if not isinstance(loop, (cst.For, cst.While)) or loop.orelse is None:
        return []
    return [loop.orelse.body.body[0], *_breaks(loop.body)]


def _breaks(node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    """Yield what leaves the loop whose body ``node`` lies in: lines, or statements where they share their line."""
    if isinstance(node, cst.Break):
        yield node
    elif isinstance(node, cst.SimpleStatementLine):
        found = [n for n in node.body if isinstance(n, cst.Break)]
        yield from [node] if len(node.body) == 1 and found else found
    elif isinstance(node, (cst.For, cst.While)):
        if node.orelse is not None:
            yield from _breaks(node.orelse)
    elif not isinstance(node, (cst.FunctionDef, cst.ClassDef)):
        for child in children(node):
            yield from _breaks(child)
