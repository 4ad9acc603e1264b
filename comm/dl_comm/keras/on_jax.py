"""Keras on jax: gradients are averaged from within the compiled training step, through a call back into Python."""

from __future__ import annotations

import os
from typing import Any

import jax
import numpy as np
from jax.experimental import io_callback

from dl_comm import _core
from dl_comm.machine import share_of_machine
from dl_comm.ranks import draw_alike, get_rank, joins, parts, shift_generators, shift_own


def init(alike: bool = True) -> None:
    """Join the ranks of the job. A second call does nothing. Call it before jax does any work.

    On several ranks each gets one of the GPUs that it sees as jax's default device. jax must not run ahead of the call
    back (``jax_cpu_enable_async_dispatch`` becomes False): the two would wait for each other. All ranks get rank 0's
    random numbers, NumPy's and those of ``random``, from which Keras takes its seeds, unless ``alike`` is False.
    """
    if not joins(__name__):
        return
    jax.config.update("jax_cpu_enable_async_dispatch", False)
    gpus = [device for device in jax.local_devices() if device.platform == "gpu"]
    mask = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    share = share_of_machine([mask[i] if i < len(mask) and mask[i] else str(i) for i in range(len(gpus))])
    if share.gpu is not None:
        jax.config.update("jax_default_device", gpus[share.gpu])
    if alike:
        draw_alike(None)


def reseed(*generators: Any, alike: bool = False) -> None:
    """Give every rank its own random numbers, or all those of rank 0; see ``reseed`` of dl_comm.tensorflow."""
    if generators:
        shift_own(generators)
        return
    if alike:
        if parts() > 1:
            draw_alike(None)
        return
    rank = get_rank() if parts() > 1 else 0
    if rank == 0:
        return
    shift_generators(rank)


def gradients(grads: list[Any]) -> list[Any]:
    """Return the mean over ranks of each gradient, in order, within ``jax.jit`` or outside; ``None`` stays ``None``."""
    present = [g for g in grads if g is not None]
    if not present:
        return grads
    kinds = [jax.ShapeDtypeStruct(g.shape, g.dtype) for g in present]
    means = iter(io_callback(_mean, kinds, *present, ordered=True))
    return [None if g is None else next(means) for g in grads]


def _mean(*grads: Any) -> list[Any]:
    own = [np.array(g, order="C") for g in grads]
    names = [f"gradient {i} of {len(own)} {g.shape} {g.dtype}" for i, g in enumerate(own)]
    _core.allreduce([(g.ctypes.data, g.size, g.dtype.name) for g in own], "mean", 0, names)
    return own
