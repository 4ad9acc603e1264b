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

from dl_comm.dealing import turns
from dl_comm.keras.backend import average, broadcast, gradients, init, reseed, total
from dl_comm.keras.callbacks import Broadcast, Decay, ScaleRate, WarmUp
from dl_comm.keras.data import shard
from dl_comm.keras.lars import lars
from dl_comm.keras.model import Distribute, DistributedOptimizer, distribute
from dl_comm.keras.together import AverageMetrics
from dl_comm.machine import get_gpu
from dl_comm.output import print, rank0, rank0_first
from dl_comm.ranks import barrier, finalize, get_localrank, get_localsize, get_nranks, get_rank, is_rank0
from dl_comm.rate import compound, lr_scale, serial_steps, steps
from dl_comm.streams import stretch

__all__ = [
    "AverageMetrics",
    "Broadcast",
    "Decay",
    "Distribute",
    "DistributedOptimizer",
    "ScaleRate",
    "WarmUp",
    "average",
    "barrier",
    "broadcast",
    "compound",
    "distribute",
    "finalize",
    "get_gpu",
    "get_localrank",
    "get_localsize",
    "get_nranks",
    "get_rank",
    "gradients",
    "init",
    "is_rank0",
    "lars",
    "lr_scale",
    "print",
    "rank0",
    "rank0_first",
    "reseed",
    "serial_steps",
    "shard",
    "steps",
    "stretch",
    "total",
    "turns",
]
