"""Means over ranks of gradients."""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from dl_comm import CommError, _core
from dl_comm.parts import weighed
from dl_comm.ranks import get_nranks
from dl_comm.tensorflow.op import reduce
from dl_comm.tensorflow.state import settle


def gradients(grads: Any, team: int = 0) -> Any:
    """Return the means over ranks of a list of gradients, in the same order; in a graph, the tensors that will be.

    What ``tape.gradient`` returned for other structures than a list (one tensor, a dict, nested lists) is taken, too.

    Put it between what computes the gradients and what reads them (clipping, ``apply_gradients``). ``None`` stays
    ``None`` (a gradient must be ``None`` on all ranks or on none). ``IndexedSlices`` stay so: their rows are those of
    all ranks, divided by the number of ranks. float64, float32, float16, bfloat16 and complex gradients may be mixed.

    ``team`` is whose ``config_team`` says which calls block and which return the means of the call before (in a graph
    that a session runs each call of this function makes an op that counts by itself), and how often the time waited
    is reported. The rows of ``IndexedSlices`` are always this call's.

    Where every rank has a GPU, and NCCL, CUDA IPC or MPI connects them, floats are reduced on the GPUs (see
    :mod:`dl_comm.tensorflow.gpu`); in sessions, and everything else, on the host.

    The sum is formed in rank order, so all ranks get the same bits. When the ranks bring different gradients, every
    rank gets an error (in a graph, at run time) that names the first one that differs.
    """
    if tf.is_tensor(grads) or isinstance(grads, (tf.IndexedSlices, Mapping)) or _is_nested(grads):
        flat = gradients(tf.nest.flatten(grads), team)
        return tf.nest.pack_sequence_as(grads, flat)
    grads = list(grads)
    if get_nranks() == 1:
        return grads
    settle()
    grads = weighed(grads, _times)
    dense = [i for i, g in enumerate(grads) if g is not None and not isinstance(g, tf.IndexedSlices)]
    names = [f"gradient {i} of {len(grads)}" for i in dense]
    for i, mean in zip(dense, reduce([grads[i] for i in dense], "mean", names, team), strict=True):
        grads[i] = mean
    sparse = [i for i, g in enumerate(grads) if isinstance(g, tf.IndexedSlices)]
    for i, mean in zip(sparse, _means_of_slices([grads[i] for i in sparse]), strict=True):
        grads[i] = mean
    return grads


def _times(grad: Any, weight: Any) -> Any:
    if isinstance(grad, tf.IndexedSlices):
        return tf.IndexedSlices(_times(grad.values, weight), grad.indices, grad.dense_shape)
    grad = tf.convert_to_tensor(grad)
    return grad * tf.cast(weight, grad.dtype)


def _is_nested(grads: Any) -> bool:
    return isinstance(grads, (list, tuple)) and any(isinstance(g, (list, tuple, Mapping)) for g in grads)


def _means_of_slices(grads: list[Any]) -> list[Any]:
    """Gather the rows of all ranks, each divided by the number of ranks. Equal rows add up when they are applied.

    So they are the rows that one process has with the batches of all. (Keras 3 squares each of them before they add up,
    which a sum over ranks would change.) Ranks that all bring the same rows, bit for bit, get those back. One op for
    all of a list: a session would run several in another order on every rank.
    """
    if not grads:
        return []
    n = get_nranks()
    what = f"{len(grads)} sparse gradients of shapes {', '.join(str(g.values.shape[1:]) for g in grads)}"

    def gather(*parts: Any) -> list[Any]:
        everyone = [pickle.loads(b) for b in _core.allgather_bytes(pickle.dumps((what, parts)))]
        for rank, (theirs, _) in enumerate(everyone):
            if theirs != what:
                raise CommError(
                    f"rank {_core.rank()} averages {what} where rank {rank} has {theirs}",
                    "Average the gradients of a session in one list: its ops run in another order on every rank.",
                )
        if all(_same_bits(theirs, parts) for _, theirs in everyone):
            return list(parts)
        rows = [np.concatenate([p[i] for _, p in everyone]) for i in range(len(parts))]
        return [(r / n).astype(r.dtype) if i % 2 == 0 else r for i, r in enumerate(rows)]

    given = [part for g in grads for part in (g.values, g.indices)]
    gathered = tf.numpy_function(gather, given, [part.dtype for part in given])
    for part, whole in zip(given, gathered, strict=True):
        whole.set_shape([None, *part.shape[1:]])
    pairs = zip(gathered[::2], gathered[1::2], grads, strict=True)
    return [tf.IndexedSlices(values, indices, g.dense_shape) for values, indices, g in pairs]


def _same_bits(some: Sequence[Any], others: Sequence[Any]) -> bool:
    return all(a.shape == b.shape and a.tobytes() == b.tobytes() for a, b in zip(some, others, strict=True))
