"""Joining the ranks from TensorFlow: GPU, threads, random numbers."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.eager import context

from dl_comm.machine import share_of_machine
from dl_comm.ranks import draw_alike, get_localsize, get_rank, joins, parts, shift_generators, shift_own
from dl_comm.tensorflow.noise import draw_apart
from dl_comm.tensorflow.shuffling import shuffle_alike
from dl_comm.tensorflow.state import models, variables_of, when_built


def init(alike: bool = True) -> None:
    """Join the ranks of the job. A second call does nothing. Call it before TensorFlow does any work.

    On several ranks it makes one GPU visible to this rank (and lets it grow its memory), divides the node's cores among
    its ranks where neither OMP_NUM_THREADS nor TensorFlow's own settings say otherwise, and gives all ranks rank 0's
    random numbers (NumPy's, ``random``'s, and its global seed, or a common one where it has none): models start alike.
    Seeds that the script sets later replace them. Data sets shuffle alike on all ranks from here on, whatever their
    seeds (see ``shuffling``); random ops in the graphs of sessions draw apart (see ``noise``).

    With ``alike=False`` random numbers and orders stay local, as those of processes are: for scripts that do
    not share the samples out by ``shard``, but let each rank shuffle all of them.
    """
    if not joins(__name__):
        return
    gpus = tf.config.list_physical_devices("GPU")
    mask = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    share = share_of_machine([mask[i] if i < len(mask) and mask[i] else str(i) for i in range(len(gpus))])
    if share.gpu is not None:
        tf.config.set_visible_devices(gpus[share.gpu], "GPU")
        tf.config.experimental.set_memory_growth(gpus[share.gpu], True)
    untouched = tf.config.threading.get_intra_op_parallelism_threads() == 0
    if "OMP_NUM_THREADS" not in os.environ and untouched and get_localsize() > 1:
        tf.config.threading.set_intra_op_parallelism_threads(share.threads)
    if alike:
        _draw_alike()


def _draw_alike() -> None:
    own = context.global_seed() if tf.executing_eagerly() else tf.compat.v1.get_default_graph().seed
    first = int.from_bytes(os.urandom(4), "little") >> 1 if own is None else own
    seed = draw_alike(first)
    if seed != own:
        tf.compat.v2.random.set_seed(seed)
    if parts() > 1:
        shuffle_alike(seed, own is not None)
        draw_apart(get_rank())


def reseed(*generators: Any, alike: bool = False) -> None:
    """Give every rank its own random numbers, or all ranks those of rank 0, which keeps the serial script's.

    On rank r > 0 NumPy, ``random``, TensorFlow's global seed and the seeds in Keras models that were broadcast are
    replaced by a hash of NumPy's state and r. Call it after the broadcast; where a model given to that is not built
    yet, it happens when it is.

    With ``alike`` all ranks go on from the states that rank 0's generators of NumPy and ``random`` are in, for what
    must be drawn alike: a split of the data, an order of them. That is collective.

    Given generators of the script's own, NumPy's or of ``random``, each rank gets its own numbers from those alone.
    """
    if generators:
        shift_own(generators)
    elif not alike:
        when_built(_reseed)
    elif parts() > 1:
        draw_alike(None)


def _reseed() -> None:
    rank = get_rank() if parts() > 1 else 0
    if rank == 0:
        return
    tf.compat.v2.random.set_seed(shift_generators(rank) % 2**31)
    for model in models:
        for variable in variables_of(model):
            if "seed_generator" in getattr(variable, "path", "") and variable.shape == (2,):
                variable.assign(variable.numpy() + np.array([rank, 0], "uint32"))
