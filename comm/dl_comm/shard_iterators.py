"""Samples that come one after the other are sharded: each rank takes every n-th."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from itertools import islice
from types import GeneratorType
from typing import Any

from dl_comm.ranks import get_rank, parts, share
from dl_comm.reduction.layout import Layout, note
from dl_comm.shares import tell_padded


def turns(positions: Iterable[Any]) -> list[tuple[Any, Any]]:
    """Return pairs for a loop that counts steps and picks a batch by the same number: (the step, this rank's number).

    ``positions`` is what the serial script counts, a ``range``. Of m positions there are ceil(m / n) pairs: the steps
    are the first ones, the same on all ranks; the second entries are r, r + n, ..., padded from the beginning. So what
    a script does at certain steps all ranks do together, each with a batch of its own. On one rank both are the same.
    Rank 0 warns where any are taken twice.
    """
    numbers = list(positions)
    tell_padded(len(numbers), parts())
    pairs = [(numbers[k], numbers[own]) for k, own in enumerate(share(len(numbers), get_rank() % parts(), parts()))]
    return note(pairs, Layout("batches", len(numbers), len(pairs))) if parts() > 1 else pairs


def every_nth(
    samples: Iterable[Any], rank: int, n: int, ahead: int = 1, reading: AbstractContextManager[Any] | None = None
) -> Iterator[Any]:
    """Yield every n-th sample from the ``rank``-th, padded from the beginning so that all ranks get as many.

    ``ahead`` samples are read for each rank at a time, within ``reading``. Rank 0 warns where any are taken twice.
    """
    reading = reading or nullcontext()
    with reading:
        rest = without_restart(samples)
    head: list[Any] = []
    seen = 0
    while True:
        with reading:
            block = list(islice(rest, n * ahead))
        seen += len(block)
        for at in range(0, len(block), n):
            group = block[at : at + n]
            head = head or group
            yield group[rank] if rank < len(group) else head[(rank - len(group)) % len(head)]
        if len(block) < n * ahead:
            tell_padded(seen, n, "entries of a stream", first=rank == 0)
            return


def without_restart(samples: Iterable[Any]) -> Iterator[Any]:
    """Return an iterator that ``iter()`` does not begin anew, as it does a loader of the user's that is its own."""
    return (sample for sample in samples)


def shard_calls(function: Callable[..., Any], rank: int, n: int) -> Callable[..., Any]:
    """Return a function that calls ``function`` n times and returns what the ``rank``-th call returned.

    For functions that return the next samples at each call: all ranks move on alike, and each gets others.
    """

    @functools.wraps(function)
    def sharded(*args: Any, **kwargs: Any) -> Any:
        return [function(*args, **kwargs) for _ in range(n)][rank]

    note(sharded, Layout("batches"))
    return sharded


class IteratorShard(Iterator[Any]):
    """Every n-th sample of an iterator from the ``rank``-th; attributes and methods are the iterator's own.

    As those of what Keras' ``flow()`` returns: ``n``, ``batch_size``, ``class_indices``, ``reset()``. ``len()`` is this
    rank's, ``ceil(len / n)``; the i-th entry is that which the rank gets in its i-th step.
    """

    def __init__(self, samples: Iterator[Any], rank: int, n: int) -> None:
        self._samples, self._rank, self._n = samples, rank, n
        self._going = every_nth(samples, rank, n)

    def __next__(self) -> Any:
        return next(self._going)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._samples, name)

    def __len__(self) -> int:
        return -(-len(self._samples) // self._n)  # type: ignore[arg-type]

    def __getitem__(self, index: int) -> Any:
        samples: Any = self._samples
        return samples[(index * self._n + self._rank) % len(samples)]


def iterator_shard(samples: Iterator[Any], rank: int, n: int) -> Iterator[Any]:
    """Return this rank's share of ``samples``; of a generator, which has nothing but samples, a generator."""
    return every_nth(samples, rank, n) if isinstance(samples, GeneratorType) else IteratorShard(samples, rank, n)
