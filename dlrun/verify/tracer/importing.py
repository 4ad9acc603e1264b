"""What the tracers of all faces of dl_comm share: calls that are noted; numbers of scalars."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from dlrun.verify.tracer.recorder import Recorder


def number_of(value: Any) -> float | None:
    """Return a scalar as a float, None of anything else, such as a tensor of a graph."""
    if getattr(value, "size", None) is not None and getattr(value, "ndim", 0) > 0:
        return None
    try:
        return float(value)
    except (TypeError, ValueError, AttributeError, NotImplementedError):
        return None


def changed(made: dict[str, Any] | None, now: dict[str, Any] | None) -> dict[str, Any] | None:
    """Return the note of a gradient as it was computed, where it is another now."""
    return made if made and now and made["hash"] != now["hash"] else None


def followed(recorder: Recorder, name: str, function: Callable[..., Any], act: Callable[..., Any] | None) -> Any:
    """Return one of dl_comm's functions that notes its calls by the script, and its returns.

    ``act(function, *args, **kwargs)`` calls it in a way of its own, and returns the result and facts to note.
    """

    @functools.wraps(function)
    def noted(*args: Any, **kwargs: Any) -> Any:
        if recorder.inside:
            return function(*args, **kwargs)
        recorder.note("call", fn=name)
        with recorder.aside():
            result, facts = act(function, *args, **kwargs) if act else (function(*args, **kwargs), {})
        recorder.note("return", fn=name, **facts)
        return result

    return noted


def showing(recorder: Recorder, show: Callable[..., Any]) -> Any:
    """Return dl_comm's ``print`` that also notes, on every rank, what it would print there."""

    @functools.wraps(show)
    def noted(*args: Any, **kwargs: Any) -> Any:
        recorder.note("shown", text=(kwargs.get("sep") or " ").join(map(str, args)))
        return show(*args, **kwargs)

    return noted
