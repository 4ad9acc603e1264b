"""Random ops in the graphs of sessions: dropout and noise of its own for every rank."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import tensorflow as tf

from dl_comm.ranks import shifted_seed


def draw_apart(rank: int) -> None:
    """Let the random ops of graphs made from now on have seeds of this rank's; rank 0 keeps the script's.

    The seed of an op is fixed when the op is made, so ``reseed`` comes too late for a graph. Variables start from the
    values of ops of each rank, and from rank 0's after the broadcast. Orders stay alike: those of
    ``tf.random_shuffle``, of queues and of data sets are what ranks share the samples by.
    """
    from tensorflow.python.framework import random_seed
    from tensorflow.python.ops import random_ops

    def get_seed(given: Any) -> Any:
        first, second = random_seed.get_seed(given)
        graph = tf.compat.v1.get_default_graph()
        if rank == 0 or second is None or tf.executing_eagerly() or hasattr(graph, "outer_graph"):
            return first, second
        return first, shifted_seed(f"{second}".encode(), rank) % (2**31 - 1) + 1

    shuffle = random_ops.random_shuffle

    def random_shuffle(value: Any, seed: Any = None, name: Any = None) -> Any:
        random_ops.random_seed = random_seed
        try:
            return shuffle(value, seed, name)
        finally:
            random_ops.random_seed = own

    own = random_ops.random_seed = SimpleNamespace(**vars(random_seed) | {"get_seed": get_seed})
    for module in (random_ops, tf.random, tf.compat.v1, tf.compat.v1.random):
        for name in ("random_shuffle", "shuffle"):
            if getattr(module, name, None) is shuffle:
                setattr(module, name, random_shuffle)
