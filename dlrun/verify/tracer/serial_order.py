"""A sampler of the port's own that shards samples by the ranks' numbers, in the order of the serial script.

``DistributedSampler`` draws an order from its seed and epoch, and so a right port with one cannot leave the serial
parameters. Where it shards for one rank alone, it is given the order in which the serial script's loader reads.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch.utils.data import DistributedSampler, RandomSampler, Sampler, SequentialSampler

from dlrun.verify.tracer.recorder import SHUFFLED


class InSerialOrder(Sampler[Any]):
    """Stands for a sampler: reads its data set as another does. What it lacks is the sampler's own (``set_epoch``)."""

    def __init__(self, own: Any, order: Sampler[Any]) -> None:
        self._own, self._order = own, order

    def __getattr__(self, name: str) -> Any:
        return getattr(self._own, name)

    def __len__(self) -> int:
        return len(self._own)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._order)


def in_serial_order(given: Mapping[str, Any], use: str) -> dict[str, Any]:
    """Return a loader's arguments, its DistributedSampler of one replica in the serial order.

    ``use``: what the serial script does with this loader. In which order it evaluates is of no account; one that
    does not shuffle, to train on, is compared as it is.
    """
    sampler, shuffles = given.get("sampler"), use == SHUFFLED
    if type(sampler) is not DistributedSampler or sampler.num_replicas != 1 or not use:
        return dict(given)
    if shuffles and not sampler.shuffle:
        return dict(given)
    data: Any = sampler.dataset
    generator: torch.Generator | None = given.get("generator")
    order = RandomSampler(data, generator=generator) if shuffles else SequentialSampler(data)
    return {**given, "sampler": InSerialOrder(sampler, order)}
