"""Data sets that shuffle, alike on all ranks: only then do the ranks' shares of a shuffled data set not overlap."""

from __future__ import annotations

import pickle
import random
from typing import Any

import tensorflow as tf

from dl_comm import _core


def shuffle_alike(seed: int) -> None:
    """Let every data set made from now on take rank 0's seeds, also where the ranks' own seeds differ.

    In eager code rank 0's are broadcast when the data set is made, so making one is collective; in the graph of a
    session, where a data set without a seed would take one from the clock, all ranks draw it from ``seed``.
    """
    from tensorflow.python.data.util import random_seed

    own, common = random_seed.get_seed, random.Random(seed)

    def get_seed(given: Any) -> Any:
        pair = own(given)
        if not tf.executing_eagerly():
            in_function = hasattr(tf.compat.v1.get_default_graph(), "outer_graph")
            if in_function or any(tf.get_static_value(each) for each in pair):
                return pair
            return tuple(tf.constant(common.getrandbits(31) + 1, tf.int64) for _ in pair)
        ours = pickle.dumps([int(each) for each in pair])
        return tuple(tf.constant(each, tf.int64) for each in pickle.loads(_core.broadcast_bytes(ours, 0)))

    random_seed.get_seed = get_seed
