"""Batches that a script makes itself, of each of which a rank takes a part: every n-th of its samples."""

from __future__ import annotations

import dataclasses
import warnings
from collections import deque
from collections.abc import Iterator, Mapping
from functools import cache
from itertools import islice
from typing import Any

import numpy as np
from torch import Tensor
from torch.utils.data import Dataset, Sampler

from dl_comm.parts import share_of, undivided
from dl_comm.ranks import get_rank, is_rank0, parts
from dl_comm.reduction.layout import Layout
from dl_comm.shard_iterators import without_restart
from dl_comm.shared_random import Alike
from dl_comm.torch.uneven import WeighedBatches, weigh_batch
from dl_comm.torch.whole_batches import order_of_rank0

_BLOCK = 1024  # batches of a sampler that are drawn at once


class _Parts:
    """How a rank's parts of batches weigh, one after the other, and whether all ranks' were of one size so far."""

    def __init__(self, rank: int, n: int) -> None:
        self._rank, self._n = rank, n
        self._weights: deque[float] = deque()
        self._even, self._told = True, False

    def begin(self) -> None:
        self._weights = deque()

    def rows(self, length: int, stacklevel: int = 4) -> slice:
        """Return which of ``length`` samples are this rank's; the last, which does not count, where none is left."""
        self._weights.append(self._n * share_of(length, self._rank, self._n) / length if length else 1.0)
        self._even &= length % self._n == 0
        if length % self._n and is_rank0() and not self._told:
            self._told = True
            twice = ", and sums count a sample twice where a rank has none" if length < self._n else ""
            warnings.warn(undivided(length, self._n) + twice, stacklevel=stacklevel)
        return slice(self._rank, None, self._n) if self._rank < length else slice(-1, None)

    def weights(self) -> Iterator[float]:
        """Yield the weight of each part, after it was cut."""
        while True:
            yield self._weights.popleft() if self._weights else 1.0

    def layout(self) -> Layout:
        """Return how the parts lie in the serial order."""
        return Layout("entries" if self._even else "parts")


@cache
def _cuts(rank: int, n: int) -> _Parts:
    return _Parts(rank, n)


def part(batch: Any) -> Any:
    """Return this rank's part of a batch that the script cuts itself: every n-th of its samples; on 1 rank all.

    ``pick = dl.part(order[i : i + 32])`` in a loop over the serial positions. ``batch`` is a tensor, an array, a list,
    a DataFrame, or a tuple, dict or dataclass of such, all of one length. Where n does not divide it, the first ranks
    have one sample more, and ``gradients`` counts each rank's by its samples until another batch is taken. A rank for
    which none is left works on the last one, which counts for no gradient. What is cut side by side,
    ``part(x[i:j]), part(y[i:j])``, stays so. Of a number of samples, an int, it is how many of them are this rank's:
    ``torch.ones(dl.part(batch_size), 1)``.

    Raises ``TypeError`` for what has no samples, or parts of several lengths.
    """
    n = parts()
    if n == 1:
        return batch
    if isinstance(batch, int) and not isinstance(batch, bool):
        return max(min(batch, 1), share_of(batch, get_rank(), n))
    lengths = set(_lengths(batch))
    if len(lengths) != 1 or None in lengths:
        raise TypeError(
            f"part() got a {type(batch).__name__}; it takes a batch: a tensor, an array, a list, a DataFrame, or a "
            "tuple, dict or dataclass of such, all of one length"
        )
    cuts = _cuts(get_rank(), n)
    rows = cuts.rows(next(iter(lengths)) or 0, stacklevel=3)  # the line that cuts
    weigh_batch(next(cuts.weights()))
    return _cut(batch, rows)


class _Divided:
    """This rank's part of every batch of what gives batches; attributes that it lacks are of that."""

    def __init__(self, batches: Any, rank: int, n: int) -> None:
        self._batches = batches
        self._parts = _Parts(rank, n)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._batches, name)

    def __len__(self) -> int:
        return len(self._batches)

    def part_weights(self) -> Iterator[float]:
        """Yield the weight of each part, after it was cut."""
        return self._parts.weights()

    def layout_of_share(self) -> Layout:
        """Return how the parts lie in the serial order."""
        return self._parts.layout()


class DividedSampler(_Divided, Sampler[Any]):
    """This rank's part of every batch of a batch sampler, in rank 0's order; its iteration is collective."""

    def __iter__(self) -> Iterator[Any]:
        self._parts.begin()
        batches = without_restart(self._batches)
        while True:
            drawn = order_of_rank0([list(batch) for batch in islice(batches, _BLOCK)])
            for batch in drawn:
                yield batch[self._parts.rows(len(batch))]
            if len(drawn) < _BLOCK:
                return


class DividedBatches(_Divided):
    """This rank's part of every batch of an iterable; what is drawn at random meanwhile all ranks draw alike.

    A batch is a tensor, an array, or a tuple, list, dict or dataclass of such and of lists, all of one length.
    """

    def __iter__(self) -> Any:
        self._parts.begin()
        return WeighedBatches(self._divided(), self.part_weights(), self.layout_of_share)

    def _divided(self) -> Iterator[Any]:
        alike = Alike()
        with alike:
            batches = without_restart(self._batches)
        while True:
            with alike:
                taken = list(islice(batches, 1))
            if not taken:
                return
            lengths = set(_lengths(taken[0]))
            if len(lengths) != 1 or None in lengths:
                raise TypeError(
                    f"shard(batch='global') got a {type(self._batches).__name__} of {type(taken[0]).__name__}s that "
                    "hold no arrays, tensors and lists of one length alone: is it a batch, or a sample? A DataLoader "
                    "tells, or shard(batch='local')"
                )
            yield _cut(taken[0], self._parts.rows(next(iter(lengths)) or 0))


def is_one_batch(data: Any) -> bool:
    """Tell whether ``data`` are samples of one batch, not batches one after the other.

    Raises ``TypeError`` for a data set, whose entries are samples that no loader puts into batches.
    """
    if isinstance(data, Dataset):
        raise TypeError(
            f"shard(batch='global') got a {type(data).__name__}, which has no batches to divide; it takes a DataLoader"
        )
    arrays = isinstance(data, (Tensor, np.ndarray, list, tuple, range)) or hasattr(data, "iloc")
    return arrays or not hasattr(data, "__iter__")


def _structure(batch: Any, top: bool) -> dict[Any, Any] | None:
    """Return what ``batch`` is made of; None of what has samples for entries, or none."""
    if isinstance(batch, Mapping):
        return dict(batch)
    if isinstance(batch, tuple) or (top and isinstance(batch, list) and any(map(_is_array, batch))):
        return dict(enumerate(batch))
    if dataclasses.is_dataclass(batch) and not isinstance(batch, type):
        return {field.name: getattr(batch, field.name) for field in dataclasses.fields(batch)}
    return None


def _is_array(value: Any) -> bool:
    return isinstance(value, (Tensor, np.ndarray)) and value.ndim > 0


def _is_table(value: Any) -> bool:
    return hasattr(value, "iloc")


def _lengths(batch: Any, top: bool = True) -> Iterator[int | None]:
    """Yield how many samples each part of a batch has; None of what holds none."""
    if (inner := _structure(batch, top)) is not None:
        for part in inner.values():
            yield from _lengths(part, False)
    elif batch is not None:
        yield len(batch) if _is_array(batch) or isinstance(batch, (list, range)) or _is_table(batch) else None


def _cut(batch: Any, rows: slice, top: bool = True) -> Any:
    """Return the ``rows`` of all that a batch holds."""
    if (inner := _structure(batch, top)) is None:
        if batch is None or _is_table(batch):
            return None if batch is None else batch.iloc[rows]
        piece = batch[rows]  # every n-th: laid out with gaps, which no view() goes over
        return piece.contiguous() if isinstance(batch, Tensor) and batch.is_contiguous() else piece
    pieces = {key: _cut(piece, rows, False) for key, piece in inner.items()}
    if isinstance(batch, Mapping):
        return pieces if type(batch) is dict else type(batch)(pieces)  # type: ignore[call-arg]
    if dataclasses.is_dataclass(batch) and not isinstance(batch, type):
        return dataclasses.replace(batch, **pieces)
    if hasattr(batch, "_fields"):
        return type(batch)(*pieces.values())
    return type(batch)(pieces.values())
