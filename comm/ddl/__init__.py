"""IBM's DDL, as TensorFlow 1 scripts use it: ``import ddl`` makes the rest of the script distributed.

Importing it joins the ranks, shows each its own GPU, makes the op that initialises variables give all ranks rank 0's
values, and makes every ``tf.compat.v1.train.Optimizer`` average its gradients before it applies them. Scripts that
restore a checkpoint instead of initialising must do so on every rank. Without MPI this process is rank 0 of 1, and
the collective functions raise ``RuntimeError``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import dl_comm.tensorflow as dl
import numpy as np
import tensorflow as tf
from dl_comm import CommError, _core
from dl_comm.tensorflow.op import reduce
from tensorflow.python.ops import variables as _variables

__all__ = [
    "DDLCallback",
    "DDLGlobalVariablesCallback",
    "allreduce_n",
    "bcast",
    "grads_reduce",
    "init",
    "local_rank",
    "num_hosts",
    "rank",
    "size",
]


def init(options: str = "") -> None:
    """Join the ranks. ``options`` (``-mode p:6x2``) is accepted: the layout is found, not told.

    Random numbers and orders stay each rank's own: a script lets each rank shuffle, or cuts by ``rank()`` itself.
    """
    dl.init(alike=False)


def rank() -> int:
    """Return this process's rank."""
    return dl.get_rank()


def size() -> int:
    """Return the number of ranks."""
    return dl.get_nranks()


def local_rank() -> int:
    """Return this process's rank among those of its node."""
    return dl.get_localrank()


def num_hosts() -> int:
    """Return the number of nodes."""
    return _core.session().nodes() if size() > 1 else 1


def bcast(tensor: Any, root: int = 0) -> Any:
    """Return rank ``root``'s value of a tensor or variable."""
    _need_ranks("bcast")
    return dl.broadcast([tensor], root)[0]


def allreduce_n(
    grads: Sequence[Any], average: bool = True, op: str = "", mpi: bool = False, check: float = 0.0
) -> list[Any]:
    """Return the mean (or, with ``average=False`` or ``op="sum"``, the sum) over the ranks of each tensor.

    ``mpi=True`` lets the MPI library reduce, as a baseline. ``check > 0`` does both, and fails with the tensor, the
    rank and the difference where they differ by more than ``check``, relative to the largest value. Both need float32.
    """
    _need_ranks("allreduce_n")
    grads = list(grads)
    how = {"avg": "mean", "mean": "mean", "sum": "sum", "": "mean" if average else "sum"}[op]
    if mpi:
        return _by_mpi(grads, how)
    if check <= 0:
        return dl.gradients(grads) if how == "mean" else _sums(grads)
    expected = _by_mpi(grads, how)
    with tf.control_dependencies([e for e in expected if e is not None]):
        grads = [None if g is None else tf.identity(g) for g in grads]
    ours = dl.gradients(grads) if how == "mean" else _sums(grads)
    return [o if o is None else _checked(i, o, e, check) for i, (o, e) in enumerate(zip(ours, expected, strict=True))]


def grads_reduce(grads_and_vars: Sequence[tuple[Any, Any]], average: bool = True) -> list[tuple[Any, Any]]:
    """Return the pairs with each gradient replaced by its mean, or sum, over the ranks."""
    pairs = list(grads_and_vars)
    return list(zip(allreduce_n([g for g, _ in pairs], average), [v for _, v in pairs], strict=True))


def _need_ranks(call: str) -> None:
    if size() == 1:
        raise RuntimeError(f"ddl.{call} needs MPI: this is rank 0 of 1. Start the script with dlrun launch -n 2 ...")


def _sums(grads: list[Any]) -> list[Any]:
    present = [g for g in grads if g is not None]
    sums = iter(reduce(present, "sum", [f"tensor {i} of {len(present)}" for i in range(len(present))]))
    return [None if g is None else next(sums) for g in grads]


def _by_mpi(grads: list[Any], how: str) -> list[Any]:
    present = [tf.convert_to_tensor(g) for g in grads if g is not None]

    def together(*arrays: Any) -> Any:
        sums = [np.array(a, order="C") for a in arrays]
        for total in sums:
            if total.dtype != np.float32:
                raise CommError(
                    f"MPI's own reduction is there for float32, not {total.dtype}", "Do without mpi and check."
                )
            _core.mpi_allreduce(total.ctypes.data, total.size)
        return [total / np.float32(size()) if how == "mean" else total for total in sums]

    results = tf.numpy_function(together, present, [g.dtype for g in present])
    for result, g in zip(results, present, strict=True):
        result.set_shape(g.shape)
    left = iter(results)
    return [None if g is None else next(left) for g in grads]


def _checked(place: int, ours: Any, expected: Any, tolerance: float) -> Any:
    def compare(a: Any, b: Any) -> Any:
        worst = float(np.max(np.abs(a - b), initial=0.0)) / max(float(np.max(np.abs(b), initial=0.0)), 1e-30)
        if not worst <= tolerance and not np.array_equal(a, b, equal_nan=True):
            raise CommError(
                f"tensor {place} on rank {rank()} differs from MPI's reduction by {worst:.3g} of its largest value, "
                f"more than {tolerance:.3g}"
            )
        return a

    checked = tf.numpy_function(compare, [ours, expected], ours.dtype)
    checked.set_shape(ours.shape)
    return checked


class DDLCallback(tf.keras.callbacks.Callback):  # type: ignore[misc]
    """Makes a Keras model average its gradients, and its metrics at the end of each epoch."""

    def set_model(self, model: Any) -> None:
        """Change the model's optimizer."""
        from dl_comm.keras import Distribute

        super().set_model(model)
        self._distributing = Distribute()
        self._distributing.set_model(model)

    def on_test_begin(self, logs: Any = None) -> None:
        """Average the statistics of BatchNormalization layers."""
        self._distributing.on_test_begin(logs)

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Average the metrics, in place."""
        self._distributing.on_epoch_end(epoch, logs)


class DDLGlobalVariablesCallback(tf.keras.callbacks.Callback):  # type: ignore[misc]
    """Gives a Keras model rank 0's weights and optimizer state when training begins."""

    def on_train_begin(self, logs: Any = None) -> None:
        """Broadcast."""
        from dl_comm.keras import Broadcast

        start = Broadcast()
        start.set_model(self.model)
        start.on_train_begin(logs)


def _distribute_sessions() -> None:
    """Change what scripts of TensorFlow 1 call: initialisers broadcast, optimizers average."""
    initializer = _variables.variables_initializer
    apply = tf.compat.v1.train.Optimizer.apply_gradients

    def variables_initializer(var_list: Sequence[Any], name: str = "init") -> Any:
        first = initializer(var_list, name)
        if not var_list or tf.executing_eagerly():
            return first
        with tf.control_dependencies([first]):
            return dl.broadcast_variables(var_list)

    def global_variables_initializer() -> Any:
        return variables_initializer(tf.compat.v1.global_variables())

    def apply_gradients(self: Any, grads_and_vars: Any, *args: Any, **kwargs: Any) -> Any:
        return apply(self, grads_reduce(grads_and_vars), *args, **kwargs)

    for module in (_variables, tf.compat.v1):
        module.variables_initializer = variables_initializer
        module.global_variables_initializer = global_variables_initializer
    tf.compat.v1.initializers.global_variables = global_variables_initializer
    tf.compat.v1.initialize_all_variables = global_variables_initializer
    tf.compat.v1.train.Optimizer.apply_gradients = apply_gradients


init()
if size() > 1:
    _distribute_sessions()
