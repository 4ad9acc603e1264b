"""Everybody starts from the same variables."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from dl_comm.rank0 import is_plain
from dl_comm.ranks import get_nranks, value_of
from dl_comm.tensorflow.op import reduce


def broadcast(tensors: Any, root: int = 0) -> Any:
    """Return rank ``root``'s values of the tensors or variables, in the same order, for the caller to assign.

    Any dtypes that have a size; in a graph the result are tensors that will hold the values. A NumPy array, a number,
    a text, a time, or a list of these such as samples or their order, comes back as rank ``root``'s, at once; a single
    tensor as one. So does what ``rank0`` returned: ``path = dl.broadcast(dl.rank0(saver.save)(session, "model"))``. A
    generator of random numbers (NumPy's ``Generator`` and ``RandomState``, ``random.Random``) comes back itself, and
    goes on as rank ``root``'s.
    """
    if is_plain(tensors):
        return value_of(tensors, root)
    if tf.is_tensor(tensors):
        return broadcast([tensors], root)[0]
    tensors = list(tensors)
    if get_nranks() == 1:
        return tensors
    names = [getattr(t, "name", None) if _is_native(t) else None for t in tensors]
    return reduce(
        [t.read_value() if _is_native(t) else t for t in tensors],
        f"broadcast {root}",
        [name or f"tensor {i} of {len(tensors)}" for i, name in enumerate(names)],
    )


def broadcast_variables(*things: Any, root: int = 0) -> Any:
    """Give variables rank ``root``'s values: at once in eager code; in a graph return the op that does.

    ``things`` are variables (TensorFlow's or Keras's), lists and dicts of them, and models, optimizers and modules,
    which stand for their variables; in a graph, all of its global ones where nothing is given. In eager code, a model
    that is not built yet gets its values at the first call of ``gradients``. Slots that an optimizer makes later start
    alike anyway. A graph that the script has closed (``graph.finalize()``) takes this op, and is closed again.
    """
    graph = None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()
    if graph is not None and graph.finalized:
        graph._unsafe_unfinalize()
        try:
            return broadcast_variables(*things, root=root)
        finally:
            graph.finalize()
    if get_nranks() == 1:
        return None if tf.executing_eagerly() else tf.no_op()
    if tf.executing_eagerly():
        models.extend(t for t in things if hasattr(t, "layers"))
        _unbuilt.extend((t, root) for t in things if getattr(t, "built", None) is False and hasattr(t, "layers"))
    elif not things:
        things = tuple(tf.compat.v1.global_variables())
    return _assign([v for t in things for v in variables_of(t)], root)


# Models that were given: those still without variables, to be broadcast later; and all, whose seeds reseed() shifts.
_unbuilt: list[tuple[Any, int]] = []
models: list[Any] = []
_then: list[Callable[[], None]] = []
_traced = False  # gradients() came by while some of them were not filled yet


def when_built(act: Callable[[], None]) -> None:
    """Call ``act`` once all models given to ``broadcast_variables`` have variables: now, or at the first gradients."""
    if _unbuilt:
        _then.append(act)
    else:
        act()


@tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
def settle(again: bool = False) -> None:
    """Broadcast the models that were not built when they should have been, before the first gradients are averaged.

    Keras 3 fills variables that a ``tf.function`` makes only after it is traced: they start alike as all ranks have
    the same seeds by then, and are broadcast the next time: ``shard`` comes here ``again``, for those alone.
    """
    global _traced
    if (again and not _traced) or not any(_weights_of(model) for model, _ in _unbuilt):
        return  # there are none, or none is built
    late, then = list(_unbuilt), list(_then)
    _unbuilt.clear()
    _then.clear()
    with tf.init_scope():  # also while a tf.function is traced: variables live outside of it
        for model, root in late:
            variables = variables_of(model)
            if _weights_of(model) and all(v.is_initialized() for v in native_of(variables)):
                _assign(variables, root)
            else:
                _unbuilt.append((model, root))
        _traced = bool(_unbuilt)
        for act in then:
            act()


def _weights_of(model: Any) -> list[Any]:
    """Return a model's variables but for the states of its generators, which it has before it is built."""
    return [v for v in variables_of(model) if "seed_generator" not in getattr(v, "path", "")]


def variables_of(thing: Any) -> list[Any]:
    """Return the variables that ``thing`` is or holds, each once."""
    if hasattr(thing, "assign") and hasattr(thing, "shape"):
        return [thing]
    if isinstance(thing, (str, bytes)) or tf.is_tensor(thing):  # a name, or an attribute, that is used anew
        return []
    if isinstance(thing, Mapping):
        return [v for part in thing.values() for v in variables_of(part)]
    if isinstance(thing, Iterable) and not hasattr(thing, "variables"):
        return [v for part in thing for v in variables_of(part)]
    if getattr(thing, "built", None) is False and hasattr(thing, "layers"):
        return [v for layer in thing.layers for v in variables_of(layer)]  # Keras 2 minds being asked
    found = getattr(thing, "variables", ())
    return list({id(v): v for v in (found() if callable(found) else found)}.values())


def native_of(variables: Sequence[Any]) -> list[Any]:
    """Return TensorFlow's variables behind Keras's."""
    native = [v if _is_native(v) else getattr(v, "value", v) for v in variables]
    return [v() if callable(v) and not _is_native(v) else v for v in native]


def _is_native(thing: Any) -> bool:
    """Tell a variable of TensorFlow by what it can do: it has several classes, which share no name in TensorFlow 1."""
    return hasattr(thing, "read_value")


def _assign(variables: Sequence[Any], root: int) -> Any:
    native = native_of(variables)
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
        self._op = broadcast_variables(self._variables(), root=self._root)

    def after_create_session(self, session: Any, coord: Any) -> None:
        """Run it."""
        session.run(self._op)
