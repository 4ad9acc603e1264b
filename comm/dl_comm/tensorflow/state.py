"""Everybody starts from the same variables."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from dl_comm.ranks import get_nranks
from dl_comm.tensorflow.op import reduce


def broadcast(tensors: Sequence[Any], root: int = 0) -> list[Any]:
    """Return rank ``root``'s values of the tensors or variables, in the same order, for the caller to assign.

    Any dtypes that have a size; in a graph the result are tensors that will hold the values.
    """
    tensors = list(tensors)
    if get_nranks() == 1:
        return tensors
    names = [getattr(t, "name", None) if isinstance(t, tf.Variable) else None for t in tensors]
    return reduce(
        [t.read_value() if isinstance(t, tf.Variable) else t for t in tensors],
        f"broadcast {root}",
        [name or f"tensor {i} of {len(tensors)}" for i, name in enumerate(names)],
    )


def broadcast_variables(variables: Sequence[Any], root: int = 0) -> Any:
    """Give the variables rank ``root``'s values: at once in eager code; in a graph return the op that does.

    Pass the optimizer's variables too, once they exist. Variables may be TensorFlow's or Keras's.
    """
    native = [getattr(v, "value", v) if not isinstance(v, tf.Variable) else v for v in variables]
    native = [v() if callable(v) and not isinstance(v, tf.Variable) else v for v in native]
    if get_nranks() == 1:
        return None if tf.executing_eagerly() else tf.no_op()
    assigned = [v.assign(value) for v, value in zip(native, broadcast(native, root), strict=True)]
    return None if tf.executing_eagerly() else tf.group(*[getattr(a, "op", a) for a in assigned])


class BroadcastHook(tf.compat.v1.train.SessionRunHook):  # type: ignore[misc]
    """For MonitoredTrainingSession and Estimator: after the session is made, all variables become rank ``root``'s.

    ``variables`` returns which; all global ones (slots and global step too) unless given.
    """

    def __init__(self, root: int = 0, variables: Callable[[], Sequence[Any]] = tf.compat.v1.global_variables) -> None:
        self._root, self._variables = root, variables
        self._op: Any = None

    def begin(self) -> None:
        """Add the broadcast to the graph that is now complete."""
        self._op = broadcast_variables(self._variables(), self._root)

    def after_create_session(self, session: Any, coord: Any) -> None:
        """Run it."""
        session.run(self._op)
