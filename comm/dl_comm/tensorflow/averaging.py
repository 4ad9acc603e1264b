"""Means over ranks, of gradients and of numbers."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from dl_comm import _core
from dl_comm.ranks import get_nranks
from dl_comm.tensorflow.op import reduce
from dl_comm.tensorflow.state import settle


def gradients(grads: Any, team: int = 0) -> Any:
    """Return the means over ranks of a list of gradients, in the same order; in a graph, the tensors that will be.

    What ``tape.gradient`` returned for other structures than a list (one tensor, a dict, nested lists) is taken, too.

    Put it between what computes the gradients and what reads them (clipping, ``apply_gradients``). ``None`` stays
    ``None`` (a gradient must be ``None`` on all ranks or on none). ``IndexedSlices`` stay so: their rows are those of
    all ranks, divided by the number of ranks. float64, float32, float16, bfloat16 and complex gradients may be mixed.

    ``team`` is whose ``config_team`` says how often the time waited is reported; calls always block.

    The sum is formed in rank order, so all ranks get the same bits. When the ranks bring different gradients, every
    rank gets an error (in a graph, at run time) that names the first one that differs.
    """
    if tf.is_tensor(grads) or isinstance(grads, (tf.IndexedSlices, Mapping)) or _is_nested(grads):
        flat = gradients(tf.nest.flatten(grads), team)
        return tf.nest.pack_sequence_as(grads, flat)
    grads = list(grads)
    if get_nranks() == 1:
        return grads
    if tf.executing_eagerly() or tf.inside_function():
        settle()
    dense = [i for i, g in enumerate(grads) if g is not None and not isinstance(g, tf.IndexedSlices)]
    names = [f"gradient {i} of {len(grads)}" for i in dense]
    for i, mean in zip(dense, reduce([grads[i] for i in dense], "mean", names, team), strict=True):
        grads[i] = mean
    return [_mean_of_slices(g) if isinstance(g, tf.IndexedSlices) else g for g in grads]


def _is_nested(grads: Any) -> bool:
    return isinstance(grads, (list, tuple)) and any(isinstance(g, (list, tuple, Mapping)) for g in grads)


def _mean_of_slices(grad: Any) -> Any:
    """Gather the rows of all ranks, each divided by the number of ranks. Equal rows add up when they are applied."""
    n = get_nranks()

    def gather(values: Any, indices: Any) -> Any:
        parts = [pickle.loads(b) for b in _core.allgather_bytes(pickle.dumps((values / n, indices)))]
        return [np.concatenate([p[k] for p in parts]).astype(part.dtype) for k, part in enumerate((values, indices))]

    values, indices = tf.numpy_function(gather, [grad.values, grad.indices], [grad.values.dtype, grad.indices.dtype])
    values.set_shape([None, *grad.values.shape[1:]])
    indices.set_shape([None])
    return tf.IndexedSlices(values, indices, grad.dense_shape)


def average(value: Any) -> Any:
    """Return the mean of ``value`` over the ranks: a float stays a float, an array an array, a tensor a tensor.

    Integers become float64. On one rank ``value`` itself comes back.
    """
    if get_nranks() == 1:
        return value
    if tf.is_tensor(value) or isinstance(value, tf.Variable):
        value = tf.convert_to_tensor(value)
        exact = value if value.dtype.is_floating or value.dtype.is_complex else tf.cast(value, tf.float64)
        return reduce([exact], "mean", ["average"])[0]
    array = np.array(value)
    if array.dtype.kind not in "fc":
        array = array.astype(np.float64)
    buffer = array.view(array.real.dtype) if array.dtype.kind == "c" else array
    _core.allreduce([(array.ctypes.data, buffer.size, buffer.dtype.name)], "mean", 0, [f"average {array.shape}"])
    return array if isinstance(value, np.ndarray) else array[()] if isinstance(value, np.generic) else array.item()
