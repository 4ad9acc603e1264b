"""Part of step "metrics": weights of losses, and chances, that go up or down by a step of their own at every batch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Set

import libcst as cst

from dlrun.port.edits import Edit
from dlrun.port.facts import Facts, ScriptFacts
from dlrun.port.facts.keras import KerasFacts
from dlrun.port.facts.numbers.computed import computed
from dlrun.port.facts.tensorflow import TensorFlowFacts
from dlrun.port.facts.updates.rates import changes
from dlrun.port.insert import expression
from dlrun.port.program.script import calls_method, dotted, walk
from dlrun.port.steps.counts import steps
from dlrun.port.steps.counts.changing_rates import change, compound, is_judged, is_told, target_of
from dlrun.port.steps.counts.counters import each_update, innermost, is_one
from dlrun.port.steps.counts.keras.phases import bodies
from dlrun.port.steps.counts.keras.schedules import is_plain, of_batches
from dlrun.port.steps.metrics.annealing import steered, weights

_MULTIPLIES = "a weight is multiplied by it at every batch, and n ranks take 1/n of the batches"
_ADDS = "a weight changes by it at every batch, and n ranks take 1/n of the batches"


def torch(facts: Facts) -> Iterator[Edit]:
    """Let a weight that changes at every batch change by as much an epoch as in the serial run.

    Before:
        beta = 0.0
        for x in loader:
            beta = min(1.0, beta + 1 / 500)
            loss = (model(x) - x).pow(2).mean() + beta * model(x).pow(2).mean()
            loss.backward()
            opt.step()

    After:
        beta = 0.0
        for x in loader:
            beta = min(1.0, beta + dl.serial_steps(1 / 500))
            loss = (model(x) - x).pow(2).mean() + beta * model(x).pow(2).mean()
            loss.backward()
            opt.step()
    """
    yield from moves(facts, {e.node for e in steps.torch(facts) if isinstance(e, Edit)})


def tensorflow(facts: TensorFlowFacts, divided: Set[cst.CSTNode]) -> Iterator[Edit]:
    """Likewise for TensorFlow, variables included; ``divided`` are nodes that follow the ranks already.

    Before:
        model, opt = keras.Sequential([keras.layers.Dense(1)]), keras.optimizers.SGD(0.1)
        weight = tf.Variable(0.0, trainable=False)
        for x in tf.data.Dataset.from_tensor_slices(data).batch(8):
            weight.assign_add(0.01)
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(model(x)) + weight * tf.reduce_mean(model(x) ** 2)
            opt.apply_gradients(zip(tape.gradient(loss, model.variables), model.variables))

    After:
        model, opt = keras.Sequential([keras.layers.Dense(1)]), keras.optimizers.SGD(0.1)
        weight = tf.Variable(0.0, trainable=False)
        for x in tf.data.Dataset.from_tensor_slices(data).batch(8):
            weight.assign_add(dl.serial_steps(0.01))
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(model(x)) + weight * tf.reduce_mean(model(x) ** 2)
            opt.apply_gradients(zip(tape.gradient(loss, model.variables), model.variables))
    """
    yield from moves(facts, divided)


def moves(facts: Facts | TensorFlowFacts, divided: Set[cst.CSTNode]) -> Iterator[Edit]:
    """Yield the changes; none where a test asks a count that is ``divided``, or values of the training."""
    if facts.keeps_steps:
        return
    changed = [
        n
        for n in facts.script.nodes
        if (found := change(facts, n)) is not None
        and (_is_fine(facts, *found) or _is_capped(n, *found))
        and _lasts(facts, n)
    ]
    values = [*weights(facts), *steered(facts)] if changed else []
    used = dict.fromkeys((*(n for value in values for n in walk(value)), *computed(facts.flow, values).nodes))
    for node in changed:
        target = target_of(node)
        weighs = any(_is_same(facts, n, target) for n in used if not facts.script.inside(n, node))
        told = not divided.isdisjoint(walk(node)) or is_told(facts, node, divided) or is_judged(facts, node)
        if told or not weighs or not each_update(facts, node):
            continue
        yield _faster(facts, node)


def keras(facts: KerasFacts) -> Iterator[Edit]:
    """Likewise for variables that a train_step() changes, and multiplies or divides by; and for those of callbacks.

    Before:
        class Net(keras.Model):
            def train_step(self, data):
                self.weight.assign(tf.minimum(1.0, self.weight + 0.01))
                with tf.GradientTape() as tape:
                    loss = rest(data) + self.weight * size(data)
        model = Net()
        model.compile(opt)
        model.fit(x, y)

    After:
        class Net(keras.Model):
            def train_step(self, data):
                self.weight.assign(tf.minimum(1.0, self.weight + dl.serial_steps(0.01)))
                with tf.GradientTape() as tape:
                    loss = rest(data) + self.weight * size(data)
        model = Net()
        model.compile(opt)
        model.fit(x, y)
    """
    inside = [n for body in bodies(facts) for n in walk(body)]
    for node in inside:
        found = change(facts, node)
        if found is None or not isinstance(target := target_of(node), cst.Attribute) or not _is_fine(facts, *found):
            continue
        sides = _operands(inside if found[1] else facts.script.nodes)
        if any(_is_same(facts, side, target) for side in sides if not facts.script.inside(side, node)):
            yield _faster(facts, node)
    yield from _of_callbacks(facts)


def _operands(nodes: Iterable[cst.CSTNode]) -> list[cst.BaseExpression]:
    """Return what ``nodes`` multiply by, or divide."""
    scales = (cst.Multiply, cst.Divide)
    products = [n for n in nodes if isinstance(n, cst.BinaryOperation) and isinstance(n.operator, scales)]
    return [side for n in products for side in (n.left, n.right)]


def _of_callbacks(facts: KerasFacts) -> Iterator[Edit]:
    """Yield the edits of what callbacks change at every batch: a variable, or what they put into one or into a rate."""
    script, rates = facts.script, set(changes(facts))
    handed = [n for call in script.calls if _puts(facts, call) for n in walk(call.args[-1].value)]
    handed += [n for rate in rates if isinstance(rate, cst.Assign) for n in walk(rate.value)]
    for node in script.nodes:
        found = change(facts, node)
        if found is None or node in rates or not of_batches(facts, node):
            continue
        if not isinstance(node, cst.Call) and not isinstance(target_of(node), cst.Attribute):
            continue  # a name of the method's own: see ``counts/keras/schedules``
        by, adds = found
        kept = isinstance(node, cst.Call) and not adds
        kept = kept or any(_is_same(facts, n, target_of(node)) for n in handed if not script.inside(n, node))
        own = any(dotted(n).startswith("self.params") for n in computed(facts.flow, [by]).nodes)
        if kept and not own and (_is_fine(facts, by, adds) if adds else is_plain(facts, by, node)):
            yield _faster(facts, node)


def _puts(facts: KerasFacts, call: cst.Call) -> bool:
    """Tell whether ``call`` puts its last argument into a variable."""
    puts = calls_method(call, "assign") or facts.script.name_of(call.func).endswith("backend.set_value")
    return puts and bool(call.args)


def _faster(facts: ScriptFacts, node: cst.CSTNode) -> Edit:
    """Return the edit of that by which ``node`` changes a weight."""
    by, adds = change(facts, node) or (cst.Integer("0"), True)
    if adds:
        return Edit(by, _ADDS, lambda n: expression("torch/serial_steps", {"step": n}, dl=facts.alias))
    return compound(facts, by, _MULTIPLIES)


def _is_fine(facts: ScriptFacts, by: cst.BaseExpression, adds: bool) -> bool:
    """Tell whether ``by`` is a fraction: no count goes up by it."""
    made = [o.node for o in facts.flow.origins(by)]
    parts = isinstance(by, cst.BinaryOperation) and isinstance(by.operator, cst.Divide) and adds
    local = getattr(facts, "local", None)
    plain = not any(isinstance(n, cst.Call) or (local is not None and local(n)) for n in walk(by))
    whole = any(isinstance(n, cst.Float) and n.evaluated_value == 1 for n in made)
    return plain and not whole and (parts or (bool(made) and all(isinstance(n, cst.Float) for n in made)))


def _is_capped(node: cst.CSTNode, by: cst.BaseExpression, adds: bool) -> bool:
    """Tell whether ``node`` counts up to some number: ``now = min(now + 1, 1000)``; others count local steps."""
    return adds and isinstance(node, cst.Assign) and isinstance(node.value, cst.Call) and is_one(by)


def _lasts(facts: Facts | TensorFlowFacts, node: cst.CSTNode) -> bool:
    """Tell whether what ``node`` changes is there before the loop around it, and is of no samples."""
    target, around = target_of(node), innermost(facts, node)
    if facts.local(target):
        return False
    if isinstance(node, cst.Call):  # a variable lasts
        return isinstance(target, (cst.Name, cst.Attribute))
    if isinstance(target, cst.Attribute):
        return facts.script.class_of(target) is not None and dotted(target.value) == "self"
    others = [b for b in facts.script.bindings_of(target) if b.node is not node] if isinstance(target, cst.Name) else []
    return (
        isinstance(around, (cst.For, cst.While))
        and bool(others)
        and not any(b.how == "param" or facts.script.inside(b.node, around) for b in others)
    )


def _is_same(facts: ScriptFacts, node: cst.CSTNode, target: cst.CSTNode) -> bool:
    if type(node) is not type(target) or dotted(node) != dotted(target):
        return False
    if isinstance(target, cst.Name):
        return facts.script.bindings_of(node) == facts.script.bindings_of(target)
    return not dotted(node).startswith("self.") or facts.script.class_of(node) is facts.script.class_of(target)
