"""The steps of a port of Keras: ``distribute`` does at run time what is one step each in a loop of one's own."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import libcst as cst

from dlrun.port.edits import Doubt, Edit
from dlrun.port.facts import Feed
from dlrun.port.facts.keras import KerasFacts
from dlrun.port.facts.models.kinds import plays
from dlrun.port.facts.updates.train_step_losses import is_train_step
from dlrun.port.feeds import keras_batches
from dlrun.port.feeds.iterated import Iterated
from dlrun.port.feeds.positions.counting import counts_too
from dlrun.port.insert import expression, statements
from dlrun.port.placement import torch as placement
from dlrun.port.program.script import calls_method, dotted, walk
from dlrun.port.steps.counts import moving
from dlrun.port.steps.counts.bounds import sources
from dlrun.port.steps.counts.keras import annealing
from dlrun.port.steps.counts.keras import schedules as keras_schedules
from dlrun.port.steps.counts.keras.loops import before, bound, in_strides, iterations, shared
from dlrun.port.steps.gradients import keras_doubts
from dlrun.port.steps.gradients.gradients import rank_0_draws
from dlrun.port.steps.metrics import coupled, local_variables, quotients
from dlrun.port.steps.metrics.divergence import own_generators
from dlrun.port.steps.rate import callback_rates, recipe, schedules
from dlrun.port.steps.shard import alike, order, seeds, unseeded
from dlrun.port.steps.shard import shard as torch_shard
from dlrun.port.steps.start import devices
from dlrun.port.steps.start import start as torch_start


def start(facts: KerasFacts) -> Iterator[Edit | Doubt]:
    """Import dl_comm beside the others and join the ranks before Keras does any work.

    Before:
        import keras
        model.compile("sgd")
        model.fit(x, y)

    After:
        import keras
        import dl_comm.keras as dl  # averages gradients over the ranks; without a launcher: one rank

        dl.init()  # join the other ranks; this rank's GPU becomes the visible one
        model.compile("sgd")
        model.fit(x, y)
    """
    yield from torch_start.beside_imports(facts, ("keras", "tensorflow"))
    yield from devices.tensorflow(facts)


def gradients(facts: KerasFacts) -> Iterator[Edit | Doubt]:
    """Distribute the model right after compile(): fit() then shares, averages, and starts from rank 0's weights.

    Before:
        model.compile(optimizer=opt, loss="mse")
        model.fit(x, y)

    After:
        model.compile(optimizer=opt, loss="mse")
        dl.distribute(model)  # average gradients and metrics, start alike, share the samples
        model.fit(x, y)
    """
    callbacks = recipe.callbacks(facts)
    played = any(plays(facts.kinds, node) for node in facts.script.of(cst.Assign))  # predict() is local there
    own_steps = any(is_train_step(f) for f in facts.script.of(cst.FunctionDef))
    if facts.options.lars:
        yield recipe.unsuited(facts, [*facts.compiled, *facts.loaded][0][0])
    for node, model in (*facts.compiled, *facts.loaded):
        place = facts.script.line_of(facts.script.statement_of(node))
        yield Edit(
            place,
            f"{model}: fit() shares the samples and averages from here on",
            after=statements(
                "keras/distribute",
                dl=facts.alias,
                model=model,
                callbacks=callbacks,
                lars=facts.options.lars,
                whole=facts.options.evaluate == "whole" or played,
                batch=facts.options.batch,
                mean_step=own_steps,
            ),
        )
    if facts.options.batch == "global":
        yield from keras_doubts.normalizing(facts)
        yield from keras_doubts.of_parts(facts)
    for arg in facts.stateful[:1]:
        yield Doubt(
            arg,
            "each rank carries states of its own through its stretch of the arrays that fit() gets, in "
            "whole batches: n ranks are a serial run with n times the rows in a batch, whose states are lost n "
            "times as often",
            "medium",
            name="carried-state",
        )
    for optimizer in facts.own:
        yield Edit(
            optimizer,
            "train_step() applies gradients with it, which it averages first",
            lambda o: expression("tensorflow/optimizer", {"optimizer": o}, dl=facts.alias),
        )
    for made in facts.averages:
        yield Edit(
            made,
            "the mean over the ranks, before anything reads the gradients",
            lambda c: expression("tensorflow/gradients", {"grads": c}, dl=facts.alias),
        )
    yield from _batches(facts)
    yield from keras_doubts.by_itself(facts)
    yield from coupled.both(facts)
    yield from quotients.tensorflow(facts)
    yield from local_variables.keras(facts)
    yield from _loops(facts)


def _batches(facts: KerasFacts) -> Iterator[Edit | Doubt]:
    """Shard what the loops around ``train_on_batch()`` go through."""
    for over in facts.sharded:
        numbers = Iterated(facts.flow).source(over.iter)
        picks = counts_too(facts.flow, over)
        if isinstance(over.target, cst.Name) and picks:
            feed = Feed(numbers, "positions", (over.target.value,), (), (over.target, *picks))
            yield from torch_shard.positions(facts, feed)
            continue
        yield Edit(
            numbers,
            "the ranks take the batches of the serial run in turn",
            lambda c: expression("torch/shard", {"loader": c}, dl=facts.alias, batch="local"),
        )
    for node in facts.iterated:
        yield Edit(
            node,
            "the ranks take the batches of the serial run in turn",
            partial(_shared, facts.alias, keras_batches.ends_by_itself(facts.flow, node)),
        )
        if keras_batches.is_unseen(facts.flow, node):
            yield Doubt(
                node,
                "made out of sight: where it draws an order by NumPy's or random's numbers, each rank "
                "takes every n-th batch of another order",
                "medium",
                name="order-differs",
            )


def _loops(facts: KerasFacts) -> Iterator[Edit | Doubt]:
    """Let the ranks draw numbers of their own in those loops, and go through one order."""
    own = {
        facts.script.outermost_loop(node): None for node in (*(loop.body for loop in facts.sharded), *facts.iterated)
    }
    for loop in own:
        if loop is not None and loop not in facts.loops:
            yield Edit(loop, "noise is local", before=statements("keras/reseed", dl=facts.alias))
    lines: set[cst.CSTNode] = set()
    for call in facts.orders if own else ():
        yield from alike.drawn(facts, call, lines)
    for loop, names in facts.moved:
        cut = [s for name in names for s in statements("torch/shard_name", dl=facts.alias, name=name, batch="local")]
        yield Edit(loop, "each rank moves on within its own share of the samples", before=tuple(cut))
    for loop in facts.loops:
        yield Edit(
            loop,
            "the loop draws its own batches, other ones on each rank",
            before=statements("keras/reseed", dl=facts.alias),
        )
        yield from own_generators(facts, loop)
    drawn: set[cst.CSTNode] = set()
    for call in facts.script.calls if own or facts.loops else ():  # elsewhere all ranks draw alike
        if calls_method(call, "train_on_batch"):
            yield from rank_0_draws(facts, call, dotted(call.func.value), drawn)


def shard(facts: KerasFacts) -> Iterator[Edit | Doubt]:
    """Let all ranks have the same samples in the same order, of which fit() gives each its share.

    Before:
        order = np.random.default_rng().permutation(len(x))
        model = keras.Sequential([keras.layers.Dense(1)])
        model.compile(loss="mse")
        model.fit(x[order[:800]], y[order[:800]])

    After:
        order = dl.broadcast(np.random.default_rng()).permutation(len(x))
        model = keras.Sequential([keras.layers.Dense(1)])
        model.compile(loss="mse")
        model.fit(x[order[:800]], y[order[:800]])
    """
    yield from unseeded.torch(facts)
    yield from order.torch(facts)
    yield from seeds.torch(facts)


def _shared(dl: str, ends: bool, node: cst.BaseExpression) -> cst.BaseExpression:
    """Return this rank's share of what a loop runs over: of a list of batches every n-th, not 1/n of each."""
    loader = node if ends else cst.Call(cst.Name("iter"), [cst.Arg(node)])
    return expression("torch/shard", {"loader": loader}, dl=dl, batch="local")


def steps(facts: KerasFacts) -> Iterator[Edit | Doubt]:
    """Divide the loops that draw one batch an iteration, and schedules' steps; fit() divides steps_per_epoch by itself.

    Before:
        model.compile(opt)
        for step in range(1000):
            model.train_on_batch(*draw(np.random.randint(9)))

    After:
        model.compile(opt)
        for step in range(dl.steps(1000)):
            model.train_on_batch(*draw(np.random.randint(9)))
    """
    if facts.options.batch == "global":
        return  # each rank makes the serial script's steps
    yield from schedules.counts(facts, facts.optimizers)
    yield from callback_rates.counts(facts)
    counting = [
        loop
        for loop in (iterations(facts, loop) for loop in facts.loops)
        if isinstance(loop, cst.For) and bound(facts, loop) is not None
    ]
    counting += [over for over in facts.sharded if counts_too(facts.flow, over) and not in_strides(facts, over)]
    yield from (told := list(keras_schedules.keras(facts, counting, list(shared(facts)))))
    followed = {edit.node for edit in told if isinstance(edit, Edit)}
    yield from annealing.keras(facts, keras_schedules.batches(facts, counting), followed)
    yield from moving.keras(facts)
    for node in facts.iterated:
        over = next((up for up in facts.script.above(node) if isinstance(up, cst.For)), None)
        for end in keras_batches.ends(over) if over is not None and facts.script.inside(node, over.iter) else ():
            yield Edit(
                end,
                "the loop counts steps: n ranks make n batches",
                lambda n: expression("torch/steps", {"count": n}, dl=facts.alias),
            )
    done: set[cst.CSTNode] = set()
    for loop in facts.loops:
        inner = iterations(facts, loop)
        count = bound(facts, inner) if isinstance(inner, (cst.For, cst.CompFor)) else None
        for node in sources(facts, count) if count is not None else ():
            if node not in done:
                done.add(node)
                yield Edit(
                    node,
                    "the loop counts steps: n ranks make n batches",
                    lambda n: expression("torch/steps", {"count": n}, dl=facts.alias),
                )
        if count is None and not any(plays(facts.kinds, n) for n in walk(loop.body)):
            yield Doubt(
                inner,
                "each rank makes the serial run's steps, on samples that it draws itself: together they "
                "take n times as many",
                "medium",
                "let it end after 1/n of the steps",
                name="counts-steps",
            )
    yield from before(facts, counting, done)


def metrics(facts: KerasFacts) -> Iterator[Edit | Doubt]:
    """Add up over the ranks what loops around train_on_batch() add up; fit() averages its metrics by itself.

    Before:
        total = 0.0
        model.compile(opt)
        for step in range(len(x) // 8):
            total += model.train_on_batch(x[step * 8 : step * 8 + 8], y[step * 8 : step * 8 + 8])
        print(total, total / (len(x) // 8))

    After:
        total = 0.0
        model.compile(opt)
        for step in range(len(x) // 8):
            total += model.train_on_batch(x[step * 8 : step * 8 + 8], y[step * 8 : step * 8 + 8])
        total = dl.total(total)  # sums over all ranks' samples
        print(total, total / (len(x) // 8))
    """
    yield from placement.keras_numbers(facts)


def finish(facts: KerasFacts) -> Iterator[Edit | Doubt]:
    """Put finalize() at the end of the main guard, or of the script.

    Before:
        model.compile(opt)
        model.fit(x, y)

    After:
        model.compile(opt)
        model.fit(x, y)
        dl.finalize()  # leave together
    """
    from dlrun.port.steps.finish import finish as torch_finish

    yield from torch_finish.torch(facts)
