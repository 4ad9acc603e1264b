"""What a script of TensorFlow's holds besides the variables it trains: optimizers' state, models', and its own."""

from __future__ import annotations

from collections.abc import Iterator
from types import TracebackType
from typing import Any

import tensorflow as tf

from dlrun.verify.tracer.arrays import array_note, native
from dlrun.verify.tracer.graphs import kind_of
from dlrun.verify.tracer.randomness import watched_models
from dlrun.verify.tracer.recorder import is_of_user, spaces
from dlrun.verify.tracer.tapes import Tapes

PARTS = 200  # of a list or dict that are looked at most


def note_held(taped: Tapes, space: dict[str, Any], stopped: TracebackType | None) -> None:
    """Note what optimizers and models hold besides the variables that are trained, and variables of the script's."""
    if not tf.executing_eagerly():
        return  # a session's: noted while it was open
    optimizers = [optimizer for _, optimizer in taped.optimizers.values() if optimizer is not None]
    slots = {id(native(v)): v for o in optimizers for v in _variables(o)}
    every = {**slots, **{id(native(v)): v for model in watched_models.values() for v in model.variables}}
    named = [(getattr(variable, "path", variable.name), key, variable) for key, variable in every.items()]
    own = {
        id(variable): (name, id(variable), variable)
        for names in spaces(space, stopped)
        for key, value in list(names.items())
        for name, variable in _below(key, value, 2)
    }
    named += [found for key, found in own.items() if key not in every]
    held: dict[str, Any] = {}
    for name, key, variable in named:
        if key not in taped.trained and "seed_generator" not in name:
            kind = "slot" if key in slots else kind_of(name) if key in every else "variable"
            if kind in ("copy", "variable") and taped.ops.is_memory(native(variable)):
                kind = "memory"
            held[f"{name} ({len(held)})" if name in held else name] = {"kind": kind, "note": array_note(variable)}
    taped.recorder.note("held", tensors=held)


def _variables(optimizer: Any) -> list[Any]:
    found = optimizer.variables
    return list(found() if callable(found) else found)


def _below(name: str, value: Any, depth: int) -> Iterator[tuple[str, Any]]:
    """Yield the variables in a value: in lists, dicts, and objects of the script's classes that are no models."""
    if isinstance(value, tf.Variable):
        if value.dtype.is_floating:
            yield name, value
    elif depth and isinstance(value, (list, tuple, dict)) and len(value) <= PARTS:
        for key, item in list(value.items() if isinstance(value, dict) else enumerate(value)):
            yield from _below(f"{name}[{key!r}]", item, depth - 1)
    elif depth and hasattr(value, "__dict__") and not hasattr(value, "layers") and is_of_user(value):
        for key, item in list(vars(value).items()):
            yield from _below(f"{name}.{key}", item, depth - 1)
