"""How many optimizer steps this rank has made; who asks is told as each one ends.

A framework's face says when one of its optimizers has stepped. Scripts that update by hand are counted by their
exchanges: whenever a list of gradients comes again, a step is over. Of several optimizers, or several exchanges, in a
step the one that came most often counts.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

from dl_comm import _core

# Exchanges with these names are metrics and agreements, not gradients.
NOT_GRADIENTS = ("average", "total of", "maximum of", "minimum of", "metrics of", "which gradients")


_WIDTHS = {"float64": 8, "int64": 8, "float32": 4, "int32": 4, "float16": 2, "bfloat16": 2, "int16": 2}

Buffers = list[tuple[int, int, str]]


class _State:
    listeners: list[Callable[[int], None]] = []  # noqa: RUF012 - one state for the process
    counts: dict[Hashable, int] = {}  # noqa: RUF012
    steps = 0
    watchers: list[Callable[[str, Buffers, str, str], None]] = []  # noqa: RUF012
    told = False  # whether an optimizer has spoken: then exchanges do not count


def listen(listener: Callable[[int], None]) -> None:
    """Have ``listener(number)`` called when step ``number``, from 0, has ended."""
    if not _State.listeners:
        for kind in ("allreduce", "start"):
            setattr(_core, kind, _counted(kind, getattr(_core, kind)))
    _State.listeners.append(listener)


def watch(watcher: Callable[[str, Buffers, str, str], None]) -> None:
    """Have ``watcher(kind, buffers, op, name)`` called before every "allreduce" and "start" of the core."""
    _State.watchers.append(watcher)


def wanted() -> bool:
    """Whether anybody listens; only then need the faces say anything."""
    return bool(_State.listeners)


def stepped(optimizer: Hashable) -> None:
    """Say that this optimizer has just made a step."""
    _State.told = True
    _count(optimizer)


def name_of(args: Any, options: Any, otherwise: str) -> str:
    """Return what a call of the core is about: "weight (64, 3) float32 and 7 more"."""
    names = options.get("names") or next((a for a in args[1:] if isinstance(a, list)), None)
    return f"{names[0]}" + (f" and {len(names) - 1} more" if len(names) > 1 else "") if names else otherwise


def bytes_of(buffers: Buffers) -> int:
    """Return the bytes of a list of (address, elements, dtype)."""
    return sum(count * _WIDTHS.get(dtype, 1) for _, count, dtype in buffers)


def _counted(kind: str, plain: Callable[..., Any]) -> Callable[..., Any]:
    def counted(buffers: Buffers, op: str = "mean", *args: Any, **options: Any) -> Any:
        name = name_of((buffers, op, *args), options, kind)
        if not _State.told and not name.startswith(NOT_GRADIENTS):
            _count((name, bytes_of(buffers)))
        for watcher in _State.watchers:
            watcher(kind, buffers, op, name)
        return plain(buffers, op, *args, **options)

    return counted


def _count(what: Hashable) -> None:
    count = _State.counts[what] = _State.counts.get(what, 0) + 1
    if count > _State.steps:
        _State.steps = count
        for listener in _State.listeners:
            listener(count - 1)
