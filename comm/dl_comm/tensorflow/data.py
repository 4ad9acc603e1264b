"""This rank's share of the data."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from dl_comm.ranks import check_enough, get_rank, parts
from dl_comm.reduction.layout import Layout, note
from dl_comm.shard_iterators import every_nth, iterator_shard, shard_calls
from dl_comm.shared_random import Alike
from dl_comm.shares import check_side_by_side, positions, tell_padded
from dl_comm.tensorflow.global_batches import GlobalBatches
from dl_comm.tensorflow.state import settle
from dl_comm.whole_batches import WholeBatches, check_whole, entries_of


def shard(data: Any, batch: str = "local", equal: bool = True, whole: str = "") -> Any:
    """Return this rank's 1/n of ``data``; on one rank ``data`` itself.

    With ``whole="batches"``, for evaluations, the serial script's batches are sharded as they are: rank r takes
    elements r, r + n, ... of a Dataset, a generator, or a list, range or array whose entries are batches. None is
    padded or repeated, so ranks may have one more than others, or none; what is added up or gathered over them
    (``total``, ``gather``) is exactly the serial script's. ``len()`` counts this rank's batches.

    *A tf.data.Dataset*, usually of batches, gives every n-th element from the r-th: the k-th global batch is the
    serial run's batches kn to kn + n - 1. Every rank reads the whole pipeline, which therefore must yield the same
    elements everywhere: shuffling does, with the common seed that ``init`` sets or the script's own. All ranks get as
    many: where n does not divide their number, they are padded from the beginning, and rank 0 warns, or cut if the
    number is unknown.

    *Arrays, tensors, lists* give the entries r, r + n, ... of axis 0, padded from the beginning to equal lengths;
    tuples and dicts of arrays are shared array by array. With ``batch="global"`` they are one batch, taken whole at
    every step: where n does not divide their length, entries are repeated, each as often as the others, so that the
    mean over ranks of a mean over samples is that over all; with ``equal=False`` none is repeated and lengths may
    differ by one, for ``partial_sum``. The arrays of a tuple must then be equally long.

    *Of a data set, a generator or another iterable of batches* with ``batch="global"`` each rank takes a part of every
    batch, as it is iterated over eagerly. Where n does not divide a batch, parts differ by one, and what ``gradients``
    averages in that iteration counts by the samples; with ``equal=False`` it does not, for losses that are sums and
    go through ``partial_sum``.

    *A generator* is read by every rank, which keeps every n-th element; *a function* that returns the next samples at
    each call becomes one that calls it n times and returns the r-th result. Both must give all ranks the same.
    Raises ``TypeError`` for anything else.
    """
    if tf.executing_eagerly():
        settle(again=True)
    n = parts()
    check_whole(whole)
    if n == 1 or data is None:
        return data
    if whole:
        return share_whole(data, get_rank(), n)
    if batch == "global" and (isinstance(data, (tf.data.Dataset, Iterator)) or not hasattr(data, "__getitem__")):
        return GlobalBatches(data, get_rank(), n, equal)
    if isinstance(data, tf.data.Dataset):
        return _shard_dataset(data, get_rank(), n)
    if isinstance(data, Mapping):
        return {name: shard(part, batch, equal) for name, part in data.items()}
    if isinstance(data, tuple):
        if batch == "global" or not equal:
            check_side_by_side([len(part) for part in data if hasattr(part, "__len__")])
        return tuple(shard(part, batch, equal) for part in data)
    if isinstance(data, Iterator):
        return note(iterator_shard(data, get_rank(), n), Layout("batches"))
    if tf.is_tensor(data) and not hasattr(data, "numpy"):
        if data.op.type == "Range":  # what a loop inside a tf.function counts
            count = tf.shape(data)[0]
            return tf.gather(data, (tf.range(-(-count // n)) * n + get_rank()) % count)
        raise TypeError("shard() got a tensor of a graph, which is one batch; give it the tf.data.Dataset behind it")
    if callable(data) and not hasattr(data, "shape"):
        return shard_calls(data, get_rank(), n)
    length = getattr(data, "shape", None)
    if isinstance(data, (list, range)) or (length is not None and len(length) > 0):
        mine = positions(len(data), get_rank(), n, batch, equal)
        return note(_rows(data, mine), Layout("entries", len(data), len(mine)))
    if isinstance(data, Iterable) and not isinstance(data, (str, bytes)):  # trange()
        return note(every_nth(data, get_rank(), n), Layout("batches"))
    raise TypeError(
        f"shard() got {type(data).__name__}; it takes a tf.data.Dataset, arrays, tensors, lists, "
        "generators or functions"
    )


def share_whole(data: Any, rank: int, n: int) -> Any:
    """Return the batches r, r + n, ... of a data set, a stream, or what can be indexed."""
    if isinstance(data, tf.data.Dataset):
        share = data.shard(n, rank)
        length = int(tf.data.experimental.cardinality(data)) if tf.executing_eagerly() else -1
        if length == tf.data.UNKNOWN_CARDINALITY:
            return note(share, lambda: _measured(data.shard(n, rank)))
        return note(share, Layout("batches", length, len(range(rank, length, n))) if length >= 0 else Layout("batches"))
    if hasattr(data, "__len__") and hasattr(data, "__getitem__"):
        return entries_of(data, rank, n)
    if isinstance(data, (str, bytes)) or not isinstance(data, Iterable):
        raise TypeError(
            f"shard(whole='batches') got {type(data).__name__}; it takes a tf.data.Dataset, a list, a "
            "range, an array or another iterable of batches"
        )
    batches = WholeBatches(data, rank, n, Alike)
    return note(iter(batches), batches.layout_of_share) if isinstance(data, Iterator) else batches


def _measured(share: Any) -> Layout:
    """Return how batches lie of which nobody knows how many there are: they are read to be counted."""
    first = (tf.nest.flatten(batch)[0] for batch in share)
    sizes = tuple(int(part.shape[0]) if part.shape.rank else 1 for part in first)
    return Layout("batches", None, len(sizes), sizes=sizes, unpadded=True)


def _rows(data: Any, mine: list[int]) -> Any:
    if isinstance(data, (list, range)):
        return [data[i] for i in mine]
    if hasattr(data, "iloc"):
        return data.iloc[mine]
    return tf.gather(data, mine) if tf.is_tensor(data) else np.asarray(data)[mine]


def _shard_dataset(dataset: Any, rank: int, n: int) -> Any:
    length = tf.data.experimental.cardinality(dataset)  # negative: endless, or not known
    if tf.executing_eagerly():
        check_enough(int(length), n, "elements of the data set")
        if length > 0:
            tell_padded(int(length), n, "elements of a data set")
    missing = tf.where(length > 0, (-length) % n, 0)
    dataset = dataset.concatenate(dataset.repeat().take(missing))

    def mine(*window: Any) -> Any:
        # A window of n elements is a dataset for each component; the r-th element of each, put together again.
        parts = [tf.nest.map_structure(lambda one: one.skip(rank).take(1), part) for part in window]
        return tf.data.Dataset.zip(tuple(parts) if len(parts) > 1 else parts[0])

    shared = dataset.window(n, shift=n, drop_remainder=True).flat_map(mine)
    if not tf.executing_eagerly() or length <= 0:
        return note(shared, Layout("batches"))
    each = int(length + missing) // n  # else fit() goes on until a step finds no batch, and counts that one too
    shared = shared.apply(tf.data.experimental.assert_cardinality(each))
    return note(shared, Layout("batches", int(length), each))
