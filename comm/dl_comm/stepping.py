"""How many optimizer steps this rank has made; who asks is told as each one ends.

A framework's face says when one of its optimizers has stepped. Scripts that update by hand are counted by their
exchanges: whenever a list of gradients comes again, a step is over. Of several optimizers, or several exchanges, in a
step the one that came most often counts.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable

# Exchanges with these names are metrics and agreements, not gradients.
NOT_GRADIENTS = ("average", "total of", "metrics of", "which gradients")


class _State:
    listeners: list[Callable[[int], None]] = []  # noqa: RUF012 - one state for the process
    counts: dict[Hashable, int] = {}  # noqa: RUF012
    steps = 0
    told = False  # whether an optimizer has spoken: then exchanges do not count


def listen(listener: Callable[[int], None]) -> None:
    """Have ``listener(number)`` called when step ``number``, from 0, has ended."""
    _State.listeners.append(listener)


def wanted() -> bool:
    """Whether anybody listens; only then need the faces say anything."""
    return bool(_State.listeners)


def stepped(optimizer: Hashable) -> None:
    """Say that this optimizer has just made a step."""
    _State.told = True
    _count(optimizer)


def exchanging(name: str, nbytes: int) -> None:
    """Say that these gradients, known by their name and size, are about to be exchanged."""
    if not _State.told and not name.startswith(NOT_GRADIENTS):
        _count((name, nbytes))


def _count(what: Hashable) -> None:
    count = _State.counts[what] = _State.counts.get(what, 0) + 1
    if count > _State.steps:
        _State.steps = count
        for listener in _State.listeners:
            listener(count - 1)
