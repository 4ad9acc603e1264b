"""dl_comm for Keras: version 3 on TensorFlow, PyTorch or jax, and version 2.15.

One call after ``compile`` makes a model train on all ranks; without a launcher it changes nothing::

    import dl_comm.keras as dl

    dl.init()
    model.compile(optimizer=keras.optimizers.Adam(dl.lr_scale(1e-3)), loss=...)
    dl.distribute(model)
    model.fit(x, y, batch_size=32, epochs=5, callbacks=[dl.WarmUp(100)])
    if dl.is_rank0():
        model.save("model.keras")               # plain Keras: it loads without dl_comm
    dl.finalize()

``shard``, ``DistributedOptimizer`` and ``broadcast`` are its parts, for loops by hand; ``Distribute()`` is a callback,
for a ``fit`` that somebody else calls.
"""

from __future__ import annotations

from dl_comm.keras.backend import broadcast, gradients, init, reseed
from dl_comm.keras.callbacks import Broadcast, Decay, ScaleRate, WarmUp
from dl_comm.keras.data import shard
from dl_comm.keras.lars import lars
from dl_comm.keras.model import Distribute, DistributedOptimizer, distribute
from dl_comm.keras.reducing import average, gather, maximum, minimum, total
from dl_comm.keras.together import AverageMetrics
from dl_comm.machine import get_gpu
from dl_comm.rank0 import print, rank0, rank0_first
from dl_comm.ranks import barrier, finalize, get_localrank, get_localsize, get_nranks, get_rank, is_rank0
from dl_comm.rate import compound, lr_scale, serial_iteration, serial_steps, steps
from dl_comm.reduction.agreeing import agree, all_ranks, any_rank
from dl_comm.reduction.closure import closure
from dl_comm.reduction.entries import entries
from dl_comm.reduction.layout import is_shard
from dl_comm.reduction.since import snapshot
from dl_comm.shard_iterators import turns
from dl_comm.stopping import should_stop
from dl_comm.streams import stretch

__all__ = [
    "AverageMetrics",
    "Broadcast",
    "Decay",
    "Distribute",
    "DistributedOptimizer",
    "ScaleRate",
    "WarmUp",
    "agree",
    "all_ranks",
    "any_rank",
    "average",
    "barrier",
    "broadcast",
    "closure",
    "compound",
    "distribute",
    "entries",
    "finalize",
    "gather",
    "get_gpu",
    "get_localrank",
    "get_localsize",
    "get_nranks",
    "get_rank",
    "gradients",
    "init",
    "is_rank0",
    "is_shard",
    "lars",
    "lr_scale",
    "maximum",
    "minimum",
    "print",
    "rank0",
    "rank0_first",
    "reseed",
    "serial_iteration",
    "serial_steps",
    "shard",
    "should_stop",
    "snapshot",
    "steps",
    "stretch",
    "total",
    "turns",
]
