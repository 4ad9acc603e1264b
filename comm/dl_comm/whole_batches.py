"""Whole batches sharded: rank r takes the serial batches r, r + n, ..., and nobody pads or repeats any."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from dl_comm.reduction.layout import Layout, note
from dl_comm.shard_iterators import without_restart


def check_whole(whole: str) -> None:
    """Raise ValueError where ``whole`` is none of the words that ``shard`` takes."""
    if whole not in ("", "batches"):
        raise ValueError(f"shard() got whole={whole!r}; it is 'batches', or left out")


def entries_of(data: Any, rank: int, n: int) -> Any:
    """Return the entries r, r + n, ... of what can be indexed, each a batch: of an array, a list, a range."""
    length = len(data)
    mine = range(rank, length, n)
    if isinstance(data, (list, tuple, range)):
        share: Any = [data[i] for i in mine]
    else:
        share = data.iloc[rank::n] if hasattr(data, "iloc") else data[rank::n]
    return note(share, Layout("batches", length, len(mine), unpadded=True))


class WholeBatches:
    """Every n-th batch of an iterable that all ranks go through; what it draws they draw alike, under ``reading()``.

    Attributes it lacks are the iterable's. ``len()`` counts this rank's batches.
    """

    def __init__(self, batches: Any, rank: int, n: int, reading: Any = nullcontext) -> None:
        self._batches, self._rank, self._n, self._reading = batches, rank, n, reading
        self._read: int | None = None  # batches of all ranks in the last pass, once it is over

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._batches, name)

    def __len__(self) -> int:
        return len(range(self._rank, len(self._batches), self._n))

    def __iter__(self) -> Iterator[Any]:
        reading: AbstractContextManager[Any] = self._reading()
        with reading:
            rest = without_restart(self._batches)
        count = 0
        while True:
            with reading:
                batch = next(rest, self)
            if batch is self:
                break
            if count % self._n == self._rank:
                yield batch
            count += 1
        self._read = count

    def layout_of_share(self) -> Layout:
        """Return how the batches lie in the serial order; how many there are is known after the first pass."""
        total = self._read
        if total is None and hasattr(self._batches, "__len__"):
            total = len(self._batches)
        mine = None if total is None else len(range(self._rank, total, self._n))
        return Layout("batches", total, mine, unpadded=True)
