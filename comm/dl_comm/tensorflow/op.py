"""Tensors in, the same tensors combined over the ranks out: by the list op, on the host, or on the ranks' GPUs."""

from __future__ import annotations

import ctypes
import os
import sys
import time
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import tensorflow as tf

from dl_comm import CommError, _core, averaging, settings
from dl_comm.tensorflow import gpu, initial_values
from dl_comm.tensorflow.pipelined import pipelined

CALLBACK = ctypes.CFUNCTYPE(
    None,
    ctypes.c_int,  # team
    ctypes.c_char_p,  # op
    ctypes.c_char_p,  # names
    ctypes.c_int,  # how many arrays
    ctypes.POINTER(ctypes.c_void_p),
    ctypes.POINTER(ctypes.c_int64),  # elements
    ctypes.POINTER(ctypes.c_int),  # TF_DataType
    ctypes.c_void_p,  # where to write an error,
    ctypes.c_int,  # and its size
)

# A session runs the ops of a graph in any order, and another one on every rank, so each gets a team of its own: the
# k-th op of every graph team _FIRST + k. Control dependencies would also order them, but running one would run all.
_FIRST, _MOST = 100, 250
_made: WeakKeyDictionary[Any, int] = WeakKeyDictionary()
_teams: set[int] = set()
# Which team of the user's an op of a graph stands for: time waited is counted for that one.
_stands_for: dict[int, int] = {}


@tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
def reduce(tensors: Sequence[Any], op: str, names: Sequence[str], team: int = 0) -> list[Any]:
    """Return the tensors combined over the ranks: ``op`` is mean, sum, min, max, prod or ``broadcast ROOT``.

    The ranks compare ``names``, to which dtypes and, outside of a ``tf.function``, shapes are added. Any dtypes in one
    call. In a graph that a session runs, making the op is collective, too.
    """
    if not tensors:
        return []
    tensors = [tf.convert_to_tensor(t) for t in tensors]
    labels = [f"{name} {_shape(t)}{t.dtype.name}" for name, t in zip(names, tensors, strict=True)]
    graph = None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()
    if graph is not None and not hasattr(graph, "outer_graph"):
        # Not in a tf.function, where stateful ops run in the order of the program.
        own = _own_team(graph)
        _stands_for[own] = team
        return on_host(tensors, op, labels, own)
    if graph is not None:
        _refuse_xla()
    there = [i for i, t in enumerate(tensors) if gpu.takes(t)] if gpu.in_use() else []
    here = [i for i in range(len(tensors)) if i not in there]
    results: dict[int, Any] = {}
    for places, act in ((there, gpu.reduce), (here, on_host)):
        if places:
            done = act([tensors[i] for i in places], op, [labels[i] for i in places], team)
            results |= zip(places, done, strict=True)
    return [results[i] for i in range(len(tensors))]


def _shape(tensor: Any) -> str:
    """Return the shape for a label; none in a ``tf.function``, whose trace may know other sizes on each rank."""
    return f"{tensor.shape} " if tf.executing_eagerly() or not hasattr(tensor.graph, "outer_graph") else ""


def on_host(tensors: Sequence[Any], op: str, labels: Sequence[str], team: int = 0) -> list[Any]:
    """The list op; TensorFlow copies tensors that are on a GPU to the host, and their means back.

    ``op`` is one of those of ``reduce``, or of ``initial_values.ACTS``, whose ops may run in any order.
    """
    with tf.device("/CPU:0"):
        return list(_library().dl_reduce(tensors, op=op, names="\n".join(labels), team=team))


def _refuse_xla() -> None:
    """Raise CommError if a ``tf.function(jit_compile=True)`` is being traced: XLA would refuse in words of its own."""
    frame = sys._getframe(1)
    while frame is not None:
        tracing = frame.f_locals.get("self")
        if hasattr(tracing, "get_concrete_function") and getattr(tracing, "_jit_compile", False):
            raise CommError(
                "XLA cannot compile the averaging of gradients, and this tf.function has jit_compile=True",
                "Leave jit_compile out here, or give it to a tf.function of its own that computes the gradients.",
            )
        frame = frame.f_back  # type: ignore[assignment]


def _own_team(graph: Any) -> int:
    place = _made.get(graph, 0)
    _made[graph] = place + 1
    if place >= _MOST:
        raise CommError(f"a graph has more than {_MOST} dl_comm ops", "Average the gradients in one list.")
    team = _FIRST + place
    if team not in _teams:
        _teams.add(team)
        _core.create_team(team, settings.threads(os.environ))
    return team


@cache
def _library() -> Any:
    path = Path(_core.__file__).with_name("tensorflow") / "_op.so"
    if not path.exists():
        raise CommError(f"TensorFlow's op is not installed: {path} is missing", "Install dlrun again with a compiler.")
    module = tf.load_op_library(str(path))
    library = ctypes.CDLL(str(path))
    library.dl_tensorflow_error.restype = ctypes.c_char_p
    if error := library.dl_tensorflow_error():
        raise CommError(f"TensorFlow {tf.__version__} did not take the op: {error.decode()}", "Use 2.15 or later.")
    library.dl_tensorflow_use(_called_back)
    return module


def _reduce(
    team: int, op: bytes, names: bytes, n: int, data: Any, counts: Any, dtypes: Any, error: int, error_bytes: int
) -> None:
    try:
        kinds = [tf.dtypes.as_dtype(dtypes[i]) for i in range(n)]
        labels = names.decode().split("\n")
        kind, _, root = op.decode().partition(" ")
        if kind in initial_values.ACTS:
            initial_values.ACTS[kind]([(data[i] or 0, counts[i] * kinds[i].size) for i in range(n)], labels)
        elif kind == "broadcast":
            raw = [(data[i] or 0, counts[i] * kinds[i].size, "uint8") for i in range(n)]
            _core.broadcast(raw, int(root), labels)
        else:
            users = averaging.of(_stands_for.get(team, team))
            begun = time.perf_counter()
            if kind == "mean" and users.lags():
                pipelined(team, users, [array_at(data[i] or 0, counts[i], kinds[i]) for i in range(n)])
            else:
                _core.allreduce([real(data[i] or 0, counts[i], kinds[i]) for i in range(n)], kind, team, labels)
            users.note(time.perf_counter() - begun)
    except BaseException as caught:
        text = str(caught).encode()[: error_bytes - 1] or type(caught).__name__.encode()
        ctypes.memmove(error, text + b"\0", len(text) + 1)


_called_back = CALLBACK(_reduce)  # as long as the process lives


def real(address: int, count: int, dtype: Any) -> tuple[int, int, str]:
    """Return address, elements and type of an array; a complex number counts as two real ones."""
    return (address, 2 * count, dtype.real_dtype.name) if dtype.is_complex else (address, count, dtype.name)


def array_at(address: int, count: int, dtype: Any) -> Any:
    """Return the elements at an address as an array, complex ones as pairs of real ones."""
    _, elements, _ = real(address, count, dtype)
    kind = np.dtype(dtype.real_dtype.as_numpy_dtype)
    if elements == 0:
        return np.empty(0, kind)
    return np.frombuffer((ctypes.c_char * (elements * kind.itemsize)).from_address(address), kind)
