"""Random numbers that all ranks draw alike while they read one stream, beside those that each draws for itself."""

from __future__ import annotations

import pickle
import random
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from types import TracebackType
from typing import Any

import numpy as np

from dl_comm import _core
from dl_comm.ranks import get_rank

_Generators = list[tuple[Callable[[], Any], Callable[[Any], Any]]]
_depth = 0


class Alike:
    """A context in which all ranks go on with one sequence of random numbers, the one that rank 0 began it with.

    Between its uses each rank draws its own, as before; rank 0 goes on from what was drawn in it, as the serial script
    does, and so does a rank that has drawn nothing of its own: ranks that were alike before stay so. Made by all ranks
    together (collective).
    """

    def __init__(self) -> None:
        self._generators = _generators()
        self._states: list[Any] = pickle.loads(_core.broadcast_bytes(pickle.dumps(self._read()), 0))
        self._own: list[Any] = []

    def __enter__(self) -> None:
        global _depth
        _depth += 1
        self._own = self._read()
        self._set(self._states)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        global _depth
        _depth -= 1
        before, self._states = self._states, self._read()
        triples = zip(self._own, self._states, before, strict=True)
        self._own = [self._behind(own, new, old) for own, new, old in triples]
        self._set(self._own)

    def _behind(self, own: Any, new: Any, old: Any) -> Any:
        """Return how a rank goes on that had come with ``own``, where the sequence went from ``old`` to ``new``."""
        follows = get_rank() == 0 or _same(own, old)  # it has drawn nothing of its own
        return new if follows and not _same(new, old) else own

    def _read(self) -> list[Any]:
        return [get() for get, _ in self._generators]

    def _set(self, states: list[Any]) -> None:
        for state, (_, put) in zip(states, self._generators, strict=True):
            put(state)


@contextmanager
def undone() -> Iterator[None]:
    """Let what is drawn under it be drawn again after it."""
    states = [(get(), put) for get, put in _generators()]
    try:
        yield
    finally:
        for state, put in states:
            put(state)


def drawing_alike() -> bool:
    """Tell whether what is drawn now is drawn alike on all ranks."""
    return _depth > 0


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(_same(one[key], other[key]) for key in one)
    if isinstance(one, np.ndarray):
        return np.array_equal(one, other)
    return bool(one.equal(other) if hasattr(one, "equal") else one == other)


def _generators() -> _Generators:
    """Return how to read and set the states of the generators that a script may draw from without naming them."""
    found: _Generators = [
        (random.getstate, random.setstate),
        (partial(np.random.get_state, legacy=False), np.random.set_state),
    ]
    if torch := sys.modules.get("torch"):
        found.append((torch.get_rng_state, torch.set_rng_state))
    return found
