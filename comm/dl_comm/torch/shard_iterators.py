"""Data that come one after the other, of which each rank keeps every n-th."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from torch.utils.data import IterableDataset, get_worker_info

from dl_comm.shard_iterators import every_nth
from dl_comm.shared_random import Alike


class ShardedStream(IterableDataset[Any]):
    """Every n-th sample of an iterable data set, padded from its beginning so that all ranks get as many.

    Attributes it lacks are the data set's. ``len()`` is this rank's.
    """

    def __init__(self, dataset: Iterable[Any], rank: int, n: int, ahead: int = 1) -> None:
        self._dataset, self._rank, self._n, self._ahead = dataset, rank, n, ahead

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._dataset, name)

    def __len__(self) -> int:
        return -(-len(self._dataset) // self._n)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[Any]:
        if get_worker_info() is not None:  # whose random numbers are alike
            yield from every_nth(self._dataset, self._rank, self._n)
        else:
            yield from every_nth(self._dataset, self._rank, self._n, self._ahead, Alike())


class ShardedIterator(ShardedStream):
    """The stream of an object that is its own iterator, as a loader that keeps its place; ``next()`` goes on in it."""

    _going: Iterator[Any] | None = None

    def __next__(self) -> Any:
        self._going = self._going or iter(self)
        return next(self._going)
