"""Global batches that the ranks do not divide: shares differ by one sample, and each rank's gradients count by its own.

    61 samples, 8 to a global batch, 3 ranks:   3 3 2 | 3 3 2 | ... | 2 2 1
    the weights of their gradients:             9/8 9/8 6/8         | 6/5 6/5 3/5

The mean over the ranks of the weighed means is then the mean over the global batch, and no sample is there twice.
"""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import cache
from itertools import repeat
from typing import Any

import torch
from torch import Tensor

from dl_comm import parts, shares
from dl_comm.ranks import is_rank0
from dl_comm.reduction.layout import Layout, layout_of
from dl_comm.torch.parameters import holds_gradient


def share_of(length: int, rank: int, n: int) -> int:
    """Return how many of ``length`` entries rank ``rank`` of n takes: the first ranks have one more."""
    return length // n + (rank < length % n)


class Blocks:
    """How an order of ``length`` entries is cut into global batches of ``size``, and these among n ranks.

    A rank that would have no entry of the last one works on another's, which counts for no gradient.
    """

    def __init__(self, length: int, size: int, rank: int, n: int, drop_last: bool) -> None:
        self._length = length - length % size if drop_last else length
        self._size, self._rank, self._n = size, rank, n

    def mine(self) -> int:
        """Return how many entries this rank takes in all."""
        whole, rest = divmod(self._length, self._size)
        last = max(1, share_of(rest, self._rank, self._n)) if rest else 0
        return whole * share_of(self._size, self._rank, self._n) + last

    def weights(self) -> Iterator[float]:
        """Yield, for each of this rank's batches, n times its part of the samples of the global batch."""
        whole, rest = divmod(self._length, self._size)
        yield from repeat(self._weight(self._size), whole)
        if rest:
            yield self._weight(rest)

    def alike(self) -> bool:
        """Tell whether all ranks have as many samples of every global batch."""
        return self._length % self._n == 0 and (self._size % self._n == 0 or self._length < self._size)

    def idle(self) -> tuple[int, int]:
        """Return how many samples the last global batch has, and how many ranks have none of them."""
        rest = self._length % self._size
        return rest, max(0, self._n - rest) if rest else 0

    def uneven(self) -> tuple[int, int]:
        """Return the size of a global batch, 0 where the ranks divide it, and their number."""
        return self._size * (self._size % self._n > 0 and self._length >= self._size), self._n

    def _weight(self, length: int) -> float:
        return self._n * share_of(length, self._rank, self._n) / length


class WeighedBatches:
    """The batches of a loader's iterator; while one is worked on, gradients count by ``weights``."""

    def __init__(self, batches: Any, weights: Iterator[float]) -> None:
        self._batches, self._before = batches, parts.current_weight()
        self._left: Iterator[float] | None = weights

    def __getattr__(self, name: str) -> Any:
        return getattr(self._batches, name)

    def __iter__(self) -> WeighedBatches:
        return self

    def __len__(self) -> int:
        return len(self._batches)

    def __next__(self) -> Any:
        try:
            batch = next(self._batches)
        except BaseException:
            self._end()
            raise
        _change(1.0 if self._left is None else next(self._left, 1.0))
        return batch

    def __del__(self) -> None:
        self._end()

    def _end(self) -> None:
        """Go back to the weight from before, once: a loop that is left early ends here, too."""
        if self._left is not None:
            self._left = None
            parts.set_weight(self._before)

    def layout_of_share(self) -> Layout | None:
        """Return how the batches lie in the serial order."""
        return layout_of(self._batches)


_averaged: list[weakref.ref[Tensor]] = []  # the parameters whose gradients were averaged last
_accumulating: list[weakref.ref[Tensor]] = []  # the same, while these gradients are kept for a later step
_kept: list[tuple[weakref.ref[Tensor], Tensor]] = []  # what they were before a batch that does not count


@torch.no_grad()
def weigh(tensors: Sequence[Tensor], done: Collection[int] = ()) -> None:
    """Let this rank's gradients count by its samples, but those of the tensors whose ``id`` is in ``done``."""
    if (weight := parts.weight_of_gradients()) != 1.0:
        _scale((tensor for tensor in tensors if id(tensor) not in done), weight)
    for ref, grad in _kept:
        if (tensor := ref()) is not None and tensor.grad is not None:
            tensor.grad.copy_(grad)
    _averaged[:] = [weakref.ref(tensor) for tensor in tensors if tensor.is_leaf]
    _accumulating.clear()
    _kept.clear()


@torch.no_grad()
def _change(weight: float) -> None:
    """Let gradients count ``weight`` times from here on; those that are kept for a later step keep their own weight."""
    before = parts.weight_of_gradients()
    _kept.clear()
    if before != weight:
        kept = [tensor for ref in _accumulating if (tensor := ref()) is not None and tensor.grad is not None]
        if weight:
            _scale(kept, before / weight)
        else:
            _kept[:] = [(weakref.ref(tensor), tensor.grad * before) for tensor in kept if tensor.grad is not None]
    _accumulating[:] = _averaged
    parts.set_weight(weight)


def _scale(tensors: Iterable[Tensor], factor: float) -> None:
    for tensor in tensors:
        grad = tensor.grad if holds_gradient(tensor) else tensor
        if grad is not None:
            grad.zero_() if factor == 0.0 else grad.mul_(factor)


def partial_sum(value: Any) -> Any:
    """Return ``value``, a sum over this rank's share of the samples, times n: the mean over ranks is the whole sum.

    For losses that are sums: the gradients' mean is then that of the sum over all samples, also where ranks have
    shares of different sizes. ``value`` is a tensor, an array or a number. On one rank, and where all repeat the serial
    run (``DL_COMM_REPLICATE``), it comes back itself.

    Rank 0 warns, once, where a global batch was shared in equal lengths with entries repeated: means over such shares
    are exact, but sums count these entries as often as they occur.
    """
    whole, weight = shares.partial_sum(value), parts.weight_of_gradients()
    if weight == 1.0:
        return whole
    if weight == 0.0:  # this rank has no sample of the batch
        return whole * 0
    if not isinstance(whole, Tensor) or not whole.requires_grad:
        return whole
    unweighed = whole / weight  # gradients() multiplies by the weight
    return unweighed + (whole - unweighed).detach()


@cache
def weighing(kind: Any) -> Any:
    """Return the class of ``kind``'s loaders whose batches are weighed where the ranks' shares differ."""

    def iterate(self: Any) -> Any:
        batches = kind.__iter__(self)
        blocks = self.batch_sampler.sampler.blocks()
        if blocks is None or blocks.alike():
            return batches
        _tell(self, blocks)
        return WeighedBatches(batches, blocks.weights())

    body = {"__iter__": iterate, "__module__": kind.__module__, "__doc__": kind.__doc__}
    return type(kind)(kind.__name__, (kind,), body)


def _tell(loader: Any, blocks: Blocks) -> None:
    if "_dl_told" in vars(loader) or not is_rank0():
        return
    vars(loader)["_dl_told"] = True
    size, n = blocks.uneven()
    if size:
        warnings.warn(
            f"{n} ranks do not divide a global batch of {size}: gradients count by a rank's samples, and are exact; "
            "means that are shown are means of the ranks' means",
            stacklevel=3,
        )
    rest, idle = blocks.idle()
    if idle:
        warnings.warn(
            f"the last global batch has {rest} sample{'s' * (rest > 1)} for {rest + idle} ranks: those without one "
            "work on another's, which does not count for the gradients, but in sums of the script's own",
            stacklevel=3,
        )
