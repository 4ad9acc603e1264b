"""Whole batches of loaders: each exactly a batch of the serial script."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Iterator
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, Sampler, SequentialSampler

from dl_comm import _core
from dl_comm.reduction.layout import note
from dl_comm.shared_random import Alike
from dl_comm.whole_batches import WholeBatches, entries_of

# A loader that is shared again, say at each epoch, is the same loader again: its workers persist.
_shared: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()


class SampledBatches(Sampler[Any]):
    """Every n-th entry of a sampler whose entries are batches, or make one, in the order that rank 0 draws.

    Attributes it lacks are the other sampler's (``set_epoch``, ``batch_size``). Iterating is collective.
    """

    def __init__(self, batches: Any, rank: int, n: int) -> None:
        self._batches, self._rank, self._n = batches, rank, n
        self.sizes: tuple[int, ...] | None = None  # of this rank's batches in the last pass

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._batches, name)

    def __len__(self) -> int:
        return len(range(self._rank, len(self._batches), self._n))

    def __iter__(self) -> Iterator[Any]:
        sizes: list[int] = []
        for place, batch in enumerate(self._serial()):
            if place % self._n == self._rank:
                sizes.append(len(batch) if isinstance(batch, (list, tuple)) else 1)
                yield batch
        self.sizes = tuple(sizes)

    def _serial(self) -> Any:
        batches = self._batches
        sampler = batches.sampler if type(batches) is BatchSampler else batches
        if type(sampler) is SequentialSampler or not hasattr(sampler, "__len__"):
            return batches
        order = order_of_rank0(list(sampler))
        return BatchSampler(order, batches.batch_size, batches.drop_last) if sampler is not batches else order


def share_whole(data: Any, rank: int, n: int) -> Any:
    """Return the batches r, r + n, ... of a loader, a stream, or what can be indexed."""
    if isinstance(data, (WholeBatches, SampledBatches)) or data is None:
        return data
    if isinstance(data, DataLoader) and not isinstance(data.dataset, IterableDataset):
        if isinstance(data.batch_sampler, SampledBatches) or isinstance(data.sampler, SampledBatches):
            return data
        if data not in _shared:
            _shared[data] = loader_share(data, rank, n)
        return _shared[data]
    if isinstance(data, (str, bytes)) or not (hasattr(data, "__iter__") or hasattr(data, "__getitem__")):
        raise TypeError(
            f"shard(whole='batches') got {type(data).__name__}; it takes a DataLoader, a list, a range, an "
            "array or another iterable of batches"
        )
    if hasattr(data, "__len__") and hasattr(data, "__getitem__") and not isinstance(data, DataLoader):
        return entries_of(data, rank, n)
    batches = WholeBatches(data, rank, n, Alike)
    return note(iter(batches), batches.layout_of_share) if isinstance(data, Iterator) else batches


def loader_share(loader: DataLoader[Any], rank: int, n: int) -> DataLoader[Any]:
    """Return a loader of the batches rank, rank + n, ... of another."""
    shared = copy.copy(loader)
    changes: dict[str, Any] = {"_IterableDataset_len_called": None}
    if loader.batch_sampler is None:
        changes["sampler"] = SampledBatches(loader.sampler, rank, n)
    else:
        changes["batch_sampler"] = SampledBatches(loader.batch_sampler, rank, n)
    # The loader guards these attributes against assignment after construction.
    vars(shared).update(changes)
    return shared


def order_of_rank0(order: list[Any]) -> list[Any]:
    """Return rank 0's ``order``; plain indices travel as 8 bytes each, anything else is pickled."""
    plain = all(type(entry) is int for entry in order)
    packed = b"i" + np.array(order, dtype=np.int64).tobytes() if plain else b"p" + pickle.dumps(order)
    packed = _core.broadcast_bytes(packed, 0)
    if packed[:1] == b"p":
        return list(pickle.loads(packed[1:]))
    entries: list[int] = np.frombuffer(packed, dtype=np.int64, offset=1).tolist()
    return entries
