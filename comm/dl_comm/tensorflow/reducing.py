"""What the ranks make one of: sums, means, extremes and gathered entries of numbers and tensors."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from dl_comm import _core
from dl_comm.ranks import get_nranks
from dl_comm.reduction.calls import Reductions
from dl_comm.reduction.folding import NAMES
from dl_comm.reduction.leaves import Tensors
from dl_comm.reduction.metrics import is_metric
from dl_comm.shares import check_fits
from dl_comm.tensorflow.op import reduce
from dl_comm.tensorflow.state import native_of

_MOVING = re.compile(r"(^|/)moving_(mean|variance)$")


class TensorFlowTensors(Tensors):
    """Tensors and variables of TensorFlow, and Keras's variables."""

    def holds(self, value: Any) -> bool:
        """Tell whether it is one."""
        return bool(tf.is_tensor(value)) or isinstance(value, tf.Variable) or _is_variable(value)

    def described(self, value: Any) -> tuple[str, str]:
        """Return its dtype and place."""
        return tensor_of(value).dtype.name, ""

    def array(self, value: Any) -> np.ndarray[Any, Any]:
        """Return what it holds."""
        own = tensor_of(value)
        own = tf.cast(own, tf.float32) if own.dtype in (tf.bfloat16,) else own
        array: np.ndarray[Any, Any] = np.ascontiguousarray(own.numpy()).reshape(own.shape)
        return array

    def tensor(self, array: np.ndarray[Any, Any], dtype: str, place: str, like: Any) -> Any:
        """Return one that holds the array."""
        return tf.cast(tf.convert_to_tensor(array), dtype)


def _is_variable(value: Any) -> bool:
    return hasattr(value, "assign") and hasattr(value, "shape") and hasattr(value, "numpy")


def tensor_of(value: Any) -> Any:
    """Return a tensor, or what a variable holds, as a tensor."""
    return (
        value
        if tf.is_tensor(value) and not isinstance(value.dtype, str)
        else tf.convert_to_tensor(native_of([value])[0])
    )


class TensorFlowReductions(Reductions):
    """The reductions of numbers and tensors, in graphs too, and the means of what models keep."""

    def average(self, *values: Any, over: Any = None) -> Any:
        """Return the means."""
        models = [v for v in values if (isinstance(v, tf.Module) or _is_model(v)) and not is_metric(v)]
        models += [value for value in values if _is_session(value)]
        if not models:
            return super().average(*values, over=over)
        if not self.leaves_alone(over, repeats=False):
            for model in models:
                (_average_in_session if _is_session(model) else _average_statistics)(model)
        kept = {id(model) for model in models}
        others = [value for value in values if id(value) not in kept]
        means = super().average(*others, over=over) if others else ()
        found = iter(means if len(others) > 1 else (means,))
        made = tuple(value if id(value) in kept else next(found) for value in values)
        return made[0] if len(made) == 1 else made

    average.__doc__ = f"""{Reductions.average.__doc__.rstrip() if Reductions.average.__doc__ else ""}

        Of a model (Keras's, a ``tf.Module``) the floating-point variables that are not trained are averaged, in place:
        the moving statistics of batch normalization, before the ranks evaluate or save it in a loop by hand. Of a
        session of TensorFlow 1 those of its graph, as their names tell: ``moving_mean``, ``moving_variance``.
        """

    def exchanged(self, values: Sequence[Any], op: str) -> Sequence[Any]:
        """Reduce; tensors of a graph by an op of it."""
        if not any(map(_is_symbolic, values)):
            return super().exchanged(values, op)
        flat = tf.nest.flatten(list(values))
        return list(tf.nest.pack_sequence_as(list(values), _in_graph(flat, op)))


def _is_symbolic(value: Any) -> bool:
    """Tell whether a value is, or holds, a tensor of a graph, whose numbers are to come."""
    if isinstance(value, (list, tuple, dict)):
        return any(map(_is_symbolic, value.values() if isinstance(value, dict) else value))
    if isinstance(value, tf.Variable) or _is_variable(value):
        return not tf.executing_eagerly()
    return bool(tf.is_tensor(value)) and not hasattr(value, "numpy")


def _is_session(value: Any) -> bool:
    return hasattr(value, "run") and hasattr(value, "graph") and not hasattr(value, "trainable_weights")


def _average_in_session(session: Any) -> None:
    """Average the moving statistics that a session holds; nothing is added to its graph, which may be finalized."""
    session = session._tf_sess() if hasattr(session, "_tf_sess") else session  # that of a MonitoredSession, past hooks
    variables = [v for v in session.graph.get_collection("variables") if _MOVING.search(v.op.name)]
    if get_nranks() == 1 or not variables:
        return
    values = [np.array(value, order="C") for value in session.run(variables)]
    labels = [f"average of {v.op.name} {a.shape} {a.dtype}" for v, a in zip(variables, values, strict=True)]
    _core.allreduce([(a.ctypes.data, a.size, a.dtype.name) for a in values], "mean", 0, labels)
    givens = {v.initializer.inputs[1]: value for v, value in zip(variables, values, strict=True)}
    session.run([v.initializer for v in variables], givens)


def _is_model(value: Any) -> bool:
    return hasattr(value, "non_trainable_weights") and hasattr(value, "trainable_weights")


def _in_graph(flat: list[Any], op: str) -> list[Any]:
    """Return the tensors of a graph reduced, in one op; None and texts as they are."""
    places = [i for i, value in enumerate(flat) if value is not None and not isinstance(value, (str, bytes))]
    given = [tf.convert_to_tensor(tensor_of(flat[i])) for i in places]
    given = [tf.cast(g, tf.int64) if g.dtype == tf.bool else g for g in given]
    exact = [g if op in ("max", "min") or not g.dtype.is_integer else tf.cast(g, tf.float64) for g in given]
    found = reduce(exact, op, [f"{NAMES[op]} of {len(exact)} values"] * len(exact))
    made = list(flat)
    for place, tensor, own in zip(places, found, given, strict=True):
        made[place] = tensor if op == "mean" else tf.cast(tensor, own.dtype)
        if own.dtype.is_integer and op == "sum" and tf.executing_eagerly():
            check_fits(tensor.numpy(), own.dtype.name)
    return made


def _average_statistics(model: Any) -> None:
    found = getattr(model, "non_trainable_weights", None)
    if found is None:
        found = [v for v in model.variables if not v.trainable]
    native = [v for v in native_of(list(found)) if v.dtype.is_floating]
    if native and get_nranks() > 1:
        labels = [f"average of {getattr(v, 'path', v.name)}" for v in native]
        for variable, mean in zip(native, reduce([tensor_of(v) for v in native], "mean", labels), strict=True):
            variable.assign(mean)


_reductions = TensorFlowReductions(TensorFlowTensors())
average, gather, total = _reductions.average, _reductions.gather, _reductions.total
maximum, minimum = _reductions.maximum, _reductions.minimum
