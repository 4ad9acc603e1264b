"""The steps of a port of TensorFlow: tape loops, sessions; what an Estimator needs besides is in ``estimator``."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import libcst as cst

from dlrun.port.edits import Doubt, Edit
from dlrun.port.facts.tensorflow import TensorFlowFacts
from dlrun.port.frameworks import estimator, session_parts, sessions
from dlrun.port.insert import expression, statements
from dlrun.port.placement import torch as placement
from dlrun.port.program.script import dotted
from dlrun.port.steps.broadcast import broadcast as torch_broadcast
from dlrun.port.steps.broadcast import session_start
from dlrun.port.steps.counts import (
    changing_rates,
    file_numbers,
    hooks,
    moving,
    script_schedules,
)
from dlrun.port.steps.counts.counters import attributes, counters, variables
from dlrun.port.steps.counts.keras import cadences as keras_cadences
from dlrun.port.steps.counts.keras import schedules as keras_schedules
from dlrun.port.steps.counts.step_rates import StepRates
from dlrun.port.steps.counts.steps import at_times
from dlrun.port.steps.counts.update_counts import steps_so_far
from dlrun.port.steps.finish import finish as torch_finish
from dlrun.port.steps.gradients import fitted, meeting, searches
from dlrun.port.steps.gradients.gradients import rank_0_draws
from dlrun.port.steps.metrics import (
    annealing,
    coupled,
    divergence,
    environments,
    local_variables,
    quotients,
    ramps,
    statistics_tensorflow,
)
from dlrun.port.steps.rate import group_rates, keras_rate, recipe, schedules
from dlrun.port.steps.shard import generators, global_batches, whole
from dlrun.port.steps.shard import shard as torch_shard
from dlrun.port.steps.start import devices
from dlrun.port.steps.start import start as torch_start


def start(facts: TensorFlowFacts) -> Iterator[Edit | Doubt]:
    """Import dl_comm beside the others and join the ranks before TensorFlow does any work.

    Before:
        import tensorflow as tf
        train()

    After:
        import tensorflow as tf
        import dl_comm.tensorflow as dl  # averages gradients over the ranks; without a launcher: one rank

        dl.init()  # join the other ranks; this rank's GPU becomes the visible one
        train()
    """
    yield from fitted.face(facts)
    yield from torch_start.beside_imports(facts, ("keras", "tensorflow"))
    yield from devices.tensorflow(facts)


def broadcast(facts: TensorFlowFacts) -> Iterator[Edit | Doubt]:
    """Put broadcast_variables() right before the outermost training loop; a model that is built later waits for it.

    Before:
        model, opt = keras.Sequential([keras.layers.Dense(1)]), keras.optimizers.SGD(0.1)
        for x, y in data:
            with tf.GradientTape() as tape:
                loss = keras.losses.mse(y, model(x))
            grads = tape.gradient(loss, model.trainable_variables)
            opt.apply_gradients(zip(grads, model.trainable_variables))

    After:
        model, opt = keras.Sequential([keras.layers.Dense(1)]), keras.optimizers.SGD(0.1)
        dl.broadcast_variables(model, opt)  # every rank starts from rank 0's state
        dl.reseed()  # from here on each rank draws random numbers of its own
        for x, y in data:
            with tf.GradientTape() as tape:
                loss = keras.losses.mse(y, model(x))
            grads = tape.gradient(loss, model.trainable_variables)
            opt.apply_gradients(zip(grads, model.trainable_variables))
    """
    if facts.style == "estimator":
        yield from estimator.broadcast(facts)
    elif facts.style == "session":
        yield from session_start.broadcast(facts)
    else:
        yield from torch_broadcast.at_tops(facts, "tensorflow", f"{facts.alias}.broadcast_variables")


def gradients(facts: TensorFlowFacts) -> Iterator[Edit | Doubt]:
    """Average the gradients where they are made: clipping and the update see the mean.

    Before:
        opt = keras.optimizers.SGD(0.1)
        for x, y in data:
            with tf.GradientTape() as tape:
                loss = keras.losses.mse(y, model(x))
            grads = tape.gradient(loss, model.trainable_variables)
            grads, _ = tf.clip_by_global_norm(grads, 5.0)
            opt.apply_gradients(zip(grads, model.trainable_variables))

    After:
        opt = keras.optimizers.SGD(0.1)
        for x, y in data:
            with tf.GradientTape() as tape:
                loss = keras.losses.mse(y, model(x))
            grads = dl.gradients(tape.gradient(loss, model.trainable_variables))
            grads, _ = tf.clip_by_global_norm(grads, 5.0)
            opt.apply_gradients(zip(grads, model.trainable_variables))
    """
    dl = facts.alias
    for made in (*facts.averages, *facts.clipped):
        yield Edit(
            made,
            "the mean over the ranks, before anything reads the gradients",
            lambda c: expression("tensorflow/gradients", {"grads": c}, dl=dl),
        )
    drawn: set[cst.CSTNode] = set()
    for update in (*facts.averages, *(step.node for step in facts.steps)):
        yield from rank_0_draws(facts, update, "the model", drawn)
    wrapped = facts.wrapped
    if facts.estimators is not None:
        yield from estimator.gradients(facts)
        wrapped = (*wrapped, *(o for call in facts.estimators.ready for o in facts.estimators.optimizers_of(call)))
    for call in dict.fromkeys(wrapped):
        yield _averaging(facts, call)
    yield from fitted.gradients(facts)
    yield from searches.torch(facts)
    yield from meeting.doubts(facts)


def _averaging(facts: TensorFlowFacts, call: cst.Call) -> Edit:
    """Return the Edit that lets the optimizer made by ``call`` average by itself, in a line of its own if it can."""
    why, statement = "the optimizer averages the gradients that it computes", facts.script.parents[call]
    if isinstance(statement, cst.Assign) and len(statement.targets) == 1 and dotted(statement.targets[0].target):
        name = dotted(statement.targets[0].target)
        return Edit(
            facts.script.line_of(statement),
            f"{name}: {why}",
            after=statements("tensorflow/optimizer_name", dl=facts.alias, name=name),
        )
    return Edit(call, why, lambda c: expression("tensorflow/optimizer", {"optimizer": c}, dl=facts.alias))


def shard(facts: TensorFlowFacts) -> Iterator[Edit | Doubt]:
    """Share what the training loop runs over; what only evaluates stays whole.

    Before:
        train = tf.data.Dataset.from_tensor_slices(x).batch(8)
        for batch in train:
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(model(batch) ** 2)
            opt.apply_gradients(zip(tape.gradient(loss, model.variables), model.variables))

    After:
        train = tf.data.Dataset.from_tensor_slices(x).batch(8)
        for batch in dl.shard(train):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(model(batch) ** 2)
            opt.apply_gradients(zip(tape.gradient(loss, model.variables), model.variables))
    """
    if facts.style == "estimator":
        yield from estimator.shard(facts)
        return
    if facts.options.batch == "global" and facts.style == "tape" and not facts.full_batch:
        yield from torch_shard.alike_orders(facts)
        yield from global_batches.tape(facts)
        yield from torch_shard.drawn_orders(facts)
        return
    yield from torch_shard.torch(facts)
    yield from generators.tensorflow(facts)
    yield from whole.tensorflow(facts)
    yield from sessions.shares(facts)
    yield from session_parts.beside(facts)


def rate(facts: TensorFlowFacts) -> Iterator[Edit | Doubt]:
    """Scale the rate where the optimizer gets it, and where the script sets it later.

    Before:
        opt = keras.optimizers.Adam(1e-3)
        for x, y in data:
            opt.learning_rate = 1e-4
            with tf.GradientTape() as tape:
                loss = keras.losses.mse(y, model(x))
            opt.apply_gradients(zip(tape.gradient(loss, model.variables), model.variables))

    After:
        opt = keras.optimizers.Adam(dl.lr_scale(1e-3))
        for x, y in data:
            opt.learning_rate = dl.lr_scale(1e-4)
            with tf.GradientTape() as tape:
                loss = keras.losses.mse(y, model(x))
            opt.apply_gradients(zip(tape.gradient(loss, model.variables), model.variables))
    """
    yield from recipe.in_loops(facts)
    if facts.options.lr_scaling == "none" or facts.full_batch:
        return
    yield from keras_rate.constructors(facts, facts.optimizers)
    yield from keras_rate.assigned(facts)
    yield from keras_rate.resets(facts)
    yield from group_rates.by_hand(facts)


def steps(facts: TensorFlowFacts) -> Iterator[Edit | Doubt]:
    """Divide the bounds of loops that draw one batch an iteration.

    Before:
        batches = iter(tf.data.Dataset.from_tensor_slices(x).repeat().batch(8))
        for step in range(1000):
            batch = next(batches)
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(model(batch) ** 2)
            opt.apply_gradients(zip(tape.gradient(loss, model.variables), model.variables))

    After:
        batches = iter(tf.data.Dataset.from_tensor_slices(x).repeat().batch(8))
        for step in range(dl.steps(1000)):
            batch = next(batches)
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(model(batch) ** 2)
            opt.apply_gradients(zip(tape.gradient(loss, model.variables), model.variables))
    """
    if facts.keeps_steps:
        return
    yield from (divided := script_schedules.once(facts, schedules.counts(facts, facts.optimizers)))
    done = {edit.node for edit in divided}
    if facts.style == "estimator":
        yield from estimator.steps(facts)
        yield from script_schedules.tensorflow(facts, done)
        yield from hooks.tensorflow(facts, done)
        return
    found = list(sessions.divided(facts))
    for node, why in found:
        inner = any(part is not node and facts.script.inside(part, node) for part, _ in found)
        if node not in done and not inner:  # the length of length - 1
            done.add(node)
            yield Edit(node, why, partial(_divided, facts.alias))
    yield from sessions.resumed(facts)
    yield from at_times(facts, {*counters(facts), *attributes(facts), *variables(facts)}, done)
    yield from keras_cadences.shown(facts, keras_schedules.batches(facts))
    yield from script_schedules.tensorflow(facts, done)
    yield from changing_rates.compounded(facts, done, script_schedules.fed(facts))
    yield from moving.by_hand(facts, StepRates(facts, steps_so_far(facts), done), done)
    yield from hooks.tensorflow(facts, done)


def _divided(dl: str, node: cst.BaseExpression) -> cst.BaseExpression:
    return expression("torch/steps", {"count": node}, dl=dl)


def metrics(facts: TensorFlowFacts) -> Iterator[Edit | Doubt]:
    """Average what decides and what is shown; of what a session fetched, what is surely one number.

    Before:
        model = keras.Sequential([keras.layers.Dense(1)])
        for x, y in data:
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(model(x) - y)
            opt.apply_gradients(zip(tape.gradient(loss, model.variables), model.variables))
            print("loss", float(loss))

    After:
        model = keras.Sequential([keras.layers.Dense(1)])
        for x, y in data:
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(model(x) - y)
            opt.apply_gradients(zip(tape.gradient(loss, model.variables), model.variables))
            print("loss", dl.average(float(loss)))
    """
    yield from coupled.both(facts)
    yield from quotients.tensorflow(facts)
    yield from sessions.logged(facts)
    yield from sessions.hooked(facts)
    if facts.style == "estimator":
        yield from estimator.metrics(facts)
        yield from file_numbers.tensorflow(facts)
        yield from hooks.evaluated(facts) if not facts.keeps_steps else ()
        yield from annealing.tensorflow(facts, {edit.node for edit in steps(facts) if isinstance(edit, Edit)})
        yield from local_variables.tensorflow(facts)
        return
    serial: list[Edit | Doubt] = []
    if environments.uneven(facts) is None:  # else the ranks do not come to the same places together
        serial = list(placement.numbers(facts))
    moved = list(local_variables.tensorflow(facts, {each.node for each in serial if isinstance(each, Edit)}))
    told = {each.node for each in moved}  # which is worse than what is shown of it
    yield from (each for each in serial if isinstance(each, Edit) or each.node not in told)
    yield from file_numbers.tensorflow(facts, {each.node for each in serial if isinstance(each, Edit)})
    yield from statistics_tensorflow.tape(facts)
    yield from statistics_tensorflow.session(facts)
    divided = {edit.node for edit in steps(facts) if isinstance(edit, Edit)}
    yield from annealing.tensorflow(facts, divided)
    yield from ramps.tensorflow(facts, divided)
    yield from environments.torch(facts)
    for found in moved:
        if facts.style != "tape" or not placement.is_reduced(facts, found.node):
            yield found
    yield from list(divergence.generators(facts))[:1]
    yield from divergence.rates(facts)


def finish(facts: TensorFlowFacts) -> Iterator[Edit | Doubt]:
    """Put finalize() at the end of the main guard, or of the script.

    Before:
        import tensorflow as tf
        train()

    After:
        import tensorflow as tf
        train()
        dl.finalize()  # leave together
    """
    yield from torch_finish.torch(facts)
