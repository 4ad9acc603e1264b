"""Reductions of DDL: as the script calls them, and in optimizers by themselves."""

from __future__ import annotations

import functools
import itertools
import os
from collections.abc import Callable, Iterator
from typing import Any

import dl_comm.tensorflow as dl
import tensorflow as tf
from dl_comm.keras.backend import KERAS_3
from dl_comm.overflow import averaged_outside
from dl_comm.tensorflow import ddl_operators as operators
from dl_comm.tensorflow import starting
from dl_comm.tensorflow.op import reduce

OPS = {"avg": "mean", "mean": "mean", "sum": "sum"}
explicit = False  # the script calls what communicates itself
callback = False  # but for Keras, which has DDLCallback
_nested = 0  # optimizers that apply through others


def reduced(grads: list[Any], op: str = "avg", mpi: bool = False, check: float = 0.0) -> list[Any]:
    """Return the tensors reduced over the ranks; those that ``reduced`` has returned, as they are."""
    if op not in OPS:
        raise ValueError(f"the op of a reduction is {op!r}, and DDL has 'avg' and 'sum': give it one of these")
    how = OPS[op]
    if mpi:
        return _marked(_by_mpi(grads, how))
    if check <= 0:
        return _marked(dl.gradients(grads) if how == "mean" else _sums(grads))
    expected = _by_mpi(grads, how)
    with tf.control_dependencies([e for e in expected if e is not None]):
        grads = [None if g is None else tf.identity(g) for g in grads]
    ours = dl.gradients(grads) if how == "mean" else _sums(grads)
    pairs = enumerate(zip(ours, expected, strict=True))
    return _marked([o if o is None else checked(i, o, e, check) for i, (o, e) in pairs])


def of_pairs(pairs: list[tuple[Any, Any]], op: str = "avg") -> list[tuple[Any, Any]]:
    """Return gradients and variables with the gradients reduced; the first time, the variables are compared."""
    with tf.control_dependencies(starting.check_alike([v for g, v in pairs if g is not None])):
        grads = [g if g is None or isinstance(g, tf.IndexedSlices) else tf.identity(g) for g, _ in pairs]
    means = itertools.chain.from_iterable(reduced(group, op) for group in _groups(grads))
    return list(zip(means, [v for _, v in pairs], strict=True))


def _groups(grads: list[Any]) -> Iterator[list[Any]]:
    """Yield the gradients in groups of about DDL_GROUP_SIZE elements."""
    text = os.environ.get("DDL_GROUP_SIZE", "")
    if text and not text.isdigit():
        raise ValueError(f"DDL_GROUP_SIZE is {text!r}: give a number of elements, as 200000")
    most, group, elements = int(text or 0), [], 0
    for grad in grads:
        shape = None if grad is None or isinstance(grad, tf.IndexedSlices) else grad.shape
        size = shape.num_elements() or 0 if shape is not None else 0
        if most and group and elements + size > most:
            yield group
            group, elements = [], 0
        group.append(grad)
        elements += size
    if group:
        yield group


def _marked(grads: list[Any]) -> list[Any]:
    for grad in grads:
        if grad is not None:
            grad._ddl_reduced = True
    return grads


def _sums(grads: list[Any]) -> list[Any]:
    present = [g for g in grads if g is not None]
    sums = iter(reduce(present, "sum", [f"tensor {i} of {len(present)}" for i in range(len(present))]))
    return [None if g is None else next(sums) for g in grads]


def _by_mpi(grads: list[Any], how: str) -> list[Any]:
    present = [tf.convert_to_tensor(g) for g in grads if g is not None]
    operators.refuse_others_than_float32([g.dtype.name for g in present])

    def together(*arrays: Any) -> Any:
        return [operators.by_mpi(a, how) for a in arrays]

    results = tf.numpy_function(together, present, [g.dtype for g in present])
    for result, g in zip(results, present, strict=True):
        result.set_shape(g.shape)
    left = iter(results)
    return [None if g is None else next(left) for g in grads]


def checked(place: int, ours: Any, expected: Any, tolerance: float) -> Any:
    """Return ``ours``; raise CommError when that runs where it is not ``expected``."""

    def compare(a: Any, b: Any) -> Any:
        operators.compare(place, a, b, tolerance)
        return a

    result = tf.numpy_function(compare, [ours, expected], ours.dtype)
    result.set_shape(ours.shape)
    return result


def average_in_optimizers() -> None:
    """Change the classes of optimizers: they average before they apply, but for gradients that are reduced already."""
    v1 = tf.compat.v1.train.Optimizer
    v1.apply_gradients = _averaging_pairs(v1.apply_gradients, lambda: not explicit)
    scaled = getattr(tf.compat.v1.mixed_precision, "MixedPrecisionLossScaleOptimizer", None)
    if scaled is not None:  # an overflow on one rank skips the step on all
        scaled.apply_gradients = _averaging_pairs(scaled.apply_gradients, lambda: not explicit)
    for kind in _of_keras():
        if KERAS_3:
            kind.apply = _averaging_list(kind.apply)
        else:
            kind.apply_gradients = _averaging_pairs(kind.apply_gradients, lambda: not explicit or callback)


def _of_keras() -> list[Any]:
    """Return the classes whose ``apply_gradients``, or ``apply`` in Keras 3, are the outermost."""
    optimizers = tf.keras.optimizers
    if KERAS_3:
        kinds = [optimizers.Optimizer, optimizers.LossScaleOptimizer]
    else:
        from keras.src.mixed_precision import loss_scale_optimizer as scaling

        own = [optimizers.Optimizer, optimizers.legacy.Optimizer]
        kinds = [*own, scaling.LossScaleOptimizer, scaling.LossScaleOptimizerV3]
    name = "apply" if KERAS_3 else "apply_gradients"
    owners = (next(base for base in kind.__mro__ if name in vars(base)) for kind in kinds)
    return list(dict.fromkeys(owners))


def _averaging_pairs(apply: Any, active: Callable[[], bool]) -> Any:
    @functools.wraps(apply)
    def apply_gradients(self: Any, grads_and_vars: Any, *args: Any, **kwargs: Any) -> Any:
        pairs = list(grads_and_vars)
        if active() and _averages_here(self, [g for g, _ in pairs]):
            pairs = of_pairs(pairs)
        return _applied(apply, self, pairs, *args, **kwargs)

    return apply_gradients


def _averaging_list(apply: Any) -> Any:
    @functools.wraps(apply)
    def averaged(self: Any, grads: Any, trainable_variables: Any = None) -> Any:
        grads = list(grads)
        if (not explicit or callback) and _averages_here(self, grads):
            variables = trainable_variables if trainable_variables is not None else self._trainable_variables
            native = [getattr(v, "value", v) for v in variables]
            grads = [g for g, _ in of_pairs(list(zip(grads, native, strict=True)))]
        return _applied(apply, self, grads, trainable_variables)

    return averaged


def _averages_here(optimizer: Any, grads: list[Any]) -> bool:
    """Tell whether nobody has averaged these gradients, nor will."""
    present = [g for g in grads if g is not None]
    done = all(getattr(g, "_ddl_reduced", False) or _is_of_ddls_operators(g) for g in present)
    return not (done or _nested or hasattr(optimizer, "_dl_comm_averages") or averaged_outside(optimizer))


def _is_of_ddls_operators(grad: Any) -> bool:
    return not tf.executing_eagerly() and getattr(getattr(grad, "op", None), "type", "") in ("AllReduce", "AllReduceN")


def _applied(apply: Any, *args: Any, **kwargs: Any) -> Any:
    global _nested
    _nested += 1
    try:
        return apply(*args, **kwargs)
    finally:
        _nested -= 1
