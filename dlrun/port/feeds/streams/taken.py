"""Lists and queues out of which a loop takes its samples, or where these lie, one after another: ``queue.pop()``."""

from __future__ import annotations

from collections.abc import Collection, Iterable

import libcst as cst

from dlrun.port.feeds.positions.positions import mentions, names_of
from dlrun.port.program.script import calls_method, dotted, names_in, walk

_TAKES = ("pop", "popleft", "rotate", "get_nowait")


def taken_from(body: cst.CSTNode, calls: Iterable[cst.Call], arrays: Collection[str]) -> cst.Call | None:
    """Return the one of ``calls`` that takes from one of ``arrays``, or from places that pick of these in ``body``."""
    picked = {
        n.value
        for sub in walk(body)
        if isinstance(sub, cst.Subscript) and dotted(sub.value) in arrays
        for part in sub.slice
        for n in walk(part)
        if isinstance(n, cst.Name)
    }
    made = [n.value for n in walk(body) if isinstance(n, cst.Assign) and names_of(n.targets[0].target) & picked]
    for call in (c for c in calls if calls_method(c, *_TAKES)):
        box = call.func.value
        keyed = any(isinstance(arg.value, cst.SimpleString) for arg in call.args)
        if not keyed and (dotted(box) in arrays or any(mentions(value, names_in(box)) for value in made)):
            return call
    return None
