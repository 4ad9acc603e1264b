"""The calls of dl_comm.tensorflow and dl_comm.keras: what every rank gave, what it got, and where it waits."""

from __future__ import annotations

import functools
import importlib
import os
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import tensorflow as tf

from dlrun.sandbox.imports import AfterImport
from dlrun.verify.tracer.arrays import array_note, native
from dlrun.verify.tracer.datasets import DataSets
from dlrun.verify.tracer.followed import CALLS
from dlrun.verify.tracer.importing import changed, followed, number_of, showing
from dlrun.verify.tracer.recorder import Recorder
from dlrun.verify.tracer.stretches import stretch_note
from dlrun.verify.tracer.tapes import Tapes
from dlrun.verify.tracer.told import tell, tell_of_mpi
from dlrun.verify.tracer.totals import divided

FACES = ("dl_comm.tensorflow", "dl_comm.keras")
FOLLOWED = (*CALLS, "broadcast_variables")


class Face:
    """Wraps the functions of dl_comm's face when the script imports it."""

    def __init__(self, recorder: Recorder, tapes: Tapes, data: DataSets) -> None:
        self.recorder, self.tapes, self.data = recorder, tapes, data
        self._shards = 0
        self._wrapped: dict[Any, Any] = {}

    def wrap(self, face: ModuleType) -> None:
        """Put a wrapper around each function that a port calls, wherever dl_comm itself holds it."""
        importlib.import_module("dl_comm.tensorflow")  # what dl_comm.keras loads later

        self.recorder.note("face")
        vars(face)["print"] = showing(self.recorder, vars(face)["print"])
        tell(self.recorder, face)
        parts = [m for name, m in list(sys.modules.items()) if name.startswith(FACES) and isinstance(m, ModuleType)]
        for module in parts:
            for name in FOLLOWED:
                function = vars(module).get(name)
                if callable(function) and function not in self._wrapped.values():
                    if function not in self._wrapped:
                        self._wrapped[function] = self._followed(name, function)
                    setattr(module, name, self._wrapped[function])
        for module in parts:
            for name in ("_assign", "exchange"):
                function = vars(module).get(name)
                if callable(function) and not hasattr(function, "_noted"):
                    setattr(module, name, self._marking(function))
            average = vars(module).get("average_statistics")
            if average is not None and not hasattr(average, "_noted"):
                module.average_statistics = self._averaging(average)  # type: ignore[attr-defined]

        model: Any = sys.modules.get("dl_comm.keras.model")
        if model is not None and not hasattr(model._distributed_fit, "_noted"):
            model._distributed_fit = self._short(model._distributed_fit)
            model.share_batches = self._parting(model.share_batches)
        warm = vars(face).get("WarmUp")  # the callback, in place of warmup()
        if warm is not None:
            make = warm.__init__

            @functools.wraps(make)
            def made(*args: Any, **kwargs: Any) -> None:
                make(*args, **kwargs)
                self.recorder.note("return", fn="warmup")

            warm.__init__ = made

    def _marking(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return ``function(variables, root)`` that also notes the variables as broadcast."""

        def noted(variables: Any, root: Any) -> Any:
            result = function(variables, root)
            if not tf.executing_eagerly():
                self.tapes.graphs.sends(result, [native(v) for v in variables])
            elif root is not None:
                self.tapes.broadcast |= {id(native(v)) for v in variables}
                self.tapes.averaged(variables)
            return result

        noted._noted = True  # type: ignore[attr-defined]
        return noted

    def _short(self, make: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that makes a model's ``fit``, which is cut where orders say so (see ``short_fits``)."""

        @functools.wraps(make)
        def made(*args: Any, **kwargs: Any) -> Any:
            return self.tapes.short.wrapped(make(*args, **kwargs))

        made._noted = True  # type: ignore[attr-defined]
        return made

    def _parting(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return ``function(model, ...)`` that also notes that its steps take a part of each batch."""

        def noted(*args: Any, **kwargs: Any) -> Any:
            self.recorder.note("parts")
            return function(*args, **kwargs)

        return noted

    def _averaging(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return ``function(model)`` that also notes that the statistics of batch norm are all ranks'."""

        def noted(model: Any) -> Any:
            result = function(model)
            self.tapes.moved.discard(id(model))
            self.recorder.note("return", fn="average", local=None, mean=None, statistics=self.recorder.statistics())
            return result

        noted._noted = True  # type: ignore[attr-defined]
        return noted

    def _followed(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        noted = followed(self.recorder, name, function, getattr(self, f"_{name}", None))

        @functools.wraps(function)
        def called(*args: Any, **kwargs: Any) -> Any:
            in_function = hasattr(tf.compat.v1.get_default_graph(), "outer_graph")  # of tf.data, say
            return (function if in_function else noted)(*args, **kwargs)

        return called

    def _gradients(self, function: Any, grads: Any, *args: Any, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        given = list(grads) if not (tf.is_tensor(grads) or isinstance(grads, (dict, tf.IndexedSlices))) else grads
        flat = tf.nest.flatten(given)

        def mean() -> Any:
            result = function(given, *args, **kwargs)
            if self.recorder.orders.own_gradients:
                return given
            n = int(os.environ["DLRUN_SIZE"]) if self.recorder.orders.sums else 1
            return tf.nest.map_structure(lambda g: g if g is None or n == 1 else tf.math.scalar_mul(n, g), result)

        if not tf.executing_eagerly():  # it will happen when a session runs it
            result = mean()
            self.tapes.graphs.averaged(flat, tf.nest.flatten(result))
            return result, {"ids": [], "before": [], "after": []}
        owners = self.tapes.owners(flat)
        before = [array_note(g) for g in flat]
        result = mean()
        means = tf.nest.flatten(result)
        self.tapes.remember(means, owners)
        known = [i for i, owner in enumerate(owners) if owner is not None]
        return result, {
            "ids": [owners[i] for i in known],
            "made": [changed(self.tapes.computed.get(owners[i] or 0), before[i]) for i in known],
            "weights": [self.tapes.weight(owners[i], before[i]) for i in known],
            "before": [before[i] for i in known],
            "after": [array_note(means[i]) for i in known],
        }

    def _reseed(self, function: Any, *args: Any, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        result = function(*args, **kwargs)
        if not (args or kwargs.get("alike")):
            self.tapes.turns.reseeded()
        return result, {}

    def _lr_scale(self, function: Any, lr: Any = 1.0, *args: Any, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        result = lr if self.recorder.orders.global_batch else function(lr, *args, **kwargs)
        rule = args[0] if args else kwargs.get("rule", "linear")
        follows = callable(lr) and number_of(lr) is None  # a schedule, which is told the steps of all ranks, too
        return result, {"lr": number_of(lr), "result": number_of(result), "rule": rule, "faster": follows}

    def _decay(self, function: Any, optimizer: Any, *args: Any, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        """Leave the serial rule alone where the serial global batch is kept."""
        return (optimizer if self.recorder.orders.global_batch else function(optimizer, *args, **kwargs)), {}

    _lars = _warmup = _decay

    def _steps(self, function: Any, count: Any, *args: Any, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        result = count if self.recorder.orders.global_batch else function(count, *args, **kwargs)
        return result, {"count": number_of(count), "result": number_of(result)}

    _serial_steps = _compound = _steps

    def _stretch(self, function: Any, data: Any, axis: int = 0, multiple: int = 1) -> tuple[Any, dict[str, Any]]:
        result = function(data, axis, multiple)
        return result, stretch_note(data, result, axis)

    def _shard(self, function: Any, what: Any, *args: Any, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        number, self._shards = self._shards, self._shards + 1
        kept = self.recorder.orders.training_shards
        with divided(kept is not None and number not in kept):
            whole = "batches" in (*args, *kwargs.values())  # each is one of the serial script's
            if self.recorder.orders.global_batch and isinstance(what, tf.data.Dataset) and not whole:
                result = self.data.cut_batches(what)
            else:
                result = function(what, *args, **kwargs)
        eager = tf.executing_eagerly()
        loaders = {self.data.number(x) for x in (what, result) if eager and isinstance(x, tf.data.Dataset)}
        if kept is not None and number in kept:
            self.data.totals.trained |= loaders
        return result, {"shard": number, "loaders": sorted(loaders), "type": type(what).__name__}

    def _total(self, function: Any, *values: Any, **options: Any) -> tuple[Any, dict[str, Any]]:
        return self.data.totals.total(function, *values, **options)

    _maximum = _minimum = _gather = _total

    def _average(self, function: Any, *values: Any, **options: Any) -> tuple[Any, dict[str, Any]]:
        local = number_of(values[0]) if len(values) == 1 else None
        result = function(*values, **options)
        self.tapes.moved -= set(map(id, values))
        return result, {"local": local, "mean": number_of(result), "statistics": self.recorder.statistics()}


def install(recorder: Recorder, tapes: Tapes, data: DataSets) -> None:
    """Wait for the script to import a face of dl_comm."""
    tell_of_mpi(recorder)
    face = Face(recorder, tapes, data)
    for name in FACES:
        sys.meta_path.insert(0, AfterImport(name, face.wrap))
