"""This rank's share of the data: of a DataLoader's batches, of a data set, of an array."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from itertools import islice
from types import FunctionType
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler, IterableDataset, Sampler
from torch.utils.data.dataloader import _BaseDataLoaderIter

from dl_comm import CommError, _core
from dl_comm.ranks import check_enough, get_rank, parts, shifted_seed
from dl_comm.reduction.layout import Layout, note
from dl_comm.shard_iterators import shard_calls, without_restart
from dl_comm.shares import check_side_by_side
from dl_comm.torch.arrays import Share, check_equal_lengths, shard_sequence
from dl_comm.torch.shard_iterators import ShardedIterator, ShardedStream
from dl_comm.torch.whole_batches import SampledBatches, order_of_rank0, share_whole
from dl_comm.whole_batches import WholeBatches, check_whole

# An order of unknown length (an endless sampler) is drawn and shared in blocks of so many entries per rank.
_BLOCK = 1024
_LONGEST = 1 << 22  # entries of a known order that are drawn at once: a sampler that promises 10**10 has its blocks


# A loader that is sharded again, say at each epoch, is the same loader again: its workers persist.
_sharded: WeakKeyDictionary[DataLoader[Any], DataLoader[Any]] = WeakKeyDictionary()


def shard(data: Any, batch: str = "local", equal: bool = True, whole: str = "") -> Any:
    """Return this rank's 1/n of ``data``; on 1 rank ``data`` itself.

    With ``whole="batches"``, for evaluations, the serial script's batches are sharded as they are: rank r takes
    batches r, r + n, ..., none is padded or repeated, so ranks may have one more than others, or none. What is added
    up or gathered over them (``total``, ``gather``) is exactly the serial script's. ``len()`` counts this rank's
    batches; ``total(count)`` gives the serial number. A DataLoader with a map-style data set reads this rank's batches
    alone; other loaders, iterable data sets and generators are read whole by each rank. Of arrays, lists, tuples and
    ranges each entry is a batch: ``for i in dl.shard(range(0, len(x), 32), whole="batches")``.

    ``batch`` says what a loader's batch size stands for. ``"local"``: for what each rank takes at a step, so that the
    global batch is n times as large. ``"global"``: for what all ranks take together, so that each takes B/n and the
    k-th batch of the n ranks is the serial run's k-th batch, as many of them as there, for an unchanged learning rate.
    A last batch, or one of all samples, that n does not divide is padded.

    *A DataLoader* becomes a loader with the same local batch size, so that the global batch is n times as large.
    Whatever it was given stays: sampler or batch sampler, workers, collate function, pinning, generator. At each
    ``iter()`` every rank draws the order from its own copy of the sampler, as the serial script does, and all use the
    order that rank 0 drew; rank r takes every n-th entry from the r-th. So the k-th global batch of n ranks with
    batch size B/n is the serial run's k-th batch of size B. Orders that n does not divide are padded from their
    beginning (each rank must do the same number of steps), or cut with ``drop_last``. ``len()`` counts this rank's
    batches, ``loader.dataset`` is the whole data set. A batch sampler of the user's own is shared batch by batch, and
    so is, where the local batch stays, the order of a sampler of their own: it may put samples side by side that belong
    into one batch. A loader that already has a ``DistributedSampler`` over several replicas is returned as it is.

    *An IterableDataset* (alone or in a loader, with any number of workers) is read by every rank, which keeps every
    n-th sample and pads at the end; so it must yield the same stream on all ranks. What it draws at random all ranks
    draw alike for that, in the main process and in workers, from rank 0's random numbers; a generator of its own must
    be seeded alike.

    *Tensors, arrays, lists, ranges, DataFrames* give the entries r, r + n, ... of axis 0, padded from the beginning
    to equal lengths; *a map-style Dataset* gives the Subset of these; a tuple or dict of arrays is shared array by
    array; *a generator* or other iterable is read by every rank, like an IterableDataset.

    *Arrays that are one batch*, taken whole at every step, are shared with ``batch="global"``: where n does not divide
    their length, entries are repeated, each as often as the others, so that the mean over ranks of a mean over samples
    is that over all. With ``equal=False`` no entry is repeated and lengths may differ by one: for ``partial_sum``.
    The arrays of a tuple must then be equally long: they hold the same samples.

    *A function* that returns the next samples at each call becomes one that calls it n times and returns the r-th
    result.

    What ``shard`` returned for a loader or data set is not divided a second time. Raises ``TypeError`` for anything
    else, ``dl_comm.CommError`` on every rank when the ranks' data differ in length or are fewer than the ranks, or when
    n does not divide a ``"global"`` batch size.
    """
    if batch not in ("local", "global"):
        raise ValueError(f"shard() got batch={batch!r}; it is 'local' or 'global'")
    n = parts()
    check_whole(whole)
    if whole and n > 1:
        return share_whole(data, get_rank(), n)
    if isinstance(data, Mapping):
        return {name: shard(part, batch, equal) for name, part in data.items()} if n > 1 else data
    if isinstance(data, tuple) and any(isinstance(part, (Tensor, np.ndarray, list)) for part in data):
        if batch == "global" or not equal:
            check_side_by_side([len(part) for part in data if hasattr(part, "__len__")])
        return tuple(shard(part, batch, equal) for part in data) if n > 1 else data
    if callable(data) and not hasattr(data, "__iter__") and not hasattr(data, "__getitem__"):
        return shard_calls(data, get_rank(), n) if n > 1 else data
    if isinstance(data, (str, bytes)) or not (hasattr(data, "__iter__") or hasattr(data, "__getitem__")):
        raise TypeError(
            f"shard() got {type(data).__name__}; it takes a DataLoader, a Dataset, a tensor, an array, a list or "
            "another iterable"
        )
    if n == 1 or isinstance(data, (Share, ShardedStream, WholeBatches)):
        return data
    if isinstance(data, DataLoader):
        if data not in _sharded:
            _sharded[data] = _shard_loader(data, get_rank(), n, n if batch == "global" else 1)
        return _sharded[data]
    if batch == "global" and not (hasattr(data, "__len__") and hasattr(data, "__getitem__")):
        raise TypeError(
            f"shard(batch='global') got {type(data).__name__}, whose batches it cannot divide; it takes a DataLoader"
        )
    if hasattr(data, "__len__") and hasattr(data, "__getitem__") and not isinstance(data, IterableDataset):
        return shard_sequence(data, get_rank(), n, batch, equal)
    if not isinstance(data, Iterator):
        return ShardedStream(data, get_rank(), n)
    own = isinstance(type(data).__iter__, FunctionType)  # and so may begin anew in each epoch
    sharded = ShardedStream(data, get_rank(), n)
    return ShardedIterator(data, get_rank(), n) if own else note(iter(sharded), Layout("batches"))


def _shard_loader(loader: DataLoader[Any], rank: int, n: int, divide: int) -> DataLoader[Any]:
    """Return the loader of one rank of n, whose batches are 1/``divide`` of those that ``loader`` has."""
    if isinstance(loader.dataset, ShardedStream) or isinstance(loader.batch_sampler, ShardedSampler):
        return loader
    if isinstance(loader.sampler, ShardedSampler) or isinstance(loader.batch_sampler, SampledBatches):
        return loader
    if isinstance(loader.sampler, DistributedSampler) and loader.sampler.num_replicas > 1:
        return loader
    held = [name for name, value in vars(loader).items() if isinstance(value, _BaseDataLoaderIter)]
    if held:
        raise TypeError(
            f"shard() got a {type(loader).__name__} that already iterates over all the data (in its {held[0]!r}); "
            "shard a plain torch.utils.data.DataLoader, or this one before its first iteration"
        )
    sharded = copy.copy(loader)
    changes: dict[str, Any] = {"_IterableDataset_len_called": None}
    if isinstance(loader.dataset, IterableDataset):
        changes["dataset"] = ShardedStream(loader.dataset, rank, n, loader.batch_size or 1)
        changes["generator"] = torch.Generator()
        seed = shifted_seed(torch.get_rng_state().numpy().tobytes(), n)
        changes["generator"].manual_seed(int(_core.broadcast_bytes(str(seed).encode(), 0)))
        if divide > 1:
            size = _local_batch(loader.batch_size, divide)
            changes |= {"batch_size": size, "batch_sampler": BatchSampler(loader.sampler, size, loader.drop_last)}
    else:
        check_equal_lengths(loader.dataset)
        changes |= _sharded_samplers(loader, rank, n, divide)
        if loader.generator is not None and rank > 0:
            # The seeds of the workers come from it: other ranks' workers shall augment differently.
            changes["generator"] = torch.Generator()
            changes["generator"].manual_seed(shifted_seed(loader.generator.get_state().numpy().tobytes(), rank))
    # The loader guards these attributes against assignment after construction.
    vars(sharded).update(changes)
    return sharded


def _local_batch(size: int | None, divide: int) -> int:
    """Return a rank's batch size: ``size`` divided by ``divide``, which must go into it."""
    if size is None:
        raise CommError(
            "shard(batch='global') got a DataLoader with batch_size=None: no batches to divide.",
            "Give it a batch_size, or keep the local batch: shard(loader).",
        )
    if size % divide:
        fits = [m for m in range(1, min(size, 2 * divide) + 1) if size % m == 0]
        raise CommError(
            f"shard(batch='global'): a global batch of {size} cannot be divided among {divide} ranks",
            f"Launch {' or '.join(map(str, fits))} ranks, or choose a batch size that is a multiple of {divide}.",
        )
    return size // divide


def _sharded_samplers(loader: DataLoader[Any], rank: int, n: int, divide: int) -> dict[str, Any]:
    batches = loader.batch_sampler
    own = batches is not None and type(batches) is not BatchSampler
    drawn: Any = batches if own else loader.sampler
    if hasattr(drawn, "__len__"):
        check_enough(len(drawn), n, "batches of its batch sampler" if own else "entries of its sampler")
    if batches is None and divide > 1:
        _local_batch(None, divide)
    if batches is None:  # no automatic batching: the sampler's entries are the batches
        return {"sampler": ShardedSampler(loader.sampler, rank, n)}
    if type(batches) is BatchSampler:
        together = divide > 1 and hasattr(drawn, "__len__") and len(drawn) <= batches.batch_size
        size = -(-len(drawn) // n) if together else _local_batch(batches.batch_size, divide)
        if batches.drop_last and hasattr(drawn, "__len__") and len(drawn) // n < size <= len(drawn):
            raise CommError(
                f"shard: {len(drawn)} entries on {n} ranks make no batch of {size}, and drop_last leaves out what is "
                "shorter: nothing would be trained on",
                f"Use at most {len(drawn) // size} ranks, or smaller batches, or drop_last=False.",
            )
        sampler = ShardedSampler(batches.sampler, rank, n, batches.drop_last, 1 if divide > 1 else size)
        sampler._divide = divide
        changes: dict[str, Any] = {"batch_size": size} if divide > 1 and loader.batch_size else {}
        return {**changes, "sampler": sampler, "batch_sampler": BatchSampler(sampler, size, batches.drop_last)}
    if divide > 1:
        raise TypeError(
            f"shard(batch='global') got a DataLoader with a {type(batches).__name__} of its own; "
            "its batches are sharded whole: shard(loader)"
        )
    return {"batch_sampler": ShardedSampler(batches, rank, n)}


class ShardedSampler(Sampler[Any]):
    """Every n-th entry of another sampler's order, the one that rank 0 draws; or every n-th of its ``runs`` of entries.

    Iterating is collective. Attributes it lacks are the other sampler's (``set_epoch``, ``weights``, ``batch_size``).
    """

    def __init__(self, sampler: Any, rank: int, n: int, drop_last: bool = False, runs: int = 1) -> None:
        self._sampler, self._rank, self._n, self._drop_last, self._runs = sampler, rank, n, drop_last, runs
        self._divide = 1  # into how many of the ranks' batches a serial one is divided

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._sampler, name)

    def __len__(self) -> int:
        length = len(self._sampler)
        return length // self._n if self._drop_last else -(-length // self._n)

    def __iter__(self) -> Iterator[Any]:
        # Every rank runs its sampler, so that random streams and samplers' own counters advance as in the serial run.
        entries = without_restart(self._sampler)
        # A block holds a whole order where its length is known, and shows that it ended by being incomplete.
        known = min(len(self._sampler), _LONGEST) if hasattr(self._sampler, "__len__") else self._n * _BLOCK
        together = self._n * self._runs
        block = together * (known // together + 1)
        head: list[Any] = []
        while True:
            order = order_of_rank0(list(islice(entries, block)))
            ended = len(order) < block
            head = head or order[: self._n]
            over = len(order) % self._n
            if over and self._drop_last:
                del order[-over:]
            elif over:
                order += [head[i % len(head)] for i in range(self._n - over)]
            for at in range(0, len(order), together):
                mine = min(together, len(order) - at) // self._n
                first = at + self._rank * mine
                yield from order[first : first + mine]
            if ended:
                return
