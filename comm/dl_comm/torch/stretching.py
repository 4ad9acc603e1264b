"""This rank's stretch of data that form a stream: of a tensor, of a DataLoader that goes through them in order."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from itertools import islice
from typing import Any
from weakref import WeakKeyDictionary

from torch.utils.data import BatchSampler, DataLoader, IterableDataset

from dl_comm import streams
from dl_comm.ranks import get_rank, parts
from dl_comm.torch.sharding import ShardedSampler
from dl_comm.torch.whole_batches import order_of_rank0

# A loader that is cut again, say at each epoch, is the same loader again.
_cut: WeakKeyDictionary[DataLoader[Any], DataLoader[Any]] = WeakKeyDictionary()


def stretch(data: Any, axis: int = 0, multiple: int = 1) -> Any:
    """Return this rank's stretch of a stream, as ``dl_comm.streams.stretch`` does, also of a DataLoader.

    A DataLoader becomes one whose batches are those of a stretch of its order, as large as they were: each rank takes
    1/n of the entries, in order, in whole batches (what is left over, nobody reads). ``len()`` counts this rank's
    batches. Raises ``TypeError`` for a loader over an IterableDataset, whose end is not known.

    Of another object that can only be gone through, again and again, each rank takes 1/n of the batches, in order. How
    many there are shows by going through it once more at the beginning of each pass.
    """
    if not isinstance(data, DataLoader) and (hasattr(data, "__getitem__") or not _begins_anew(data)):
        return streams.stretch(data, axis, multiple)
    if parts() == 1 or isinstance(data, StretchedBatches):
        return data
    if not isinstance(data, DataLoader):
        return StretchedBatches(data)
    if isinstance(data.dataset, IterableDataset):
        raise TypeError(
            "stretch() got a DataLoader over an IterableDataset: a stream whose end is not known cannot be "
            "cut; give each rank files of its own"
        )
    if data not in _cut:
        _cut[data] = _stretched(data, get_rank(), parts())
    return _cut[data]


def _stretched(loader: DataLoader[Any], rank: int, n: int) -> DataLoader[Any]:
    stretched, batches = copy.copy(loader), loader.batch_sampler
    if batches is None:
        changes: dict[str, Any] = {"sampler": StretchedSampler(loader.sampler, rank, n, 1)}
    elif type(batches) is BatchSampler:
        sampler = StretchedSampler(batches.sampler, rank, n, batches.batch_size)
        changes = {"sampler": sampler, "batch_sampler": BatchSampler(sampler, batches.batch_size, batches.drop_last)}
    else:
        changes = {"batch_sampler": StretchedSampler(batches, rank, n, 1)}
    # The loader guards these attributes against assignment after construction.
    vars(stretched).update(changes)
    return stretched


def _begins_anew(data: Any) -> bool:
    return hasattr(data, "__iter__") and iter(data) is not data


class StretchedBatches:
    """A stretch of the batches of an object that begins anew whenever it is gone through."""

    def __init__(self, batches: Any) -> None:
        self._batches = batches

    def __iter__(self) -> Iterator[Any]:
        length = sum(1 for _ in self._batches)
        streams.check_equal_lengths(type(self._batches).__name__, str(length), "stretch")
        return islice(iter(self._batches), *streams.bounds(length, get_rank(), parts()))


class StretchedSampler(ShardedSampler):
    """A stretch of another sampler's order, the one that rank 0 draws; a multiple of ``batch`` entries."""

    def __init__(self, sampler: Any, rank: int, n: int, batch: int) -> None:
        super().__init__(sampler, rank, n)
        self._bounds = streams.bounds(len(sampler), rank, n, batch)

    def __len__(self) -> int:
        return self._bounds[1] - self._bounds[0]

    def __iter__(self) -> Iterator[Any]:
        yield from order_of_rank0(list(self._sampler))[slice(*self._bounds)]
