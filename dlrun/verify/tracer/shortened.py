"""Loaders that are cut to a few batches, and random numbers that follow from the batch they are drawn for.

So a script comes to the end of an epoch, of an evaluation and of itself in a few steps; its loaders still know how long
they are. A loader that trains gets a multiple of n batches: n ranks that take whole batches have those of the serial
script between them. Others keep a shorter last batch, and a number of batches that n does not divide.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

from torch.utils.data import (
    BatchSampler,
    DataLoader,
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from dlrun.verify.tracer.recorder import UNCUT, Orders

PLAIN = (RandomSampler, SequentialSampler, SubsetRandomSampler, WeightedRandomSampler)


class First(Sampler[Any]):
    """The first entries of another sampler's order. Attributes that it lacks are the other's.

    ``turn`` entries of each ``block`` come last, so that another batch of it does.
    """

    def __init__(self, sampler: Any, count: int, block: int = 1, turn: int = 0) -> None:
        self._sampler, self._count, self._block, self._turn = sampler, count, block, turn

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._sampler, name)

    def __len__(self) -> int:
        return min(self._count, len(self._sampler))

    def __iter__(self) -> Iterator[Any]:
        entries = islice(iter(self._sampler), self._count)
        while block := list(islice(entries, self._block)):
            turn = self._turn if len(block) == self._block else 0
            yield from block[turn:] + block[:turn]


def shorten(loader: DataLoader[Any], orders: Orders, trains: bool) -> None:
    """Leave a loader with ``orders.few`` batches for each rank; one that has fewer keeps them."""
    batches = loader.batch_sampler
    if type(batches) is not BatchSampler or type(batches.sampler) not in PLAIN:
        return
    size, n = batches.batch_size, orders.shares
    every: int = len(batches.sampler)  # type: ignore[arg-type]
    if orders.tails and trains:
        _limit(batches.sampler, min(every, n * orders.few * size + every % (n * size)))
        return
    count, full = every, every // size // n * n
    if orders.few != UNCUT:
        uneven = min(every, (n * orders.few + 1) * size + every % size)
        count = min(full, n * orders.few) * size if trains and full else uneven
    turn = orders.turn * size if trains else 0
    if count < every or turn:
        # The loader guards this attribute against assignment after construction.
        vars(loader)["sampler"] = batches.sampler = First(batches.sampler, count, n * size if turn else 1, turn)


def _limit(sampler: Any, count: int) -> None:
    """Leave one of PyTorch's samplers, which stays what it is, so many entries."""
    if isinstance(sampler, SubsetRandomSampler):
        sampler.indices = sampler.indices[:count]
    elif isinstance(sampler, WeightedRandomSampler):
        sampler.num_samples = count
    else:
        sampler.data_source = range(count)
        if getattr(sampler, "_num_samples", None) is not None:
            sampler._num_samples = count


def alone(given: dict[str, Any]) -> dict[str, Any]:
    """Return a loader's arguments without its workers: they have generators of their own."""
    left = ("num_workers", "prefetch_factor", "persistent_workers", "multiprocessing_context", "timeout")
    return {name: value for name, value in given.items() if name not in left}
