"""Tensors on the ranks' GPUs, reduced where they lie: DLPack tells the core their addresses.

TensorFlow does not say what stream it works on. So the host waits twice in a call: ``to_dlpack`` returns when the GPU
has done what TensorFlow gave it, and TensorFlow gets the result when it is there. The core reduces a copy that
TensorFlow makes of the values, in memory that nothing else refers to; what was given is never written to.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from functools import cache, partial
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.eager import context

from dl_comm import _core, averaging, device, dlpack
from dl_comm.errors import CommError
from dl_comm.ranks import own_team
from dl_comm.tensorflow.pipelined import pipelined

DEVICE = "/GPU:0"  # init makes one GPU visible to a rank
TYPES = (tf.float64, tf.float32, tf.float16, tf.bfloat16)


@cache
def in_use() -> bool:
    """Whether tensors are reduced on the GPUs: every rank has one, and NCCL, CUDA IPC or MPI connects them.

    What all ranks agree on at the first call, which is collective, holds for good: no rank takes another way because
    of where its tensors lie. Rank 0 says why not, if some ranks have a GPU. Raises CommError on every rank where
    ``DL_COMM_GPU_PATH`` demands a way that cannot be gone.
    """
    against = [why.decode() for why in _core.allgather_bytes(_against().encode())]
    if any(against):
        rank = next(rank for rank, why in enumerate(against) if why)
        if not all(against):
            _say(f"rank {rank} {against[rank]}")
        return False
    try:
        with tf.init_scope():
            _combine([_copy(tf.ones([1]))], [np.ones(1, np.int64)], "mean", ["a trial of TensorFlow's memory"])
    except CommError as error:
        if os.environ.get("DL_COMM_GPU_PATH") in ("nccl", "ipc", "mpi"):
            raise
        _say(error.message)
        return False
    return not _core.session().gpu_path(_team()).startswith("the host")


def takes(tensor: Any) -> bool:
    """Whether a tensor is one of those that go over the GPUs where these are in use: floats, outside of replicas."""
    return tensor.dtype in TYPES and tf.distribute.get_strategy().num_replicas_in_sync == 1


def reduce(tensors: Sequence[Any], op: str, labels: Sequence[str], team: int) -> list[Any]:
    """Return the tensors combined over the ranks, as new ones on the GPU; eager, or in the graph of a ``tf.function``.

    Those of one type travel as one, but the ranks compare each one's label. In a graph it is a ``tf.py_function`` on
    the GPU that calls the core.
    """
    groups = _groups(tensors)
    ordered = [labels[i] for group in groups for i in group]
    act = partial(_combined, op=op, labels=ordered, team=team)
    results: dict[int, Any] = {}
    with tf.device(DEVICE):
        sizes = [_sizes([tensors[i] for i in group]) for group in groups]
        whole = [tf.concat([tf.reshape(tensors[i], [-1]) for i in group], 0) for group in groups]
        graph = not tf.executing_eagerly()
        means = tf.py_function(act, [*whole, *sizes], [one.dtype for one in whole]) if graph else act(*whole, *sizes)
        for mean, group, each in zip(means, groups, sizes, strict=True):
            mean.set_shape([None])
            parts = tf.split(mean, each, num=len(group)) if len(group) > 1 else [mean]
            for i, part in zip(group, parts, strict=True):
                shape = tensors[i].shape
                results[i] = tf.reshape(part, shape if shape.is_fully_defined() else tf.shape(tensors[i]))
                results[i].set_shape(shape)
    return [results[i] for i in range(len(tensors))]


def _groups(tensors: Sequence[Any]) -> list[list[int]]:
    """Return which tensors travel as one: those of a type, whatever sizes this rank's trace of a function knows."""
    found: dict[Any, list[int]] = {}
    for i, tensor in enumerate(tensors):
        found.setdefault(tensor.dtype, []).append(i)
    return list(found.values())


def _sizes(tensors: Sequence[Any]) -> Any:
    """Return the elements of each tensor, as an int64 vector."""
    if all(tensor.shape.is_fully_defined() for tensor in tensors):
        return np.array([tensor.shape.num_elements() for tensor in tensors], np.int64)
    return tf.stack([tf.size(tensor, out_type=tf.int64) for tensor in tensors])


def _combined(*given: Any, op: str, labels: list[str], team: int) -> list[Any]:
    """Return dense eager tensors combined over the ranks. They are given, then the elements of each part of each."""
    whole, sizes = given[: len(given) // 2], [np.array(each) for each in given[len(given) // 2 :]]
    users, begun = averaging.of(team), time.perf_counter()
    if op == "mean" and users.lags():
        arrays = [np.array(one) for one in whole]
        pipelined(team, users, arrays, from_gpu=True)
        own = [tf.constant(array) for array in arrays]
    else:
        own = [_copy(one) for one in whole]
        _combine(own, sizes, op, labels)
    if not op.startswith("broadcast"):
        users.note(time.perf_counter() - begun)
    return own


def _copy(dense: Any) -> Any:
    """Return a copy on the GPU in memory of its own: an identity would share it, joining always fills new memory."""
    with tf.device(DEVICE):
        return tf.raw_ops.ConcatV2(values=[dense, tf.zeros([0], dense.dtype)], axis=0)


def _combine(own: list[Any], sizes: Sequence[np.ndarray], op: str, labels: list[str]) -> None:
    """Write into ``own``, which nobody else has, and return when it is done."""
    buffers = []
    context.async_wait()  # else to_dlpack might come before an operation that eager code has put off
    for one, each in zip(own, sizes, strict=True):
        address, _, kind = dlpack.described(tf.experimental.dlpack.to_dlpack(one), one)
        for n in each.tolist():
            buffers.append((address, n, kind))
            address += n * one.dtype.size
    kind, _, root = op.partition(" ")
    how = {"root": int(root)} if kind == "broadcast" else {"op": kind}
    device.start(buffers, _team(), labels, None, **how).land()


_team = cache(own_team)


def _against() -> str:
    """Return why this rank's tensors cannot be reduced on its GPU; "": they can."""
    if os.environ.get("DL_COMM_GPU_PATH") == "staged":
        return "has DL_COMM_GPU_PATH=staged"
    if not tf.compat.v1.executing_eagerly_outside_functions():
        return "runs its graphs in sessions"
    if not tf.test.is_built_with_cuda():
        return "has a TensorFlow without CUDA"
    if not tf.config.list_logical_devices("GPU"):
        return "has no GPU that TensorFlow sees"
    try:
        with tf.init_scope():
            tf.experimental.dlpack.to_dlpack(_copy(tf.ones([1])))
    except Exception as error:  # whatever it is, the other ranks must hear of it
        return f"gets nothing from TensorFlow's to_dlpack: {error}"
    return ""


def _say(why: str) -> None:
    if _core.rank() == 0:
        sys.stderr.write(f"dl_comm: TensorFlow copies what is on GPUs to the host, since {why}\n")
