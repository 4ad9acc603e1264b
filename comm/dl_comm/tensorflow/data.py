"""This rank's share of the data."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from dl_comm.dealing import deal, deal_calls
from dl_comm.ranks import check_enough, get_rank, parts
from dl_comm.shares import check_side_by_side, positions
from dl_comm.tensorflow.state import settle


def shard(data: Any, batch: str = "local", equal: bool = True) -> Any:
    """Return this rank's 1/n of ``data``; on one rank ``data`` itself.

    *A tf.data.Dataset*, usually of batches, gives every n-th element from the r-th: the k-th global batch is the
    serial run's batches kn to kn + n - 1. Every rank reads the whole pipeline, which therefore must yield the same
    elements everywhere: shuffling does, with the common seed that ``init`` sets or the script's own. All ranks get as
    many: where n does not divide their number, they are padded from the beginning, or cut if the number is unknown.

    *Arrays, tensors, lists* give the entries r, r + n, ... of axis 0, padded from the beginning to equal lengths;
    tuples and dicts of arrays are shared array by array. With ``batch="global"`` they are one batch, taken whole at
    every step: where n does not divide their length, entries are repeated, each as often as the others, so that the
    mean over ranks of a mean over samples is that over all; with ``equal=False`` none is repeated and lengths may
    differ by one, for ``partial_sum``. The arrays of a tuple must then be equally long.

    *A generator* is read by every rank, which keeps every n-th element; *a function* that returns the next samples at
    each call becomes one that calls it n times and returns the r-th result. Both must give all ranks the same.
    Raises ``TypeError`` for anything else.
    """
    if tf.executing_eagerly():
        settle(again=True)
    n = parts()
    if n == 1 or data is None:
        return data
    if isinstance(data, tf.data.Dataset):
        return _shard_dataset(data, get_rank(), n)
    if isinstance(data, Mapping):
        return {name: shard(part, batch, equal) for name, part in data.items()}
    if isinstance(data, tuple):
        if batch == "global" or not equal:
            check_side_by_side([len(part) for part in data if hasattr(part, "__len__")])
        return tuple(shard(part, batch, equal) for part in data)
    if isinstance(data, Iterator):
        return deal(data, get_rank(), n)
    if tf.is_tensor(data) and not hasattr(data, "numpy"):
        raise TypeError("shard() got a tensor of a graph, which is one batch; give it the tf.data.Dataset behind it")
    if callable(data) and not hasattr(data, "shape"):
        return deal_calls(data, get_rank(), n)
    length = getattr(data, "shape", None)
    if isinstance(data, (list, range)) or (length is not None and len(length) > 0):
        mine = positions(len(data), get_rank(), n, batch, equal)
        if isinstance(data, (list, range)):
            return [data[i] for i in mine]
        if hasattr(data, "iloc"):
            return data.iloc[mine]
        return tf.gather(data, mine) if tf.is_tensor(data) else np.asarray(data)[mine]
    if isinstance(data, Iterable) and not isinstance(data, (str, bytes)):  # trange()
        return deal(data, get_rank(), n)
    raise TypeError(
        f"shard() got {type(data).__name__}; it takes a tf.data.Dataset, arrays, tensors, lists, "
        "generators or functions"
    )


def _shard_dataset(dataset: Any, rank: int, n: int) -> Any:
    length = tf.data.experimental.cardinality(dataset)  # negative: endless, or not known
    if tf.executing_eagerly():
        check_enough(int(length), n, "elements of the data set")
    missing = tf.where(length > 0, (-length) % n, 0)
    dataset = dataset.concatenate(dataset.repeat().take(missing))

    def mine(*window: Any) -> Any:
        # A window of n elements is a dataset for each component; the r-th element of each, put together again.
        parts = [tf.nest.map_structure(lambda one: one.skip(rank).take(1), part) for part in window]
        return tf.data.Dataset.zip(tuple(parts) if len(parts) > 1 else parts[0])

    shared = dataset.window(n, shift=n, drop_remainder=True).flat_map(mine)
    if tf.executing_eagerly() and length > 0:  # else fit() goes on until a step finds no batch, and counts that one too
        shared = shared.apply(tf.data.experimental.assert_cardinality((length + missing) // n))
    return shared
