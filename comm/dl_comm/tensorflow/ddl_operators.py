"""What DDL's operators do, for the kernels in ``ddl_MDR.so``, which imports this module when TensorFlow loads it.

A script that loads them itself, as DDL's own ``ddl.py`` does, is on its own: it places its ops and averages what it
wants averaged. That ``ddl.py`` replaces ``tf.Variable.__init__`` to broadcast initial values, and TensorFlow does not
call this any more. So while it is replaced, trainable variables start with rank 0's values all the same.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from dl_comm import CommError, _core
from dl_comm.machine import share_of_machine
from dl_comm.rank0s_order import Rank0sOrder
from dl_comm.ranks import get_localrank, get_localsize, get_nranks, get_rank
from dl_comm.tensorflow import initial_values, starting
from dl_comm.tensorflow.op import CALLBACK, array_at, real

FILE = "ddl_MDR.so"
_order: Rank0sOrder | None = None


def installed(asked: Path) -> Path:
    """Return where ``ddl_MDR.so`` is installed; for a path of DDL 1's, the one whose Init has three outputs."""
    folder = "ddl-tensorflow/lib" if asked.parent.as_posix().endswith("ddl-tensorflow/lib") else "ddl"
    return Path(str(_core.__file__)).parent / "lib" / folder / FILE


def serve(use: int) -> None:
    """Join the ranks, and give the library whose function at the address ``use`` takes it what its kernels call."""
    global _order
    if get_nranks() > 1 and _order is None:
        initial_values.begin()
        _order = Rank0sOrder()
        starting.initialize_alike(_replaced)
    ctypes.CFUNCTYPE(None, CALLBACK)(use)(_called_back)


def _replaced() -> bool:
    """Tell whether the script has put a function of its own in the place of that which makes variables."""
    makers = (vars(kind).get("__init__") for kind in (tf.Variable, tf.compat.v1.Variable))
    return any(maker is not None and not maker.__module__.startswith("tensorflow.") for maker in makers)


def find_by_name() -> None:
    """From now on ``tf.load_op_library`` finds ``ddl_MDR.so`` where this package has it, if nowhere else."""
    from tensorflow.python.framework import load_library

    load = load_library.load_op_library

    def load_op_library(library_filename: Any) -> Any:
        """Load a library of ops; DDL's operators, wherever they are said to be, from dl_comm."""
        given = Path(os.fspath(library_filename))
        if given.name == FILE and not given.is_file():
            library_filename = str(installed(given))
        return load(library_filename)

    for module in (tf, tf.compat.v1, load_library):
        module.load_op_library = load_op_library


def _act(
    team: int, op: bytes, names: bytes, n: int, data: Any, counts: Any, dtypes: Any, error: int, room: int
) -> None:
    try:
        kind, *how = op.decode().split()
        kinds = [tf.dtypes.as_dtype(dtypes[i]) for i in range(n)]
        if kind == "Init":
            _write(data, (get_rank(), get_nranks(), *((get_localrank(), get_localsize()) if n == 5 else ()), gpu()))
        elif _order is not None and kind == "Bcast":
            memory = [(data[i] or 0, counts[i] * kinds[i].size) for i in range(n)]
            initial_values.ACTS["initial"](memory, [names.decode()])
        elif _order is not None:
            given = [(data[i] or 0, counts[i], kinds[i]) for i in range(n)]
            _order.run(names.decode(), _reduction(names.decode(), given, *how))
    except BaseException as caught:
        text = str(caught).encode()[: room - 1] or type(caught).__name__.encode()
        ctypes.memmove(error, text + b"\0", len(text) + 1)


_called_back = CALLBACK(_act)  # as long as the process lives


def _write(data: Any, numbers: Sequence[int]) -> None:
    for i, number in enumerate(numbers):
        ctypes.c_int32.from_address(data[i]).value = number


def gpu() -> int:
    """Return the number, of the GPUs that this process sees, of the one for this rank; its local rank without any."""
    gpus = tf.config.list_physical_devices("GPU")
    if not gpus or get_nranks() == 1:
        return 0 if gpus else get_localrank()
    mask = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    share = share_of_machine([mask[i] if i < len(mask) and mask[i] else str(i) for i in range(len(gpus))])
    return share.gpu or 0


def _reduction(
    name: str, given: Sequence[tuple[int, int, Any]], op: str, mpi: str, check: str
) -> Callable[[int], None]:
    """Return what reduces tensors (address, elements, dtype) in place on a team."""
    how = {"avg": "mean", "sum": "sum"}[op]
    labels = [f"{name}, tensor {i} of {len(given)}" for i in range(len(given))]
    tolerance = float(check)
    if mpi == "1" or tolerance > 0:
        refuse_others_than_float32([kind.name for _, _, kind in given])

    def act(team: int) -> None:
        arrays = [array_at(*one) for one in given]
        if mpi == "1":
            for array in arrays:
                array[:] = by_mpi(array, how)
            return
        expected = [by_mpi(array, how) for array in arrays] if tolerance > 0 else []
        _core.allreduce([real(*one) for one in given], how, team, labels)
        for place, (ours, theirs) in enumerate(zip(arrays, expected, strict=False)):
            compare(place, ours, theirs, tolerance)

    return act


def refuse_others_than_float32(kinds: Sequence[str]) -> None:
    """Raise CommError unless all are float32, which is what MPI reduces as a baseline."""
    for kind in kinds:
        if kind != "float32":
            raise CommError(f"MPI's own reduction is there for float32, not {kind}", "Do without mpi and check.")


def by_mpi(array: Any, how: str) -> Any:
    """Return a float32 array summed, or averaged, over the ranks by the MPI library."""
    total = np.array(array, order="C")
    _core.mpi_allreduce(total.ctypes.data, total.size)
    return total / np.float32(_core.size()) if how == "mean" else total


def compare(place: int, ours: Any, theirs: Any, tolerance: float) -> None:
    """Raise CommError where a reduction is off MPI's by more than ``tolerance`` of its largest value, or has a NaN."""
    largest = max(float(np.max(np.abs(theirs), initial=0.0)), 1e-30)
    worst = float(np.max(np.abs(ours - theirs), initial=0.0)) / largest
    if not worst <= tolerance:
        raise CommError(
            f"tensor {place} on rank {_core.rank()} differs from MPI's reduction by {worst:.3g} of its largest "
            f"value, more than {tolerance:.3g}"
        )
