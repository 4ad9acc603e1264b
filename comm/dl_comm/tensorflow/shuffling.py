"""Data sets that shuffle, alike on all ranks: only then do the ranks' shares of a shuffled data set not overlap."""

from __future__ import annotations

import pickle
import random
from typing import Any

import tensorflow as tf
from tensorflow.python.eager import context

from dl_comm import _core


def _global_seed() -> Any:
    return context.global_seed() if tf.executing_eagerly() else tf.compat.v1.get_default_graph().seed


def shuffle_alike(seed: int, seeded: bool) -> None:
    """Let every data set made from now on take rank 0's seeds, also where the ranks' seeds differ.

    In eager code rank 0's are broadcast when the data set is made, so making one is collective; in the graph of a
    session, where a data set without a seed would take one from the clock, all ranks draw it from ``seed``, which the
    script gave itself or not (``seeded``): anew whenever an iterator is initialized, as the clock goes on. A data set
    with a seed of its own keeps the serial script's order where that script sets no seed for all.
    """
    from tensorflow.python.data.util import random_seed, traverse
    from tensorflow.python.framework import random_seed as framework
    from tensorflow.python.ops import gen_random_ops

    own, common = random_seed.get_seed, random.Random(seed)
    traverse.OP_TYPES_ALLOWLIST.append("RandomUniformInt")  # one-shot iterators take no other op that has a state

    def drawn() -> Any:
        shape, first, last = tf.constant([], tf.int32), tf.constant(1, tf.int64), tf.constant(2**31, tf.int64)
        seeds = common.getrandbits(31) + 1, common.getrandbits(31) + 1
        return gen_random_ops.random_uniform_int(shape, first, last, seed=seeds[0], seed2=seeds[1])

    def get_seed(given: Any) -> Any:
        pair = own(given)
        if given is not None and not seeded and _global_seed() == seed:  # which init has set: the script has none
            pair = (tf.constant(framework.DEFAULT_GRAPH_SEED, tf.int64), pair[1])
        if not tf.executing_eagerly():
            graph = tf.compat.v1.get_default_graph()
            unseeded = given is None and not seeded and graph.seed == seed  # which init has set
            if hasattr(graph, "outer_graph") or not (unseeded or not any(tf.get_static_value(each) for each in pair)):
                return pair
            return tuple(drawn() for _ in pair)
        ours = pickle.dumps([int(each) for each in pair])
        return tuple(tf.constant(each, tf.int64) for each in pickle.loads(_core.broadcast_bytes(ours, 0)))

    random_seed.get_seed = get_seed
