"""Samples that come one after the other are dealt out: to each rank every n-th."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from itertools import islice
from typing import Any

from dl_comm.ranks import get_rank, parts, share


def turns(positions: Iterable[Any]) -> list[tuple[Any, Any]]:
    """Return pairs for a loop that counts steps and picks a batch by the same number: (the step, this rank's number).

    ``positions`` is what the serial script counts, a ``range``. Of m positions there are ceil(m / n) pairs: the steps
    are the first ones, the same on all ranks; the second entries are r, r + n, ..., padded from the beginning. So what
    a script does at certain steps all ranks do together, each with a batch of its own. On one rank both are the same.
    """
    numbers = list(positions)
    return [(numbers[k], numbers[own]) for k, own in enumerate(share(len(numbers), get_rank() % parts(), parts()))]


def deal(
    samples: Iterable[Any], rank: int, n: int, ahead: int = 1, reading: AbstractContextManager[Any] | None = None
) -> Iterator[Any]:
    """Yield every n-th sample from the ``rank``-th, padded from the beginning so that all ranks get as many.

    ``ahead`` samples are read for each rank at a time, within ``reading``.
    """
    reading = reading or nullcontext()
    with reading:
        rest = going(samples)
    head: list[Any] = []
    while True:
        with reading:
            block = list(islice(rest, n * ahead))
        for at in range(0, len(block), n):
            group = block[at : at + n]
            head = head or group
            yield group[rank] if rank < len(group) else head[(rank - len(group)) % len(head)]
        if len(block) < n * ahead:
            return


def going(samples: Iterable[Any]) -> Iterator[Any]:
    """Return an iterator that ``iter()`` does not begin anew, as it does a loader of the user's that is its own."""
    return (sample for sample in samples)


def deal_calls(function: Callable[..., Any], rank: int, n: int) -> Callable[..., Any]:
    """Return a function that calls ``function`` n times and returns what the ``rank``-th call returned.

    For functions that return the next samples at each call: all ranks move on alike, and each gets others.
    """

    @functools.wraps(function)
    def dealt(*args: Any, **kwargs: Any) -> Any:
        return [function(*args, **kwargs) for _ in range(n)][rank]

    return dealt
