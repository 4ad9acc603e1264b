"""Batches of the serial script of which each rank takes a part, weighed by its samples."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from functools import cache, partial
from types import MethodType
from typing import Any

import tensorflow as tf

from dl_comm.parts import bounds, set_weight, undivided
from dl_comm.ranks import get_rank, is_rank0, parts
from dl_comm.reduction.layout import Layout


@cache
def _weight() -> Any:
    """Return the variable that the graphs of a tf.function read: one, as they are made once."""
    return tf.Variable(1.0, trainable=False, dtype=tf.float64)


_REBATCHES = ("batch", "padded_batch", "ragged_batch", "rebatch", "unbatch", "window", "flat_map", "interleave")


def part(batch: Any, equal: bool = True) -> Any:
    """Return this rank's part of a batch that the script cuts itself; on one rank all of it.

    ``x, y = dl.part((images[i : i + 32], labels[i : i + 32]))`` in an eager loop over the serial positions. ``batch``
    is a tensor, an array, a list, a range, or a nest of tensors and arrays, all of one length. Parts differ by one
    sample where n does not divide it, and what ``gradients`` averages counts by the samples until another batch is
    taken; with ``equal=False`` it does not, for losses that go through ``partial_sum``. A rank for which no sample is
    left works on another's, which counts for no gradient. Of a number of samples, an int, it is how many of them are
    this rank's: ``tf.ones([dl.part(batch_size), 1])``. Raises ``TypeError`` for what has no samples.
    """
    n = parts()
    if isinstance(batch, int) and not isinstance(batch, bool):
        begin, end = bounds(batch, get_rank(), n)
        return max(min(batch, 1), end - begin)
    if not isinstance(batch, (list, range)) and not any(map(_has_rows, tf.nest.flatten(batch))):
        raise TypeError(f"part() got a {type(batch).__name__}; it takes a batch: a tensor, an array, a list, or a nest")
    return _cuts(get_rank(), n, equal).part(batch) if n > 1 else batch


class GlobalBatches:
    """This rank's part of every batch of a data set, a generator or another iterable; attributes are the iterable's.

    So are methods; a data set that one returns, ``enumerate()``, is cut into parts likewise. One that makes other
    batches raises TypeError: it belongs before the share.

    Parts differ by one sample where n does not divide a batch. With ``weighted``, while a part is worked on, what
    ``gradients`` averages counts by its samples: the mean over the ranks is that over the batch.
    """

    def __init__(self, batches: Any, rank: int, n: int, weighted: bool) -> None:
        self._batches, self._rank, self._n = batches, rank, n
        self._weight = _weight() if weighted else None
        self._told = False

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        found = getattr(self._batches, name)
        return partial(self._of_method, found, name) if isinstance(found, MethodType) else found

    def _of_method(self, method: MethodType, name: str, *args: Any, **kwargs: Any) -> Any:
        if isinstance(self._batches, tf.data.Dataset) and name in _REBATCHES:
            raise TypeError(f"{name}() makes other batches of what is shared already: shard what it returns")
        made = method(*args, **kwargs)
        if not isinstance(made, tf.data.Dataset):
            return made
        return GlobalBatches(made, self._rank, self._n, self._weight is not None)

    def __len__(self) -> int:
        return len(self._batches)

    def __iter__(self) -> Iterator[Any]:
        try:
            for batch in self._batches:
                yield self.part(batch)
        finally:
            set_weight(None)
            if self._weight is not None:
                self._weight.assign(1.0)

    def part(self, batch: Any) -> Any:
        """Return this rank's rows of ``batch``, and let gradients count by them."""
        rows = isinstance(batch, (list, range)) and not any(map(_has_rows, batch))
        lengths = [len(batch)] if rows else [len(leaf) for leaf in tf.nest.flatten(batch) if _has_rows(leaf)]
        length = lengths[0] if lengths else 0
        begin, end = bounds(length, self._rank, self._n)
        if self._weight is not None:
            self._weight.assign(self._n * (end - begin) / length if length else 1.0)
            set_weight(self._weight)
        odd = next((one for one in lengths if one % self._n), 0)
        if odd and is_rank0() and not self._told:
            self._told = True
            none = f"a batch has {odd} samples for {self._n} ranks: those without one work on another's, which does "
            none += "not count for the gradients, but in sums of the script's own"
            warnings.warn(none if odd < self._n else undivided(odd, self._n), stacklevel=3)
        if rows:
            return self._rows(batch)
        return tf.nest.map_structure(lambda leaf: self._rows(leaf) if _has_rows(leaf) else leaf, batch)

    def _rows(self, leaf: Any) -> Any:
        """Return this rank's rows of one array or list: of batches that are zipped each has a length of its own."""
        begin, end = bounds(len(leaf), self._rank, self._n)
        first = min(begin, len(leaf) - 1)
        return leaf[first : max(end, first + 1)]

    def layout_of_share(self) -> Layout:
        """Return how the parts lie in the serial order: not entry by entry."""
        return Layout("parts")


@cache
def _cuts(rank: int, n: int, equal: bool) -> GlobalBatches:
    return GlobalBatches((), rank, n, equal)


def _has_rows(leaf: Any) -> bool:
    shape = getattr(leaf, "shape", None)
    return shape is not None and len(shape) > 0
