"""TensorFlow's training step: tapes, clipping, models and the optimizers of Keras, all run eagerly."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.ops import clip_ops

from dlrun.verify.tracer import ops
from dlrun.verify.tracer.arrays import array_note, batch_digest, native, samples
from dlrun.verify.tracer.counted import Counted
from dlrun.verify.tracer.datasets import DataSets
from dlrun.verify.tracer.graphs import Graphs
from dlrun.verify.tracer.importing import number_of
from dlrun.verify.tracer.iteration_seeds import Turns
from dlrun.verify.tracer.keras_options import options_of, rate_of
from dlrun.verify.tracer.quiet_keras import NOISE
from dlrun.verify.tracer.randomness import Draws, states, watched_models
from dlrun.verify.tracer.recorder import Recorder
from dlrun.verify.tracer.short_fits import ShortFits
from dlrun.verify.verdict import values

READS = ("numpy", "random")  # generators that draw what a data set holds


class Tapes:
    """Follows variables through the steps of their optimizers.

    Optimizers are numbered in the order of their first step, variables in the order in which they are first seen.
    """

    def __init__(self, recorder: Recorder, draws: Draws, data: DataSets, graphs: Graphs, followed: ops.Ops) -> None:
        self.recorder, self.draws, self.data, self.graphs, self.ops = recorder, draws, data, graphs, followed
        self.counted = Counted(recorder, array_note)
        self.turns = Turns(recorder)
        self.short = ShortFits(recorder.orders)
        self.tapes = 0  # that record
        self.depth = 0  # of nested calls of layers
        self.stepping = 0
        self.broadcast: set[int] = set()  # ids of the variables that dl_comm has broadcast
        self._variables: dict[int, tuple[int, Any]] = {}
        self.optimizers: dict[int, tuple[int, Any]] = {}
        self.trained: set[int] = set()
        self._rounds: dict[int, int] = {}  # steps of each optimizer
        self._made: dict[int, tuple[int, Any]] = {}  # gradient -> its variable's number
        self.computed: dict[int, Any] = {}  # by variable: its gradient, as the last tape computed it
        self._added: dict[int, tuple[int, Any]] = {}  # by variable: how many gradients since its step, and their sum
        self._latest: list[tuple[int, Any]] = []  # the variables of the last tape, each with its number
        self.moved: set[int] = set()  # models whose statistics local batches moved since they were averaged
        self._used: dict[str, Any] = {}  # the last statistics noted, by kind
        self._first: dict[int, tuple[Any, Any]] = {}  # variables with their values before the first update

    def _take_back(self, variables: list[Any]) -> None:
        """Give variables the values that they had before the first update (see ``replay``)."""
        with self.recorder.aside():
            for variable in variables:
                variable.assign(self._first[id(native(variable))][1])

    def number(self, variable: Any) -> int:
        """Return a small number for a variable, the same one each time."""
        own = native(variable)
        return self._variables.setdefault(id(own), (len(self._variables), own))[0]

    def remember(self, gradients: Any, numbers: Sequence[int | None]) -> None:
        """Keep whose gradients these tensors are."""
        for gradient, number in zip(gradients, numbers, strict=False):
            if gradient is not None and number is not None:
                self._made[id(gradient)] = (number, gradient)

    def owners(self, gradients: Any) -> list[int | None]:
        """Return whose gradients these tensors are, where it is known.

        What a script computed of gradients is taken for those of the variables of the last tape, if they fit.
        """
        known = [self._made[id(g)][0] if id(g) in self._made else None for g in gradients]
        fit = [getattr(g, "shape", None) for g in gradients] == [v.shape for _, v in self._latest]
        return [number for number, _ in self._latest] if fit and known.count(None) == len(known) else known

    def gradient(self, compute: Callable[..., Any], tape: Any, args: Any, kwargs: Any) -> Any:
        """Compute gradients; where they are those of variables, an update is being made."""
        if not tf.executing_eagerly():  # dl_comm.keras builds a model so; nothing is computed
            return compute(tape, *args, **kwargs)
        sources = tf.nest.flatten(args[1] if len(args) > 1 else kwargs["sources"])
        of_variables = bool(sources) and all(isinstance(native(s), tf.Variable) for s in sources)
        if not of_variables or self.recorder.inside:
            if not self.recorder.inside:
                self.recorder.note("derivative")  # by an input, as a penalty is made of
            return compute(tape, *args, **kwargs)
        self.data.backward()
        if self.recorder.done:
            self.data.end()
            self.recorder.stop()
        target = args[0] if args else kwargs["target"]
        self.recorder.note("backward", target=number_of(target))
        self.ops.backward(target, sources)
        self.counted.backward()
        found = compute(tape, *args, **kwargs)
        self._latest = [(self.number(s), native(s)) for s in sources]
        numbers, gradients = [number for number, _ in self._latest], tf.nest.flatten(found)
        self.remember(gradients, numbers)
        notes = {number: array_note(g) for number, g in zip(numbers, gradients, strict=False)}
        self.computed |= notes
        for number, note in notes.items():
            count, before = self._added.get(number, (0, 0.0))
            self._added[number] = (count + 1, before + np.array(values(note), np.float64)) if note else (count, before)
        return found

    def weight(self, number: int | None, note: dict[str, Any] | None) -> float | None:
        """Return what the gradients of a variable weigh in what was added up of them; None where it is no multiple.

        1 in their mean, and in the only one of a step.
        """
        count, total = self._added.get(number if number is not None else -1, (0, 0.0))
        now = np.array(values(note), np.float64)
        if not count or now.shape != np.shape(total) or not np.any(total):
            return None
        times = float(now @ total / (total @ total))
        return times * count if np.allclose(now, times * total, rtol=0, atol=1e-4 * np.abs(now).max()) else None

    def forward(self, call: Callable[..., Any], layer: Any, args: Any, kwargs: Any) -> Any:
        """Run a layer's call; of the outermost one under a tape note input, kinds of layers, random numbers."""
        if self.depth or self.recorder.inside or not tf.executing_eagerly():
            return call(layer, *args, **kwargs)
        if not self.tapes:
            return self._evaluated(call, layer, args, kwargs)
        watched_models[id(layer)] = layer
        before, built, quiet = states(), getattr(layer, "built", True), self.recorder.orders.quiet
        self.depth += 1
        try:
            return call(layer, *args, **kwargs)
        finally:
            self.depth -= 1
            layers = [type(part).__name__ for part in layer._flatten_layers()]
            norm = any(name.startswith("BatchNorm") for name in layers)
            self.moved |= {id(layer)} if norm and kwargs.get("training") is not False else set()
            with self.recorder.aside():
                given = {f"input {i}": v for i, v in enumerate(args, 1)} | kwargs
                arrays = {name: v for name, v in given.items() if hasattr(v, "shape")}
                digest, numbers = batch_digest(arrays), {name: samples([v]) for name, v in arrays.items()}
            self.recorder.note(
                "forward",
                hash=digest,
                rows={name: rows for name, rows in numbers.items() if rows},
                noise=not quiet and any(name in NOISE for name in layers),
                norm=not quiet and norm,
                drew=[name for name, state in states().items() if built and before.get(name, state) != state],
                **({"statistics": self.recorder.statistics()} if norm and not quiet else {}),
            )

    def _evaluated(self, call: Callable[..., Any], layer: Any, args: Any, kwargs: Any) -> Any:
        """Run a layer's call that does not train; of the outermost one note the statistics of batch norm it takes."""
        self.depth += 1
        try:
            return call(layer, *args, **kwargs)
        finally:
            self.depth -= 1
            self.used("evaluated", layer)

    def used(self, kind: str, model: Any) -> None:
        """Note the statistics of batch norm that a model is evaluated or saved with, once after each step."""
        if self.recorder.inside or not tf.executing_eagerly() or id(model) not in watched_models:
            return
        with self.recorder.aside():
            facts = {"statistics": _statistics([model]), "moved": id(model) in self.moved, "holds": True}
        if facts["statistics"] and self._used.get(kind) != (self.recorder.steps, facts):
            self._used[kind] = (self.recorder.steps, facts)
            self.recorder.note(kind, **facts)

    def averaged(self, variables: Iterable[Any]) -> None:
        """Take note that these variables, if statistics of batch norm are among them, have become all ranks'."""
        here = {id(native(v)) for v in variables}
        self.moved -= {
            key
            for key in self.moved
            if any(
                id(native(v)) in here for v in watched_models[key].variables if "/moving_" in getattr(v, "path", v.name)
            )
        }

    def step(self, apply: Callable[[], Any], optimizer: Any, gradients: list[Any], variables: list[Any]) -> Any:
        """Apply gradients, and note the step: rate, gradients used, variables reached."""
        if self.stepping or self.recorder.inside or not tf.executing_eagerly():
            return apply()
        self.stepping += 1
        try:
            number, known = self.optimizers.setdefault(id(optimizer), (len(self.optimizers), None))
            if known is None:
                self.optimizers[id(optimizer)] = (number, optimizer)
                self.recorder.note(
                    "optimizer",
                    optimizer=number,
                    type=type(optimizer).__name__,
                    names=[getattr(v, "path", v.name) for v in variables],
                    ids=[self.number(v) for v in variables],
                    broadcast=[id(native(v)) in self.broadcast for v in variables],
                    params=[array_note(v) for v in variables],
                    options=options_of(optimizer),
                )
            self.trained |= {id(native(v)) for v in variables}
            rates, used = [rate_of(optimizer)], [array_note(g) for g in gradients]
            self.ops.paused = True
            if self.recorder.orders.frozen:
                for variable in variables:
                    self._first.setdefault(id(native(variable)), (variable, variable.numpy()))
            result = apply()
        finally:
            self.stepping -= 1
            self.ops.paused = False
        if self.recorder.orders.frozen:
            self._take_back(variables)
        self._made.clear()
        for variable in variables:
            self._added.pop(self.number(variable), None)
        self.recorder.steps += 1
        self._rounds[number] = self._rounds.get(number, 0) + 1
        self.ops.stepped(min(self._rounds.values()))
        drew = self.draws.collect()
        self.recorder.note(
            "step",
            step=self.recorder.steps,
            optimizer=number,
            lr=rates,
            grads=used,
            params=[array_note(v) for v in variables],
            states=states(),
            # Before the first step, first weights are drawn, too; in fit(), NumPy's numbers while it reads ahead.
            drew=[d for d in drew if not self.data.fitting or d not in READS] if self.recorder.steps > 1 else [],
        )
        self.turns.stepped()
        return result


def _statistics(called: Iterable[Any] | None = None) -> str:
    """Return a hash of batch norm's statistics in the models that were called; nothing where there are none."""
    models = [m for m in (watched_models.values() if called is None else called) if getattr(m, "built", True)]
    moving = [v for m in models for v in m.variables if "/moving_" in getattr(v, "path", v.name)]
    return "".join((array_note(v) or {})["hash"][:4] for v in moving)


def install(recorder: Recorder, draws: Draws, data: DataSets, graphs: Graphs) -> Tapes:
    """Put the instruments into tapes, clipping, layers, optimizers and ``fit``."""
    followed = Tapes(recorder, draws, data, graphs, ops.install(recorder))
    recorder.statistics = _statistics
    tape, compute = tf.GradientTape, tf.GradientTape.gradient
    enter, leave = tape.__enter__, tape.__exit__

    def gradient(self: Any, *args: Any, **kwargs: Any) -> Any:
        return followed.gradient(compute, self, args, kwargs)

    def entered(self: Any) -> Any:
        followed.tapes += 1
        return enter(self)

    def left(self: Any, *error: Any) -> Any:
        followed.tapes -= 1
        return leave(self, *error)

    tape.gradient, tape.__enter__, tape.__exit__ = gradient, entered, left
    _follow_keras(followed, data)
    for name in ("clip_by_global_norm", "clip_by_norm", "clip_by_value"):
        _note_clip(recorder, followed, name)
    return followed


def _follow_keras(followed: Tapes, data: DataSets) -> None:
    import keras

    layer = keras.layers.Layer
    call, fit = layer.__call__, keras.Model.fit

    def called(self: Any, *args: Any, **kwargs: Any) -> Any:
        return followed.forward(call, self, args, kwargs)

    @functools.wraps(fit)
    def fitted(self: Any, *args: Any, **kwargs: Any) -> Any:
        x = args[0] if args else kwargs.get("x")
        arrays = all(hasattr(part, "shape") for part in tf.nest.flatten(x)) and not kwargs.get("steps_per_epoch")
        with data.fit(arrays):
            return fit(self, *args, **kwargs)

    layer.__call__, keras.Model.fit = called, followed.short.wrapped(fitted, 1)
    for name in ("evaluate", "predict"):
        setattr(keras.Model, name, data.evaluates(getattr(keras.Model, name)))
    for name in ("save", "save_weights"):
        setattr(keras.Model, name, _saving(followed, getattr(keras.Model, name)))
    if hasattr(keras.optimizers.Optimizer, "stateless_apply"):
        _note_steps(followed, keras.optimizers.Optimizer.__mro__, "apply")
    else:
        _note_steps(followed, keras.optimizers.Optimizer.__mro__, "apply_gradients")
        _note_steps(followed, keras.optimizers.legacy.Optimizer.__mro__, "apply_gradients")


def _saving(followed: Tapes, save: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(save)
    def noted(self: Any, *args: Any, **kwargs: Any) -> Any:
        followed.used("plain save", self)
        return save(self, *args, **kwargs)

    return noted


def _note_steps(followed: Tapes, classes: Any, name: str) -> None:
    """Follow the method ``name`` of an optimizer: ``apply(grads, variables)`` or ``apply_gradients(pairs)``."""
    owner = next(cls for cls in classes if name in vars(cls))
    method = vars(owner)[name]

    @functools.wraps(method)
    def noted(self: Any, first: Any, *args: Any, **kwargs: Any) -> Any:
        first = list(first)
        if name == "apply_gradients":
            gradients, variables = [g for g, _ in first], [v for _, v in first]
        else:
            given = args[0] if args else kwargs.get("trainable_variables")
            gradients, variables = first, list(given if given is not None else self._trainable_variables)
        if not tf.executing_eagerly():
            op = method(self, first, *args, **kwargs)
            followed.graphs.updated(op, self, zip(gradients, variables, strict=False), None)
            return op
        return followed.step(lambda: method(self, first, *args, **kwargs), self, gradients, variables)

    setattr(owner, name, noted)


def _note_clip(recorder: Recorder, followed: Tapes, name: str) -> None:
    function = getattr(tf, name)

    @functools.wraps(function)
    def clipped(what: Any, *args: Any, **kwargs: Any) -> Any:
        result = function(what, *args, **kwargs)
        if recorder.inside or followed.stepping:
            return result
        several = name == "clip_by_global_norm"
        if not tf.executing_eagerly():
            followed.graphs.clipped(result[0] if several else [result], name)
            return result
        owners = followed.owners(list(what) if several else [what])
        if any(owner is not None for owner in owners):
            recorder.note("clip", function=name)
            followed.remember(result[0] if several else [result], owners)
        return result

    for module in (tf, tf.compat.v1, tf.compat.v2, clip_ops):
        setattr(module, name, clipped)
