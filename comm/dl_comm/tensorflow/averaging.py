"""Means over ranks, of gradients and of numbers."""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from copy import copy
from typing import Any

import numpy as np
import tensorflow as tf

from dl_comm import CommError, _core
from dl_comm.entrywise import has_entries, total_of_entries
from dl_comm.ranks import get_nranks, parts
from dl_comm.shares import check_fits
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
    dense = [i for i, g in enumerate(grads) if g is not None and not isinstance(g, tf.IndexedSlices)]
    names = [f"gradient {i} of {len(grads)}" for i in dense]
    for i, mean in zip(dense, reduce([grads[i] for i in dense], "mean", names, team), strict=True):
        grads[i] = mean
    sparse = [i for i, g in enumerate(grads) if isinstance(g, tf.IndexedSlices)]
    for i, mean in zip(sparse, _means_of_slices([grads[i] for i in sparse]), strict=True):
        grads[i] = mean
    return grads


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


def average(value: Any) -> Any:
    """Return the mean of ``value`` over the ranks: a float stays a float, an array an array, a tensor a tensor.

    Integers become float64; an int that is the mean stays one: a count that all ranks share. Of a tuple, list or dict
    each entry is averaged, in a dict those of one name; a dict's texts stay rank by rank. On one rank ``value`` itself
    comes back.
    """
    if get_nranks() == 1:
        return value
    kinds = {type(entry) for entry in value} if type(value) is list and len(value) > 1 else set()
    if len(kinds) == 1 and isinstance(value[0], (int, float, np.generic)):
        means = _combined(np.array(value), "mean")
        return list(means) if isinstance(value[0], np.generic) else means.tolist()
    if type(value) in (tuple, list):
        return type(value)(average(entry) for entry in value)
    if isinstance(value, dict):  # by name: the ranks may have filled it in different orders
        kept = {key for key, entry in value.items() if isinstance(entry, (str, type(None)))}
        made = copy(value)  # a defaultdict stays one
        made.update({key: average(value[key]) for key in sorted(value.keys() - kept, key=repr)})
        return made
    mean = _combined(value, "mean")
    return value if type(value) is int and mean == value else mean


def total(value: Any) -> Any:
    """Return the sum of ``value`` over the ranks: of counts, of losses that are sums. Its kind stays.

    Booleans count, as int64. Integers are exact up to 2^53. Of a list, a tuple or a dict of numbers each entry is added
    up, in a dict those of one name. On one rank, and where all repeat the serial run (``DL_COMM_REPLICATE``), ``value``
    itself comes back. Raises ``dl_comm.CommError`` when a sum does not fit the
    dtype; in a graph that is not seen.
    """
    if parts() == 1:
        return value
    if has_entries(value):
        return total_of_entries(value)
    if tf.is_tensor(value) or isinstance(value, tf.Variable):
        tensor = tf.cast(value, tf.int64) if value.dtype == tf.bool else tf.convert_to_tensor(value)
        found = _combined(tensor, "sum")
        if tensor.dtype.is_integer and tf.executing_eagerly():
            check_fits(found.numpy(), tensor.dtype.name)
        return tf.cast(found, tensor.dtype)
    kind: Any = np.asarray(value).dtype
    found = _combined(value, "sum")
    if kind.kind in "iu":
        check_fits(np.asarray(found), kind.name)
    kind = np.dtype(np.int64) if kind.kind == "b" else kind
    if isinstance(value, np.ndarray):
        return np.asarray(found).astype(kind)
    if isinstance(value, np.generic):
        return kind.type(found)
    return int(found) if isinstance(value, bool) else type(value)(found)


def _combined(value: Any, op: str) -> Any:
    what = "average" if op == "mean" else "total"
    if tf.is_tensor(value) or isinstance(value, tf.Variable):
        value = tf.convert_to_tensor(value)
        exact = value if value.dtype.is_floating or value.dtype.is_complex else tf.cast(value, tf.float64)
        return reduce([exact], op, [what])[0]
    array = np.array(value)
    if array.dtype.kind not in "fc":
        array = array.astype(np.float64)
    buffer = array.view(array.real.dtype) if array.dtype.kind == "c" else array
    _core.allreduce([(array.ctypes.data, buffer.size, buffer.dtype.name)], op, 0, [f"{what} {array.shape}"])
    return array if isinstance(value, np.ndarray) else array[()] if isinstance(value, np.generic) else array.item()
