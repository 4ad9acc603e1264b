"""Part of step "gradients": models of Keras that a script fits, in place of its own loops or before them."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from dlrun.port.edits import Doubt, Edit
from dlrun.port.facts.models.keras_models import FITS, compiles, is_trained, receiver
from dlrun.port.facts.tensorflow import TensorFlowFacts
from dlrun.port.insert import statements
from dlrun.port.program.script import argument, calls_method
from dlrun.port.steps.start.start import last_import

_KERAS = "dl_comm.keras"


def gradients(facts: TensorFlowFacts) -> Iterator[Edit | Doubt]:
    """Distribute a model that is compiled and fitted beside the loops; doubt where its updates are not to be shared so.

    Before:
        import tensorflow as tf
        opt = tf.keras.optimizers.SGD(0.1)
        if quick:
            model.compile(opt, "mse")
            model.fit(data)
        for x in data:
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(model(x))
            opt.apply_gradients(zip(tape.gradient(loss, model.variables), model.variables))

    After:
        import tensorflow as tf
        import dl_comm.keras
        opt = tf.keras.optimizers.SGD(0.1)
        if quick:
            model.compile(opt, "mse")
            dl_comm.keras.distribute(model)  # average gradients and metrics, start alike, share the samples
            model.fit(data)
        for x in data:
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(model(x))
            opt.apply_gradients(zip(dl.gradients(tape.gradient(loss, model.variables)), model.variables))
    """
    for call in facts.fitted:
        if not _is_shared(facts, call):
            yield Doubt(
                call,
                "it trains on each rank by itself, on all samples: only the script's own loops are ported",
                "high",
                f"import {_KERAS}, and {_KERAS}.distribute(model) after compile()",
                name="not-averaged",
            )
    for made in dict.fromkeys(
        made for call in facts.fitted if _is_shared(facts, call) for made in _compiled(facts, call)
    ):
        model = receiver(facts.script, made)
        whole = facts.options.evaluate == "whole"
        lines = statements(
            "keras/distribute", dl=_KERAS, model=model, callbacks=[], lars=False, whole=whole, batch="local"
        )
        line = facts.script.line_of(facts.script.statement_of(made))
        yield Edit(line, f"{model}: fit() shares the samples and averages", after=lines)


def face(facts: TensorFlowFacts) -> Iterator[Edit]:
    """Yield the import of what distributes such a model, where there is one."""
    anchor = last_import(facts.script.module, ("keras", "tensorflow"))
    if anchor is not None and any(_is_shared(facts, call) for call in facts.fitted):
        yield Edit(anchor, "a model that is fitted", after=statements("keras/import_face"))


def _compiled(facts: TensorFlowFacts, fit: cst.Call) -> list[cst.Call]:
    """Return where the model that is fitted may be compiled."""
    return [c for c in facts.script.calls if compiles(facts.script, c) and is_trained(facts.script, c, [fit])]


def _is_shared(facts: TensorFlowFacts, call: cst.Call) -> bool:
    """Tell whether ``call`` is one fit of all samples, in no loop, of a model that is compiled in sight.

    At a rate that is scaled where it is written; and whether the port has no options for loops alone.
    """
    plain = facts.options.batch == "local" and not facts.options.lars and not facts.episodes
    compiled = _compiled(facts, call)
    scaled = bool(compiled) and all(_is_scaled(facts, made) for made in compiled)
    return plain and scaled and calls_method(call, *FITS) and facts.script.outermost_loop(call) is None


def _is_scaled(facts: TensorFlowFacts, compiled: cst.Call) -> bool:
    """Tell whether the rate of the model that is ``compiled`` is scaled where its optimizer is made."""
    optimizer = argument(compiled, "optimizer", 0)
    made = [o.node for o in facts.flow.origins(optimizer)] if optimizer is not None else []
    return bool(made) and all(m in facts.optimizers for m in made)
