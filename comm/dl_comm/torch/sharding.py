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
from dl_comm.parts import share_of
from dl_comm.ranks import check_enough, get_rank, parts, shifted_seed
from dl_comm.reduction.layout import Layout, note
from dl_comm.shard_iterators import shard_calls, without_restart
from dl_comm.shares import check_side_by_side
from dl_comm.torch.arrays import Share, check_equal_lengths, shard_sequence
from dl_comm.torch.divided import DividedBatches, DividedSampler, is_one_batch
from dl_comm.torch.shard_iterators import ShardedIterator, ShardedStream
from dl_comm.torch.uneven import Blocks, weighing
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
    k-th batch of the n ranks is the serial run's k-th batch, as many of them as there, for an unchanged learning rate;
    ``loader.batch_size`` stays B.
    Where n does not divide B, or a last batch, the first ranks have one sample more, and ``gradients`` counts each
    rank's by its samples. Where a last batch has fewer samples than there are ranks, those without one work on another
    rank's, which counts for no gradient; rank 0 warns that sums of the script's own count it.

    *A DataLoader* becomes a loader with the same local batch size, so that the global batch is n times as large.
    Whatever it was given stays: sampler or batch sampler, workers, collate function, pinning, generator. At each
    ``iter()`` every rank draws the order from its own copy of the sampler, as the serial script does, and all use the
    order that rank 0 drew. So the k-th global batch of n ranks with batch size B/n is the serial run's k-th batch of
    size B. No sample is there twice; ``drop_last`` leaves out global batches that are shorter. ``len()`` counts this
    rank's batches, as many on all ranks; ``loader.dataset`` is the whole data set. A batch sampler of the user's own is
    shared batch by batch, or each of its batches is divided; where the local batch stays, so is the order of a sampler
    of their own: it may put samples side by side that belong into one batch. A loader that already has a
    ``DistributedSampler`` over several replicas is returned as it is.

    *An IterableDataset* (alone or in a loader, with any number of workers) is read by every rank, which keeps every
    n-th sample and pads at the end; so it must yield the same stream on all ranks. What it draws at random all ranks
    draw alike for that, in the main process and in workers, from rank 0's random numbers; a generator of its own must
    be seeded alike.

    *Tensors, arrays, lists, ranges, DataFrames* give the entries r, r + n, ... of axis 0, padded from the beginning
    to equal lengths (of a range rank 0 says so); *a map-style Dataset* gives the Subset of these; a tuple or dict of
    arrays is shared array by array; *a generator* or other iterable is read by every rank, like an IterableDataset.
    With ``batch="global"`` it yields batches: tensors, arrays, or tuples, lists, dicts and dataclasses of such, all of
    one length, of which each rank takes every n-th sample; ``iter(batches)`` says so of a list.

    *Arrays that are one batch*, taken whole at every step, are shared with ``batch="global"``: where n does not divide
    their length, entries are repeated, each as often as the others, so that the mean over ranks of a mean over samples
    is that over all. With ``equal=False`` no entry is repeated and lengths may differ by one: for ``partial_sum``.
    The arrays of a tuple must then be equally long: they hold the same samples.

    *A function* that returns the next samples at each call becomes one that calls it n times and returns the r-th
    result.

    What ``shard`` returned for a loader or data set is not divided a second time. Raises ``TypeError`` for anything
    else, ``dl_comm.CommError`` on every rank when the ranks' data differ in length or are fewer than the ranks, when a
    ``"global"`` batch has fewer samples than there are ranks, or n does not divide that of a stream.
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
    if n == 1 or isinstance(data, (Share, ShardedStream, WholeBatches, DividedBatches)):
        return data
    if isinstance(data, DataLoader):
        if data not in _sharded:
            _sharded[data] = _shard_loader(data, get_rank(), n, n if batch == "global" else 1)
        return _sharded[data]
    if batch == "global" and not is_one_batch(data):
        divided = DividedBatches(data, get_rank(), n)
        return iter(divided) if isinstance(data, Iterator) else divided
    if hasattr(data, "__len__") and hasattr(data, "__getitem__") and not isinstance(data, IterableDataset):
        return shard_sequence(data, get_rank(), n, batch, equal)
    if not isinstance(data, Iterator):
        return ShardedStream(data, get_rank(), n)
    own = isinstance(type(data).__iter__, FunctionType)  # and so may begin anew in each epoch
    sharded = ShardedStream(data, get_rank(), n)
    return ShardedIterator(data, get_rank(), n) if own else note(iter(sharded), Layout("batches"))


def _shard_loader(loader: DataLoader[Any], rank: int, n: int, divide: int) -> DataLoader[Any]:
    """Return the loader of one rank of n, whose batches are 1/``divide`` of those that ``loader`` has."""
    if isinstance(loader.dataset, ShardedStream) or isinstance(loader.batch_sampler, (ShardedSampler, DividedSampler)):
        return loader
    drawn = loader.sampler if loader.batch_sampler is None else getattr(loader.batch_sampler, "sampler", None)
    if isinstance(drawn, ShardedSampler) or isinstance(loader.batch_sampler, SampledBatches):
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
            size = _even_batch(loader.batch_size, divide)
            changes |= {"batch_size": size, "batch_sampler": BatchSampler(loader.sampler, size, loader.drop_last)}
    else:
        check_equal_lengths(loader.dataset)
        changes |= _sharded_samplers(loader, rank, n, divide)
        if isinstance(changes.get("batch_sampler"), (BatchSampler, DividedSampler)):
            kind: Any = type(loader)
            sharded.__class__ = weighing(kind)
        if loader.generator is not None and rank > 0:
            # The seeds of the workers come from it: other ranks' workers shall augment differently.
            changes["generator"] = torch.Generator()
            changes["generator"].manual_seed(shifted_seed(loader.generator.get_state().numpy().tobytes(), rank))
    # The loader guards these attributes against assignment after construction.
    vars(sharded).update(changes)
    return sharded


def _even_batch(size: int | None, n: int) -> int:
    """Return a rank's batch size where its data are a stream, which is sharded sample by sample."""
    whole = _check_divisible(size, n)
    if whole % n:
        raise CommError(
            f"shard(batch='global'): a global batch of {size} of a stream cannot be divided among {n} ranks",
            f"Choose a batch size that is a multiple of {n}, or a number of ranks that divides {size}.",
        )
    return whole // n


def _check_divisible(size: int | None, n: int) -> int:
    """Return ``size``, that of global batches, where each of n ranks has a part of them."""
    if size is None:
        raise CommError(
            "shard(batch='global') got a DataLoader with batch_size=None: no batches to divide.",
            "Give it a batch_size, or keep the local batch: shard(loader).",
        )
    if size < n:
        raise CommError(
            f"shard(batch='global'): a global batch of {size} cannot be divided among {n} ranks",
            f"Launch at most {size} rank{'s' * (size > 1)}, or choose a larger batch size.",
        )
    return size


def _sharded_samplers(loader: DataLoader[Any], rank: int, n: int, divide: int) -> dict[str, Any]:
    batches = loader.batch_sampler
    own = batches is not None and type(batches) is not BatchSampler
    drawn: Any = batches if own else loader.sampler
    known = hasattr(drawn, "__len__")
    if known:
        check_enough(
            len(drawn),
            n if not own or divide == 1 else 1,
            "batches of its batch sampler" if own else "entries of its sampler",
        )
    if batches is None and divide > 1:
        _check_divisible(None, divide)
    if batches is None:  # no automatic batching: the sampler's entries are the batches
        return {"sampler": ShardedSampler(loader.sampler, rank, n)}
    if type(batches) is BatchSampler:
        return _divided(loader, batches, rank, n, divide)
    return {"batch_sampler": DividedSampler(batches, rank, n) if divide > 1 else ShardedSampler(batches, rank, n)}


def _divided(loader: DataLoader[Any], batches: Any, rank: int, n: int, divide: int) -> dict[str, Any]:
    """Return what changes of a loader whose batches are cut out of its sampler's order.

    ``loader.sampler`` stays: its length is the serial number of samples, by which scripts divide their sums.
    """
    entries = len(batches.sampler) if hasattr(batches.sampler, "__len__") else None
    size = batches.batch_size if divide == 1 else _check_divisible(batches.batch_size, n)
    if divide > 1 and entries is not None:
        size = min(size, entries)
    together = size * n // divide
    if batches.drop_last and entries is not None and entries < together and entries >= size:
        raise CommError(
            f"shard: {entries} entries on {n} ranks make no batch of {size}, and drop_last leaves out what is "
            "shorter: nothing would be trained on",
            f"Use at most {entries // size} ranks, or smaller batches, or drop_last=False.",
        )
    sampler = ShardedSampler(batches.sampler, rank, n, batches.drop_last, together, size, strided=divide > 1)
    local = share_of(together, rank, n)
    return {"batch_sampler": BatchSampler(sampler, local, batches.drop_last)}


class ShardedSampler(Sampler[Any]):
    """This rank's part of each ``block`` of another sampler's order, the one that rank 0 draws.

    Parts of a block follow each other, or are ``strided``: every n-th entry. Where n does not divide a block, the first
    ranks have one more entry. Iterating is collective. Attributes it lacks are the other sampler's (``set_epoch``,
    ``weights``, ``batch_size``).
    """

    def __init__(
        self,
        sampler: Any,
        rank: int,
        n: int,
        drop_last: bool = False,
        block: int = 0,
        batch: int = 0,
        strided: bool = False,
    ) -> None:
        self._sampler, self._rank, self._n, self._drop_last = sampler, rank, n, drop_last
        self._block, self._strided = block, strided  # no block: entries are whole batches, one for each rank
        self._batch = batch  # of the serial script

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._sampler, name)

    def blocks(self) -> Blocks | None:
        """Return how the order is cut now; None where its length is not known, or its entries are batches."""
        if not self._block or not hasattr(self._sampler, "__len__"):
            return None
        return Blocks(len(self._sampler), self._block, self._rank, self._n, self._drop_last, self._batch)

    def __len__(self) -> int:
        if (blocks := self.blocks()) is not None:
            return blocks.mine()
        length = len(self._sampler)
        return length // self._n if self._drop_last else -(-length // self._n)

    def __iter__(self) -> Iterator[Any]:
        # Every rank runs its sampler, so that random streams and samplers' own counters advance as in the serial run.
        entries = without_restart(self._sampler)
        # What is drawn at once holds a whole order where its length is known, and shows by being short that it ended.
        known = min(len(self._sampler), _LONGEST) if hasattr(self._sampler, "__len__") else self._n * _BLOCK
        together = self._block or self._n
        drawn = together * (known // together + 1)
        head: list[Any] = []
        while True:
            order = order_of_rank0(list(islice(entries, drawn)))
            ended = len(order) < drawn
            head = head or order[: self._n]
            for at in range(0, len(order), together):
                yield from self._part(order[at : at + together], together, head)
            if ended:
                return

    def _part(self, block: list[Any], whole: int, head: list[Any]) -> list[Any]:
        """Return this rank's entries of a block; of the last one it has one of another rank's where it has no other."""
        if len(block) < whole and self._drop_last:
            return []
        if not self._block:
            block = block + [head[i % len(head)] for i in range(self._n - len(block))]
        if self._strided:
            return block[self._rank :: self._n] or block[-1:]
        first = sum(share_of(len(block), rank, self._n) for rank in range(self._rank))
        return block[first : first + share_of(len(block), self._rank, self._n)] or block[-1:]
