"""Samples that come one after the other are dealt out: to each rank every n-th."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any


def deal(samples: Iterable[Any], rank: int, n: int) -> Iterator[Any]:
    """Yield every n-th sample from the ``rank``-th, padded from the beginning so that all ranks get as many."""
    rest = iter(samples)
    head: list[Any] = []
    while group := list(islice(rest, n)):
        head = head or group
        yield group[rank] if rank < len(group) else head[(rank - len(group)) % len(head)]


def deal_calls(function: Callable[..., Any], rank: int, n: int) -> Callable[..., Any]:
    """Return a function that calls ``function`` n times and returns what the ``rank``-th call returned.

    For functions that return the next samples at each call: all ranks move on alike, and each gets others.
    """

    @functools.wraps(function)
    def dealt(*args: Any, **kwargs: Any) -> Any:
        return [function(*args, **kwargs) for _ in range(n)][rank]

    return dealt
