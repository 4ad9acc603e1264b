"""How the loaders, samplers and data sets of PyTorch that are shares lie in the serial order."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from torch.utils.data import BatchSampler, DataLoader, Dataset, DistributedSampler
from torch.utils.data.dataloader import _BaseDataLoaderIter

from dl_comm.ranks import parts
from dl_comm.reduction.layout import Layout, ShareOfList, layout_of, noted
from dl_comm.torch.divided import DividedSampler
from dl_comm.torch.shard_iterators import ShardedStream
from dl_comm.torch.sharding import ShardedSampler
from dl_comm.torch.stretching import StretchedBatches, StretchedSampler
from dl_comm.torch.whole_batches import SampledBatches

_MANY = 16  # a list with more is none of a data set's columns


def find(data: Any) -> Layout | None:
    """Return the layout of what is a share, or made of one; None of what each rank has whole."""
    if isinstance(data, ShardedStream):
        return _of_stream(data)
    if isinstance(data, StretchedBatches):
        return Layout("stretches")
    if isinstance(data, _BaseDataLoaderIter):
        batches = data._index_sampler
        return _of_sampler(batches) or _of_batches(batches) or _of_set(data._dataset)
    if isinstance(data, DataLoader):
        return _of_loader(data)
    return _of_data(data) if isinstance(data, Dataset) else None


def serial_length(loader: Any) -> int:
    """Return how many batches the serial script's loader, or batch sampler, has, of which ``loader`` is a share.

    Of what is no share, and on 1 rank, it is ``len(loader)``. A share is as long on all ranks: where they do not divide
    the batches, n times its length is more. Where the serial length is not known, of streams, it is n times its length.
    """
    batches: Any = getattr(loader, "batch_sampler", loader)
    sampler: Any = batches.sampler if isinstance(batches, BatchSampler) else batches
    if isinstance(sampler, ShardedSampler) and (entries := _length(sampler._sampler)) is not None:
        if sampler is batches:
            return entries
        size = sampler._batch or batches.batch_size
        return entries // size if batches.drop_last else -(-entries // size)
    layout = layout_of(loader)
    if layout is None or isinstance(batches, DividedSampler):
        return len(loader)
    return layout.serial if layout.unit == "batches" and layout.serial is not None else parts() * len(loader)


def _of_loader(loader: Any) -> Layout | None:
    stream: Any = loader.dataset
    if isinstance(stream, ShardedStream) and loader.batch_size is not None:
        whole = _length(stream._dataset)
        return Layout("entries", whole, None if whole is None else len(stream))
    found = _of_sampler(loader.batch_sampler) if loader.batch_sampler is not None else _of_sampler(loader.sampler)
    if found := found or _of_batches(loader.batch_sampler):
        return found
    of_set = _of_set(stream)
    return of_set and replace(of_set, batch=loader.batch_size)


def _of_set(data: Any) -> Layout | None:
    """Return the layout of a loader's data set."""
    return _of_data(data) if isinstance(data, Dataset) and noted(data) is None else layout_of(data)


def _of_sampler(sampler: Any) -> Layout | None:
    """Return the layout where the sampler's own entries are sharded."""
    if isinstance(sampler, DividedSampler):
        return sampler.layout_of_share()
    if isinstance(sampler, SampledBatches):
        whole = _length(sampler._batches)
        return Layout("batches", whole, None if whole is None else len(sampler), 1, None, sampler.sizes, True)
    if isinstance(sampler, StretchedSampler):
        return Layout("stretches")
    if isinstance(sampler, ShardedSampler):
        whole = _length(sampler._sampler)
        mine = None if whole is None else len(sampler)
        block, n = sampler._block, sampler._n
        run = 1 if sampler._strided or not block else block // n
        uneven = block if sampler._strided and block % n else None
        return Layout("batches", None if sampler._drop_last else whole, mine, run, block=uneven)
    if isinstance(sampler, DistributedSampler) and sampler.num_replicas > 1:
        return Layout("batches", None if sampler.drop_last else _length(sampler.dataset), len(sampler))
    return None


def _of_batches(batches: Any) -> Layout | None:
    """Return the layout of the samples that a batch sampler takes from a sampler that is sharded."""
    if not isinstance(batches, BatchSampler) or (found := _of_sampler(batches.sampler)) is None:
        return None
    mine = found.mine
    if mine is not None and batches.drop_last:
        mine -= mine % batches.batch_size
    unit = "entries" if found.unit == "batches" else found.unit
    sampler: Any = batches.sampler
    batch = sampler._block if getattr(sampler, "_strided", False) else batches.batch_size
    return Layout(unit, None if batches.drop_last else found.serial, mine, found.run, batch, block=found.block)


def _of_data(data: Any, seen: frozenset[int] = frozenset()) -> Layout | None:
    """Return the layout of a data set that holds a share: the tensors of a TensorDataset, the set of a Subset."""
    held = list(vars(data).values()) if isinstance(data, Dataset) and id(data) not in seen else []
    held += [part for value in held if type(value) in (list, tuple) and len(value) <= _MANY for part in value]
    for part in held:
        found = None
        if isinstance(part, ShardedStream):
            found = _of_stream(part)
        elif isinstance(part, Dataset):
            found = noted(part) or _of_data(part, seen | {id(data)})
        elif isinstance(part, ShareOfList) or hasattr(part, "shape"):
            found = layout_of(part)
        if found is not None:
            return found
    return None


def _of_stream(stream: ShardedStream) -> Layout:
    whole = _length(stream._dataset)
    return Layout("batches", whole, None if whole is None else len(stream))


def _length(data: Any) -> int | None:
    try:
        return len(data)
    except (TypeError, NotImplementedError):
        return None
