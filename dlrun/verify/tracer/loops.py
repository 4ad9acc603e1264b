"""The ``for`` loops of a script: whether one goes through a loader, epoch after epoch, or a generator shards it."""

from __future__ import annotations

import ast
import inspect
import tokenize
from functools import cache

from dlrun.verify.tracer.recorder import user_frame


def is_gone_through() -> bool:
    """Tell whether the user's line that runs is where a ``for`` begins to go through something, in no generator."""
    frame = user_frame()
    if frame is None or frame.f_code.co_flags & inspect.CO_GENERATOR:
        return False
    return frame.f_lineno in _lines(frame.f_code.co_filename)


@cache
def _lines(filename: str) -> frozenset[int]:
    """Return the lines of what the loops of a file go through."""
    try:
        with tokenize.open(filename) as file:
            tree = ast.parse(file.read())
    except (OSError, SyntaxError, ValueError):
        return frozenset()
    loops = [node.iter for node in ast.walk(tree) if isinstance(node, ast.For)]
    return frozenset(line for loop in loops for line in range(loop.lineno, (loop.end_lineno or loop.lineno) + 1))
