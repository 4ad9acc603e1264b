"""Global batches that the ranks do not divide: shares differ by one sample, and each rank's gradients count by its own.

    61 samples, 8 to a global batch, 3 ranks:   3 3 2 | 3 3 2 | ... | 2 2 1
    the weights of their gradients:             9/8 9/8 6/8         | 6/5 6/5 3/5

The mean over the ranks of the weighed means is then the mean over the global batch, and no sample is there twice.
"""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from itertools import repeat
from typing import Any

import torch
from torch import Tensor

from dl_comm import parts, shares
from dl_comm.parts import share_of, undivided
from dl_comm.ranks import is_rank0
from dl_comm.reduction.layout import Layout, layout_of
from dl_comm.torch.parameters import holds_gradient


class Blocks:
    """How an order of ``length`` entries is cut into global batches of ``size``, and these among n ranks.

    A rank that would have no entry of the last one works on another's, which counts for no gradient.
    """

    def __init__(self, length: int, size: int, rank: int, n: int, drop_last: bool, serial: int) -> None:
        """``serial`` is the size of the script's own batches, by which it drops what is left."""
        self._length, self._serial = (length - length % each if drop_last else length for each in (size, serial))
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

    def told(self) -> Iterator[str]:
        """Yield what is not the serial script's."""
        if self._size % self._n and self._length >= self._size:
            yield undivided(self._size, self._n)
        if self._length < self._serial:
            yield (
                f"drop_last leaves out {self._serial - self._length} of the {self._serial} samples that the serial "
                "script takes: "
                f"{self._n} ranks drop what is no global batch of {self._size}, and counts over the loop lack them"
            )
        rest = self._length % self._size
        if 0 < rest < self._n:
            yield (
                f"the last global batch has {rest} sample{'s' * (rest > 1)} for {self._n} ranks: those without one "
                "work on another's, which does not count for the gradients, but in sums of the script's own"
            )

    def _weight(self, length: int) -> float:
        return self._n * share_of(length, self._rank, self._n) / length


_CUT = 0  # stands for the loop that cuts its batches itself
_under_way: dict[int, float] = {}  # the loops over such batches, the one that took a batch last behind the others


class WeighedBatches:
    """The batches of a loader's iterator; while one is worked on, gradients count by ``weights``.

    Loops may be nested, and left early: the weight is that of the batch that was taken last by a loop that goes on.
    """

    def __init__(self, batches: Any, weights: Iterator[float], layout: Callable[[], Layout] | None = None) -> None:
        self._batches, self._weights, self._layout = batches, weights, layout

    def __getattr__(self, name: str) -> Any:
        if name == "_batches":
            raise AttributeError(name)
        return getattr(self._batches, name)

    def __iter__(self) -> WeighedBatches:
        return self

    def __len__(self) -> int:
        return len(self._batches)

    def __next__(self) -> Any:
        try:
            batch = next(self._batches)
        except BaseException:
            self._leave()
            raise
        _under_way.pop(id(self), None)
        _under_way[id(self)] = next(self._weights, 1.0)
        _change()
        return batch

    def __del__(self) -> None:
        self._leave()

    def _leave(self) -> None:
        if _under_way.pop(id(self), None) is not None:
            _change()

    def layout_of_share(self) -> Layout | None:
        """Return how the batches lie in the serial order."""
        return self._layout() if self._layout is not None else layout_of(self._batches)


def weigh_batch(weight: float) -> None:
    """Let gradients count by ``weight`` until another batch is taken: by the script, or by a loop over a loader."""
    _under_way.pop(_CUT, None)
    _under_way[_CUT] = weight
    _change()


_averaged: list[weakref.ref[Tensor]] = []  # the parameters whose gradients were averaged last
_accumulating: list[weakref.ref[Tensor]] = []  # the same, while these gradients are kept for a later step
_kept: list[tuple[weakref.ref[Tensor], Tensor]] = []  # what they were before a batch that does not count


def _restore() -> set[int]:
    """Set gradients back to what they were before a batch that does not count; return these parameters' ``id``s."""
    restored = set()
    for ref, grad in _kept:
        if (tensor := ref()) is not None and tensor.grad is not None:
            tensor.grad.copy_(grad)
            restored.add(id(tensor))
    _kept.clear()
    return restored


@contextmanager
def settled(tensors: Sequence[Tensor]) -> Iterator[None]:
    """Within it, gradients of a batch that does not count are those from before it, or 0."""
    if parts.weight_of_gradients() != 0.0:
        yield
        return
    with torch.no_grad():
        restored = _restore()
        for tensor in tensors:
            if id(tensor) not in restored:
                _scale_gradient(tensor, 0.0)
    with parts.weighing(1.0):
        yield


@torch.no_grad()
def weigh(tensors: Sequence[Tensor], done: Collection[int]) -> None:
    """Let this rank's gradients count by its samples, but those of the tensors whose ``id`` is in ``done``."""
    for tensor in tensors:
        if id(tensor) not in done:
            _scale_gradient(tensor, parts.weight_of_gradients())
    _averaged[:] = [weakref.ref(tensor) for tensor in tensors if tensor.is_leaf]
    _accumulating.clear()


def _scale_gradient(tensor: Tensor, weight: float) -> None:
    grad = tensor.grad if holds_gradient(tensor) else tensor
    if grad is not None:
        scale(grad, weight)


def scale(tensor: Tensor, weight: float) -> None:
    """Multiply in place; by 0 also what is not finite."""
    if weight == 0.0:
        tensor.zero_()
    elif weight != 1.0:
        tensor.mul_(weight)


@torch.no_grad()
def _change() -> None:
    """Let gradients count as the last batch does; those that are kept for a later step keep their own weight."""
    before, weight = parts.weight_of_gradients(), next(reversed(_under_way.values()), 1.0)
    if before != weight:
        restored = _restore()
        for ref in _accumulating:
            if (tensor := ref()) is None or tensor.grad is None:
                continue
            counts = 1.0 if id(tensor) in restored else before
            if weight:
                scale(tensor.grad, counts / weight)
            else:
                _kept.append((ref, tensor.grad * counts))
    _accumulating[:] = _averaged
    parts.set_weight(weight)


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
        if hasattr(type(self.batch_sampler), "part_weights"):  # of the type: samplers pass on a script's attributes
            return WeighedBatches(batches, self.batch_sampler.part_weights())
        blocks = self.batch_sampler.sampler.blocks()
        if blocks is not None and is_rank0() and "_dl_told" not in vars(self):
            vars(self)["_dl_told"] = True
            for text in blocks.told():
                warnings.warn(text, stacklevel=2)
        if not _under_way and (blocks is None or blocks.alike()):
            return batches
        if blocks is None:
            return WeighedBatches(batches, repeat(1.0))
        return WeighedBatches(batches, blocks.weights())

    body = {"__iter__": iterate, "__module__": kind.__module__, "__doc__": kind.__doc__}
    return type(kind)(kind.__name__, (kind,), body)
