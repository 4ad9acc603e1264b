"""What Keras computes with: TensorFlow (always in version 2), PyTorch or jax."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np

from dl_comm import _core
from dl_comm.parts import weighed
from dl_comm.rank0 import is_plain
from dl_comm.ranks import get_nranks, get_rank, parts, shifted_seed, value_of

KERAS_3 = not keras.__version__.startswith("2.")


def backend() -> str:
    """Return ``tensorflow``, ``torch`` or ``jax``; raise ``NotImplementedError`` for another backend of Keras 3."""
    name = keras.backend.backend() if KERAS_3 else "tensorflow"
    if name not in ("tensorflow", "torch", "jax"):
        raise NotImplementedError(
            f"dl_comm.keras works with the backends tensorflow, torch and jax, not with {name}: set KERAS_BACKEND"
        )
    return name


def gradients(grads: Any, team: int = 0) -> Any:
    """Return the means over ranks of what a tape computed in a ``train_step``; see ``dl_comm.tensorflow.gradients``.

    For what reads gradients before the optimizer, which averages by itself, applies them: clipping, say.
    """
    from dl_comm.tensorflow.averaging import gradients as means

    return means(grads, team)


def init(alike: bool = True) -> None:
    """Join the ranks of the job; see ``init`` of dl_comm.tensorflow, dl_comm.torch or dl_comm.keras.on_jax."""
    if backend() == "torch":
        from dl_comm.torch.ranks import init as join
    elif backend() == "jax":
        from dl_comm.keras.on_jax import init as join
    else:
        from dl_comm.tensorflow.ranks import init as join
    join(alike)


def reseed(*generators: Any, alike: bool = False) -> None:
    """Give every rank its own random numbers, or all ranks those of rank 0, which keeps the serial script's."""
    shift: Callable[..., None]
    if backend() == "torch":
        from dl_comm.torch.ranks import reseed as shift
    elif backend() == "jax":
        from dl_comm.keras.on_jax import reseed as shift
    else:
        from dl_comm.tensorflow.ranks import reseed as shift
    shift(*generators, alike=alike)


def own_noise(model: Any) -> None:
    """Give the layers that draw random numbers (dropout, noise) others on each rank; rank 0 keeps its own.

    Layers and models of the script's own may draw from TensorFlow's generator, as in their ``train_step``.
    """
    rank = get_rank() if parts() > 1 else 0
    if rank == 0:
        return
    for variable in seeds(model):
        variable.assign(read(variable) + np.array([rank, 0], dtype="uint32"))
    if backend() == "tensorflow" and any(_is_own(layer) or _draws(layer) for layer in model._flatten_layers()):
        import tensorflow as tf
        from tensorflow.python.eager import context

        seed = context.global_seed()
        own = shifted_seed(repr(seed).encode(), rank) % 2**31
        tf.random.set_seed(own)
        _common[:] = [seed, own]


def alike_again() -> None:
    """Take TensorFlow's seed back that all ranks have, by which ``fit()`` shuffles arrays, where ``own_noise`` set one.

    The next ``own_noise`` sets it again.
    """
    if _common:
        import tensorflow as tf
        from tensorflow.python.eager import context

        if context.global_seed() == _common[1]:
            tf.random.set_seed(_common[0])
        _common.clear()


_common: list[Any] = []  # TensorFlow's seed before ``own_noise`` set another one, and that one
_NOISE = ("Dropout", "Gaussian", "Random")
_KERAS = ("keras", "tensorflow")  # the packages of Keras's own layers


def _draws(layer: Any) -> bool:
    named = any(word in type(layer).__name__ for word in _NOISE)
    cell = any(getattr(layer, name, 0) for name in ("dropout", "recurrent_dropout"))
    return not KERAS_3 and (named or cell)  # Keras 3 has generators for them, see ``seeds``


def _is_own(layer: Any) -> bool:
    return isinstance(layer, keras.layers.Lambda) or type(layer).__module__.partition(".")[0] not in _KERAS


def seeds(model: Any) -> list[Any]:
    """Return the states of the generators in a model's layers, uint32 (2,); Keras 2 has none."""
    found = {id(v): v for layer in model._flatten_layers() for v in layer.variables} if KERAS_3 else {}
    return [v for v in found.values() if "seed_generator" in v.path and tuple(v.shape) == (2,)]


def average_gradients(grads: list[Any]) -> list[Any]:
    """Return the mean of each gradient; ``None`` stays ``None``."""
    if backend() == "torch":
        from dl_comm.torch.averaging import gradients

        # Each gradient may be its parameter's own .grad: the mean goes into a copy of it that nobody else holds.
        means = [None if g is None else g.detach().clone() for g in grads]
        if any(m is not None for m in means):
            gradients({f"gradient {i} of {len(means)}": m for i, m in enumerate(means) if m is not None})
        return means
    if backend() == "jax":
        from dl_comm.keras.on_jax import gradients as jax_gradients

        return jax_gradients(weighed(grads))
    from dl_comm.tensorflow.averaging import gradients as tensorflow_gradients

    averaged: list[Any] = tensorflow_gradients(grads)
    return averaged


def broadcast(what: Any, root: int = 0) -> Any:
    """Give a built model (and its optimizer, where it is built) or a list of variables rank ``root``'s values.

    Of a number, a text, a time, a NumPy array or a list of such, and of what ``rank0`` returned, rank ``root``'s is
    returned. A generator of random numbers (NumPy's ``Generator`` and ``RandomState``, ``random.Random``) is returned
    itself, and goes on as rank ``root``'s.
    """
    if is_plain(what):
        return value_of(what, root)
    if get_nranks() > 1:
        exchange(variables_of(what), root)
    return None


def stateful_layers(model: Any) -> list[Any]:
    """Return the recurrent layers that hand their states on from batch to batch."""
    layers = model._flatten_layers(include_self=False, recursive=True)
    return [layer for layer in layers if isinstance(layer, keras.layers.RNN) and layer.stateful]


def _leaves(tree: Any) -> list[Any]:
    return [leaf for part in tree for leaf in _leaves(part)] if isinstance(tree, (list, tuple)) else [tree]


def variables_of(what: Any) -> list[Any]:
    """Return the variables that are one on all ranks: a model's and its optimizer's, or the list itself.

    The states that stateful layers hand on are local.
    """
    if isinstance(what, (list, tuple)):
        return list(what)
    states = {id(state) for layer in stateful_layers(what) for state in _leaves(layer.states)}
    found = [variable for variable in what.variables if id(variable) not in states]
    optimizer = getattr(what, "optimizer", None)
    if optimizer is not None:
        optimizer = optimizer if hasattr(optimizer, "variables") else optimizer.optimizer  # of TensorFlow 1
        variables = optimizer.variables
        found += list(variables() if callable(variables) else variables)
    seen: dict[int, Any] = {id(v): v for v in found}
    return list(seen.values())


def exchange(variables: list[Any], root: int | None) -> None:
    """Replace the variables' values by rank ``root``'s, or by their means if ``root`` is ``None``.

    In the graph of TensorFlow 1 those of Keras's session.
    """
    in_graph = is_in_graph()
    read_all = keras.backend.batch_get_value(variables) if in_graph else [read(v) for v in variables]
    values = [np.array(value, order="C") for value in read_all]
    names = [f"{getattr(v, 'path', v.name)} {a.shape} {a.dtype}" for v, a in zip(variables, values, strict=True)]
    if not values:
        return
    if root is None:
        _core.allreduce([(a.ctypes.data, a.size, a.dtype.name) for a in values], "mean", 0, names)
    else:
        _core.broadcast([(a.ctypes.data, a.nbytes, "uint8") for a in values], root, names)
    if in_graph:
        keras.backend.batch_set_value(list(zip(variables, values, strict=True)))
        return
    for variable, value in zip(variables, values, strict=True):
        variable.assign(value)


def is_in_graph() -> bool:
    """Tell whether Keras's models are in the graph of a session: Keras 2 where eager execution is disabled."""
    if KERAS_3:
        return False
    import tensorflow as tf

    return not tf.compat.v1.executing_eagerly_outside_functions()


def read(variable: Any) -> np.ndarray[Any, Any]:
    """Return a variable's value as an array of its own."""
    return np.array(keras.ops.convert_to_numpy(variable) if KERAS_3 else variable.numpy())
