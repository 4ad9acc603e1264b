"""One start for all ranks: each trainable variable's initial value is rank 0's, whatever initializes it.

And where a script assigns other values, or restores a checkpoint on some ranks only, the first reduction of its
gradients compares the variables and fails.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.framework import ops
from tensorflow.python.ops import resource_variable_ops, variables

from dl_comm import _core
from dl_comm.tensorflow import initial_values
from dl_comm.tensorflow.op import on_host, reduce

_checks = itertools.count()


def initialize_alike(active: Callable[[], bool]) -> None:
    """From now on, while ``active()``, trainable variables of TensorFlow start with rank 0's initial values.

    Each one's broadcast is part of its initial value: in a graph an op that runs when a session initializes the
    variable, by whichever op; in eager code at once, so that making a variable is collective.
    """
    from tensorflow.python.eager.polymorphic_function import polymorphic_function
    from tensorflow.python.ops import ref_variable

    initial_values.begin()
    for kind, maker in (
        (resource_variable_ops.ResourceVariable, "_init_from_args"),
        (ref_variable.RefVariable, "_init_from_args"),
        (polymorphic_function.UnliftedInitializerVariable, "__init__"),
    ):
        setattr(kind, maker, _broadcasting(getattr(kind, maker), active))
    if active() and not tf.executing_eagerly():
        for variable in tf.compat.v1.trainable_variables():
            _start_again(variable)
    _export_without_broadcasts()


def _start_again(variable: Any) -> None:
    """Replace the initializer of a variable that was made before ddl was imported."""
    value = in_graph(variable.initial_value, f"{variable.op.name}/Initializer")
    assigned = variable.assign(value, read_value=False)
    variable._initial_value, variable._initializer_op = value, getattr(assigned, "op", assigned)


def _broadcasting(make: Any, active: Callable[[], bool]) -> Any:
    parameters = inspect.signature(make)

    @functools.wraps(make)
    def made(*args: Any, **kwargs: Any) -> Any:
        given = parameters.bind(*args, **kwargs).arguments
        initial = given.get("initial_value")
        if initial is None or not active() or not _is_trained(given):
            return make(*args, **kwargs)
        given["initial_value"] = functools.partial(_initial_value, initial, given.get("dtype"))
        own = given.pop("self")
        return make(own, **given)

    return made


def _is_trained(given: dict[str, Any]) -> bool:
    checked = variables.validate_synchronization_aggregation_trainable(
        given.get("synchronization"), given.get("aggregation"), given.get("trainable"), given.get("name")
    )
    return bool(checked[2])


def _initial_value(initial: Any, dtype: Any) -> Any:
    """Return rank 0's value of what a variable is given: a tensor, an array, a number, or a function that makes it."""
    value = initial() if callable(initial) else initial
    if type(value).__name__ == "CheckpointInitialValue":  # every rank restores it
        return value
    value = tf.convert_to_tensor(value, dtype)
    if value.dtype.size == 0 or value.dtype in (tf.string, tf.resource, tf.variant):
        return value
    if tf.executing_eagerly():
        return reduce([value], "broadcast 0", ["the initial value of a trainable variable"])[0]
    return in_graph(value, tf.compat.v1.get_default_graph().get_name_scope())


def in_graph(value: Any, name: str) -> Any:
    """Return an op with rank 0's tensor of this name; such ops may run in any order."""
    graph = tf.compat.v1.get_default_graph()
    # Not where the variable is, which may be a GPU.
    bare = graph._attr_scope({"_class": None}) if "_class" in graph._attr_scope_map else contextlib.nullcontext()
    with ops.colocate_with(None, ignore_existing=True), bare:
        broadcast = on_host([value], "initial", [name])[0]
        broadcast.set_shape(value.shape)
        return broadcast


def check_alike(trained: Sequence[Any]) -> list[Any]:
    """Compare trained variables between the ranks, once; in a graph, return the ops that do when they first run.

    Raises CommError where they differ, on every rank or (in a graph) on those that do not hold rank 0's.
    """
    trained = [v for v in trained if hasattr(v, "read_value") and not hasattr(v, "_ddl_checked")]
    if not trained:
        return []
    labels = [f"the variable {v.name} {v.shape}" for v in trained]
    graph = None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()
    if graph is not None and not hasattr(graph, "outer_graph"):
        _note(trained)
        return [_check_in_graph(trained, labels)]
    with tf.init_scope():  # also while a tf.function is traced
        if tf.executing_eagerly() and all(v.is_initialized() for v in trained):
            _note(trained)
            _check_now(trained, labels)
    return []


def _note(checked: Sequence[Any]) -> None:
    for variable in checked:
        variable._ddl_checked = True


def _check_now(trained: Sequence[Any], labels: Sequence[str]) -> None:
    arrays = [np.ascontiguousarray(v.numpy()) for v in trained]
    own = b"".join(initial_values.digest_at(a.ctypes.data, a.nbytes) for a in arrays)
    for rank, theirs in enumerate(_core.allgather_bytes(own)):
        initial_values.raise_if_different(own, theirs, labels, rank)


def _check_in_graph(trained: Sequence[Any], labels: Sequence[str]) -> Any:
    first = on_host([tf.zeros([], tf.int32)], "first", [f"check {next(_checks)} of {labels}"])[0]

    def compare() -> Any:
        with tf.control_dependencies(on_host([v.read_value() for v in trained], "compare", labels)):
            return tf.constant(0)

    return tf.cond(tf.equal(first, 1), compare, lambda: tf.constant(0))


def _export_without_broadcasts() -> None:
    """Graphs that are written out hold no broadcasts of initial values: they load where dl_comm is not installed."""
    plain = ops.Graph._as_graph_def

    @functools.wraps(plain)
    def as_graph_def(self: Any, *args: Any, **kwargs: Any) -> Any:
        exported = plain(self, *args, **kwargs)
        for node in exported[0].node:
            if node.op == "DlReduce" and node.attr["op"].s == b"initial":
                (kind,) = node.attr["T"].list.type
                node.op = "Identity"
                for name in ("op", "names", "team", "T"):
                    del node.attr[name]
                node.attr["T"].type = kind
        return exported

    ops.Graph._as_graph_def = as_graph_def
