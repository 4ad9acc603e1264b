"""IBM's DDL, as TensorFlow 1 scripts use it: ``import ddl`` makes the rest of the script distributed.

Importing it joins the ranks, shows each its own GPU, gives trainable variables rank 0's initial values, and makes the
optimizers of TensorFlow 1 and Keras average their gradients before they apply them. Scripts that restore a checkpoint
instead of initialising must do so on every rank: where variables differ, the first reduction of gradients fails.
Without MPI this process is rank 0 of 1, and the collective functions raise ``RuntimeError``.

DDL reads ``DDL_OPTIONS``: where it is set, as under ddlrun, all this holds for the whole script. Where it is not, a
script that calls ``init`` calls all else itself: from there on nothing but its own calls communicates.

A script that has ``tf.load_op_library`` load ``ddl_MDR.so``, from wherever DDL had it, is given dl_comm's.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, NamedTuple

import dl_comm.tensorflow as dl
import tensorflow as tf
from dl_comm import _core
from dl_comm.tensorflow import ddl_operators, starting

from ddl import averaging
from ddl.averaging import reduced
from ddl.callbacks import DDLCallback, DDLGlobalVariablesCallback

__all__ = [
    "DDLCallback",
    "DDLGlobalVariablesCallback",
    "Place",
    "all_reduce",
    "all_reduce_n",
    "allreduce_n",
    "bcast",
    "grads_reduce",
    "init",
    "local_gpuid",
    "local_rank",
    "local_size",
    "num_hosts",
    "rank",
    "size",
]


class Place(NamedTuple):
    """The outputs of the operator Init, int32 tensors without dimensions."""

    rank: Any
    size: Any
    local_rank: Any
    local_size: Any
    local_gpuid: Any


def init(user_gpuid: Any = -1, mode: str = "", pci: bool = True) -> Place:
    """Return who this process is, as tensors; in a graph, for a session to run.

    ``user_gpuid``, a preferred GPU, ``mode`` (``-mode p:6x2``; DDL's Python function has it first) and ``pci`` are
    accepted: the layout is found, not told, and each rank is given a GPU of its own, in the order of the PCI bus.

    Where ``DDL_OPTIONS`` is not set, the script calls all else itself from here on.
    """
    averaging.explicit |= "DDL_OPTIONS" not in os.environ
    places = (rank(), size(), local_rank(), local_size(), local_gpuid())
    return Place(*(tf.constant(place, tf.int32) for place in places))


def rank() -> int:
    """Return this process's rank."""
    return dl.get_rank()


def size() -> int:
    """Return the number of ranks."""
    return dl.get_nranks()


def local_rank() -> int:
    """Return this process's rank among those of its node."""
    return dl.get_localrank()


def local_size() -> int:
    """Return the number of ranks on this node."""
    return dl.get_localsize()


def local_gpuid() -> int:
    """Return TensorFlow's number of this process's GPU: 0, as it sees no other. Where there is none, its local rank."""
    return 0 if size() > 1 and tf.config.get_visible_devices("GPU") else local_rank()


def num_hosts() -> int:
    """Return the number of nodes."""
    return _core.session().nodes() if size() > 1 else 1


def bcast(tensor: Any, root: int = 0) -> Any:
    """Return rank ``root``'s value of a tensor or variable; in a session as many as there are, in any order."""
    _need_ranks("bcast")
    if root != 0 or tf.executing_eagerly() or hasattr(tf.compat.v1.get_default_graph(), "outer_graph"):
        return dl.broadcast([tensor], root)[0]
    value = tf.convert_to_tensor(tensor)
    return starting.in_graph(value, value.name)


def allreduce_n(
    grads: Sequence[Any],
    average: bool = True,
    device_dense: str = "",
    device_sparse: str = "",
    *,
    op: str = "",
    mpi: bool = False,
    check: float = 0.0,
) -> list[Any]:
    """Return the mean (or, with ``average=False`` or ``op="sum"``, the sum) over the ranks of each tensor.

    ``mpi=True`` lets the MPI library reduce, as a baseline. ``check > 0`` does both, and fails with the tensor, the
    rank and the difference where they differ by more than ``check``, relative to the largest value. Both need float32.
    ``device_dense`` and ``device_sparse`` are accepted: tensors are reduced where they lie. Raises ``ValueError`` for
    another ``op`` than ``avg`` and ``sum``.
    """
    _need_ranks("allreduce_n")
    return reduced(list(grads), op or ("avg" if average else "sum"), mpi, check)


def all_reduce_n(grads: Sequence[Any], op: str, mpi: bool = False, check: float = 0.0, name: Any = None) -> list[Any]:
    """Return the mean (``op="avg"``) or the sum (``op="sum"``) over the ranks: the operator AllReduceN."""
    return allreduce_n(grads, op=op, mpi=mpi, check=check)


def all_reduce(grad: Any, op: str, mpi: bool = False, check: float = 0.0, name: Any = None) -> Any:
    """Return the mean or the sum of one tensor: the operator AllReduce."""
    return all_reduce_n([grad], op, mpi, check)[0]


def grads_reduce(
    grads_and_vars: Sequence[tuple[Any, Any]], average: bool = True, device_dense: str = "", device_sparse: str = ""
) -> list[tuple[Any, Any]]:
    """Return the pairs with each gradient replaced by its mean, or sum, over the ranks.

    All at once, or, where ``DDL_GROUP_SIZE`` is set, in groups of about so many elements.
    """
    _need_ranks("grads_reduce")
    return averaging.of_pairs(list(grads_and_vars), "avg" if average else "sum")


def _need_ranks(call: str) -> None:
    if size() == 1:
        raise RuntimeError(f"ddl.{call} needs MPI: this is rank 0 of 1. Start the script with dlrun launch -n 2 ...")


# With DDL_OPTIONS set, DDL has its functions under these names only.
_init, _bcast, _allreduce_n, _grads_reduce = init, bcast, allreduce_n, grads_reduce

# Random numbers and orders stay local: a script lets each rank shuffle, or cuts by ``rank()`` itself.
dl.init(alike=False)
ddl_operators.find_by_name()
if size() > 1:
    starting.initialize_alike(lambda: not averaging.explicit)
    averaging.average_in_optimizers()
