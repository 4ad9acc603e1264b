"""As ``script_schedules``, for Keras: rates and ends that callbacks, and loops of train_on_batch(), set by batches."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import libcst as cst

from dlrun.port.edits import Doubt, Edit
from dlrun.port.facts import ScriptFacts
from dlrun.port.facts.keras import KerasFacts
from dlrun.port.facts.numbers.computed import Tells, reaching
from dlrun.port.facts.updates.rates import ORDER, changes, given, holds_rate, is_zero, reads_rate
from dlrun.port.insert import expression
from dlrun.port.program.script import dotted, walk
from dlrun.port.steps.counts import windows
from dlrun.port.steps.counts.bounds import AFTER, compared
from dlrun.port.steps.counts.changing_rates import change, compound, is_set, target_of
from dlrun.port.steps.counts.conditions import fewer
from dlrun.port.steps.counts.counters import is_one_more
from dlrun.port.steps.counts.step_rates import StepRates, ways
from dlrun.port.steps.counts.update_counts import bare
from dlrun.port.steps.rate import keras_rate

_ONCE = ("__init__", "on_train_begin")  # where an attribute gets a value that it keeps
_BATCH = re.compile(r"^on_(train_)?batch_(begin|end)$")


def keras(facts: KerasFacts, loops: Sequence[cst.For] = (), shared: Sequence[cst.For] = ()) -> Iterator[Edit | Doubt]:
    """Tell the serial steps to callbacks that count batches, and set the rate by them.

    ``loops`` are those whose iterations are divided, of which each trains on one batch; of ``shared`` each rank makes
    1/n of the iterations.

    Before:
        class Ramp(keras.callbacks.Callback):
            seen = 0
            def on_batch_begin(self, batch, logs=None):
                keras.backend.set_value(self.model.optimizer.lr, 0.1 * min(1.0, self.seen / 100))
            def on_batch_end(self, batch, logs=None):
                self.seen += 1
        model.compile(opt)
        model.fit(x, y, callbacks=[Ramp()])

    After:
        class Ramp(keras.callbacks.Callback):
            seen = 0
            def on_batch_begin(self, batch, logs=None):
                keras.backend.set_value(self.model.optimizer.lr, 0.1 * min(1.0, dl.serial_steps(self.seen) / 100))
            def on_batch_end(self, batch, logs=None):
                self.seen += 1
        model.compile(opt)
        model.fit(x, y, callbacks=[Ramp()])
    """
    script = facts.script
    counts = batches(facts, loops)
    yield from _stages(facts, loops)
    yield from _stops(facts, counts)
    own = [n for n in script.of(cst.Attribute) if dotted(n) == "self.params"]  # a rank's steps
    given = [found.node for found in (*keras_rate.assigned(facts), *keras_rate.resets(facts))]
    rates = StepRates(facts, counts, own)
    yield from rates.told(way for n in given if isinstance(n, cst.BaseExpression) for way in ways(facts, n))
    for node, factor in _of_the_one_before(facts, shared):
        if factor is not None:
            yield compound(facts, factor)
        else:
            yield Doubt(
                node,
                "makes a rate of the one before at every batch, and n ranks take 1/n of the batches: it "
                "changes n times more slowly",
                "high",
                f"{facts.alias}.compound(factor)",
            )


def _of_the_one_before(
    facts: KerasFacts, loops: Sequence[cst.For]
) -> Iterator[tuple[cst.CSTNode, cst.BaseExpression | None]]:
    """Yield what makes a rate of the one before at every batch, and the factor, if it is by one that does not change.

    The rate that an optimizer holds; around train_on_batch() also a name that it is set to: ``rate *= 1.1``.
    """
    script = facts.script
    for node in changes(facts):
        value = node.args[-1].value if isinstance(node, cst.Call) and node.args else getattr(node, "value", None)
        here = script.function_of(node)
        again = isinstance(node, cst.AugAssign) or (
            isinstance(value, cst.BaseExpression)
            and any(script.function_of(read) is here for read in reads_rate(facts, value))
        )
        if again and of_batches(facts, node):
            factor = _factor(facts, node if isinstance(node, cst.AugAssign) else value)
            yield node, factor if factor is not None and is_plain(facts, factor, node) else None
    written = tuple(given(facts))
    for loop in loops:
        for node in walk(loop.body):
            found = change(facts, node)
            around = next((up for up in script.above(node) if isinstance(up, (cst.For, cst.While))), None)
            if found is not None and around is loop:
                target = target_of(node)
                if holds_rate(facts, target) or is_set(facts, target, written):
                    yield node, found[0] if not found[1] and _is_kept(facts, found[0], loop) else None


def _is_kept(facts: KerasFacts, factor: cst.BaseExpression, loop: cst.For) -> bool:
    """Tell whether ``factor`` is the same in all iterations of ``loop``, and no test decides whether it is used."""
    script = facts.script
    tested = any(isinstance(up, cst.If) and script.inside(up, loop.body) for up in script.above(factor))
    names = [n for n in walk(factor) if isinstance(n, cst.Name) and n in script.scopes]
    return not tested and not any(script.inside(b.node, loop) for n in names for b in script.bindings_of(n))


def _stages(facts: KerasFacts, loops: Sequence[cst.For]) -> Iterator[Edit]:
    """Divide what the number of an iteration of ``loops`` is compared with: ``if step == 800: rate.assign(0.01)``."""
    for loop, number in ((loop, dotted(loop.target)) for loop in loops):
        for node in (n for n in walk(loop.body) if isinstance(n, cst.If)):
            stages = [
                right
                for left, how, right in compared(node.test)
                if dotted(left) == number and issubclass(how, (*ORDER, cst.Equal)) and not is_zero(right)
            ]
            around = [node.test, node.body]
            stages += [part for every in stages for part in windows.means(facts, loop, around, every)]
            yield from (fewer(facts, stage, "it counts batches, and each rank sees 1/n of them") for stage in stages)


def batches(facts: ScriptFacts, loops: Sequence[cst.For] = ()) -> Tells:
    """Return what tells whether a node counts training batches: as a callback does, or as an iteration of ``loops``."""
    script = facts.script
    known = {
        key
        for key, bindings in script.attributes.items()
        if any(is_one_more(b.node) and of_batches(facts, b.node) for b in bindings)
    }

    def counts(node: cst.CSTNode) -> bool:
        if isinstance(node, cst.Name):
            return any(node.value == dotted(loop.target) and script.inside(node, loop.body) for loop in loops)
        owner = script.class_of(node)
        return isinstance(node, cst.Attribute) and owner is not None and (owner, node.attr.value) in known

    return counts


def _factor(facts: KerasFacts, made: cst.CSTNode | None) -> cst.BaseExpression | None:
    """Return what ``made`` multiplies the rate before with: 0.9 in ``lr * 0.9``, or of the name that ``lr *= 0.9`` set.

    Or what it divides it by.
    """
    if isinstance(made, cst.Name):
        bound = reaching(facts.script, made, facts.script.bindings_of(made))
        moved = isinstance(bound[0].node, cst.AugAssign) if len(bound) == 1 else None
        return _factor(facts, bound[0].node if moved else bound[0].value) if moved is not None else None
    if isinstance(made, cst.AugAssign):
        return made.value if isinstance(made.operator, (cst.MultiplyAssign, cst.DivideAssign)) else None
    if not isinstance(made, cst.BinaryOperation) or not isinstance(made.operator, (cst.Multiply, cst.Divide)):
        return None
    left, right = (bool(reads_rate(facts, side)) for side in (made.left, made.right))
    if left == right or (right and isinstance(made.operator, cst.Divide)):
        return None
    return made.right if left else made.left


def is_plain(facts: KerasFacts, factor: cst.BaseExpression, node: cst.CSTNode) -> bool:
    """Tell whether ``factor`` is the same at every batch, and no test decides whether ``node`` runs."""
    script = facts.script
    here = script.function_of(node)
    if any(isinstance(up, cst.If) and script.inside(up, here) for n in (node, factor) for up in script.above(n)):
        return False
    for n in walk(factor):
        if isinstance(n, cst.Call):
            return False
        if isinstance(n, cst.Attribute):
            owner = script.class_of(n)
            bound = script.attributes.get((owner, n.attr.value), ()) if owner is not None else ()
            homes = [script.function_of(b.node) for b in bound]
            if any(isinstance(home, cst.FunctionDef) and home.name.value not in _ONCE for home in homes):
                return False
        elif isinstance(n, cst.Name) and n in script.scopes and n.value != "self" and not script.is_part(n):
            scope = script.scope_of(n)
            if scope is not None and scope.node is here:
                return False
    return True


def _stops(facts: KerasFacts, counts: Tells) -> Iterator[Edit]:
    """Divide the counts of batches after which a callback ends the training: ``if self.seen >= 900:``."""
    for node in facts.script.of(cst.If):
        ends = any(
            isinstance(n, cst.AssignTarget) and dotted(n.target).endswith(".stop_training") for n in walk(node.body)
        )
        for left, how, right in compared(node.test) if ends else ():
            count = bare(facts, left)
            counted = counts(count) or dotted(count).endswith("optimizer.iterations")
            if counted and issubclass(how, (*AFTER, cst.Equal)) and not is_zero(right):
                yield Edit(
                    right,
                    "it counts batches, and each rank sees 1/n of them",
                    lambda n: expression("torch/steps", {"count": n}, dl=facts.alias),
                )


def of_batches(facts: ScriptFacts, node: cst.CSTNode) -> bool:
    """Tell whether ``node`` stands in what Keras calls with every training batch."""
    function = facts.script.function_of(node)
    return isinstance(function, cst.FunctionDef) and (
        bool(_BATCH.search(function.name.value)) or number_of_batch(facts, function) is not None
    )


def number_of_batch(facts: ScriptFacts, function: cst.FunctionDef) -> str | None:
    """Return the name by which Keras tells ``function`` the number of a batch in its epoch: None if it does not."""
    given = [
        arg.value
        for call in facts.script.calls
        if dotted(call.func).endswith("LambdaCallback")
        for arg in call.args
        if arg.keyword is not None and _BATCH.search(arg.keyword.value)
    ]
    alone = any(facts.flow.definition(value) is function for value in given)
    params = [p.name.value for p in function.params.params]
    if not alone and not _BATCH.search(function.name.value):
        return None
    return next(iter(params[0 if alone else 1 :]), None)
