"""Builds a model that waits for its first batch, so that rank 0's weights can be broadcast before that."""

from __future__ import annotations

import copy
import sys
from collections.abc import Iterator
from contextlib import suppress
from itertools import chain, islice
from typing import Any

import keras

from dl_comm.keras.backend import KERAS_3, backend, read, seeds
from dl_comm.keras.data import each_array
from dl_comm.shared_random import undone


def build(model: Any, options: dict[str, Any]) -> None:
    """Build ``model`` by the samples in ``options`` of its fit(), which stay what they are.

    By its call(), or by a train_step() of its own, which may call more layers and others first: a VAE's deviation.
    """
    if getattr(model, "built", False) and not _waits(model):
        return
    x = options.get("x")
    if x is not None and (hasattr(x, "shape") or isinstance(x, (dict, list, tuple))):
        batch = _batch(options)
    else:
        batch, options["x"] = _drawn(x)
    if batch is None:
        return
    if KERAS_3 and type(model).build is not keras.Model.build:
        _call(model, batch)  # as Keras does: its own build() makes what its train_step() uses
    eager = model.run_eagerly if KERAS_3 else getattr(model, "_run_eagerly", False)  # may do what no graph can
    if _waits(model) and backend() == "tensorflow" and not eager:
        with suppress(Exception):  # fit() says it
            _trace(model, batch)
        model.train_function = None
    _call(model, batch)


def _call(model: Any, batch: Any) -> None:
    """Build a model that is not by its call(), of a batch."""
    if not getattr(model, "built", False):
        drawn = [(state, read(state)) for state in seeds(model)]
        # a model that only has a train_step(), or whose call() takes other things: noise, where a GAN trains on images
        with suppress(Exception if _steps(model) and not _waits(model) else NotImplementedError):
            model(batch[0] if isinstance(batch, tuple) else batch)
        for state, value in drawn:  # Keras builds a model without drawing
            state.assign(value)


def _waits(model: Any) -> bool:
    """Tell whether a model with a train_step() of its own has layers that are not built."""
    return _steps(model) and not all(layer.built for layer in model._flatten_layers(include_self=False))


def _steps(model: Any) -> bool:
    """Tell whether a model has a train_step() of its own."""
    return type(model).train_step is not keras.Model.train_step


def _trace(model: Any, batch: Any) -> None:
    """Let TensorFlow make a graph of a training step, which is never run: layers are built on the way."""
    tf: Any = sys.modules["tensorflow"]

    def spec(array: Any) -> Any:
        dtype = array.dtype if hasattr(array, "dtype") else tf.convert_to_tensor(array).dtype
        floating = tf.as_dtype(dtype).is_floating
        return tf.TensorSpec((None, *array.shape[1:]), keras.backend.floatx() if floating else dtype)

    specs = tf.nest.map_structure(spec, batch)
    if KERAS_3:
        tf.function(model.train_step, autograph=False).get_concrete_function(specs)
        return
    model.make_train_function()
    tf.function(model.train_function, autograph=False).get_concrete_function(tf.data.IteratorSpec(specs))


def _batch(options: dict[str, Any]) -> Any:
    """Return a batch of one as a train_step() gets it of the arrays in ``options``."""
    weights = options.get("sample_weight")
    if weights is None and options.get("class_weight") is not None:
        weights = each_array(lambda array: array.reshape(len(array), -1)[:, 0], options["y"])
    parts = [part for part in (options["x"], options.get("y"), weights) if part is not None]
    given = tuple(each_array(lambda array: array[:1], part) for part in parts)
    return given if len(given) > 1 or isinstance(given[0], (dict, list, tuple)) else given[0]


def _drawn(x: Any) -> tuple[Any, Any]:
    """Return what a data set, Sequence or generator gives first, or zeros like it, or None; and a whole ``x``."""
    first: Any = None
    if hasattr(x, "take") and hasattr(x, "element_spec"):
        first = _like(x.element_spec)
        first = next(iter(x.take(1)), None) if first is None else first
    elif isinstance(x, Iterator):
        begin = list(islice(x, 1))
        first = begin[0] if begin and isinstance(begin[0], tuple) else None
        x = (batch for batch in chain(begin, x))  # Keras 3 wants a generator
    elif hasattr(x, "__getitem__"):
        with undone():  # the serial script reads its first batch once
            first = copy.copy(x)[0]
    return first, x


def _like(specs: Any) -> Any:
    """Return zeros like a data set's elements, none of which is read: its order stays. None of unknown shapes."""
    tf: Any = sys.modules["tensorflow"]

    def zeros(spec: Any) -> Any:
        return tf.zeros([spec.shape[0] or 1, *spec.shape[1:]], spec.dtype)

    flat = tf.nest.flatten(specs)
    known = all(isinstance(s, tf.TensorSpec) and s.shape.rank and None not in s.shape.as_list()[1:] for s in flat)
    return tf.nest.map_structure(zeros, specs) if known else None
