"""Part of step "steps" for Keras: what a train_step(), or a callback, makes of the number of steps so far."""

from __future__ import annotations

from collections.abc import Collection, Iterator

import libcst as cst

from dlrun.port.edits import Doubt, Edit
from dlrun.port.facts.keras import KerasFacts
from dlrun.port.facts.numbers.computed import Tells, computed
from dlrun.port.insert import expression
from dlrun.port.program.script import calls_method, dotted, walk
from dlrun.port.steps.counts.conditions import fewer, rests_of
from dlrun.port.steps.counts.counters import is_one
from dlrun.port.steps.counts.keras import cadences, phases
from dlrun.port.steps.counts.keras.phases import bodies
from dlrun.port.steps.metrics import ramps
from dlrun.port.steps.metrics.annealing import FOLLOWS, compared_with_draws, grows, picks

_BETWEEN = "it counts batches between two times, and each rank sees 1/n of them"
_RATES = (".lr", ".learning_rate")


def keras(facts: KerasFacts, batches: Tells, divided: Collection[cst.CSTNode]) -> Iterator[Edit | Doubt]:
    """Let weights of losses follow the serial steps, of which n ranks take 1/n: the annealing of a VAE.

    ``batches`` tells what counts the batches of callbacks; ``divided`` are nodes that follow the ranks already.

    Before:
        class Net(keras.Model):
            def train_step(self, data):
                self.seen.assign_add(1.0)
                with tf.GradientTape() as tape:
                    loss = rest(data) + tf.minimum(1.0, self.seen / 500) * size(data)
        model = Net()
        model.compile(opt)
        model.fit(x, y)

    After:
        class Net(keras.Model):
            def train_step(self, data):
                self.seen.assign_add(1.0)
                with tf.GradientTape() as tape:
                    loss = rest(data) + tf.minimum(1.0, dl.serial_steps(self.seen) / 500) * size(data)
        model = Net()
        model.compile(opt)
        model.fit(x, y)
    """
    script = facts.script
    known = set(_counted(facts))

    def reads(node: cst.CSTNode) -> bool:
        if not isinstance(node, cst.Attribute):
            return batches(node)
        own = dotted(node.value) == "self" and (script.class_of(node), node.attr.value) in known
        return own or batches(node) or dotted(node).endswith("optimizer.iterations")

    paced = phases.cadences(facts, reads)
    for every in (n for n in paced if n not in divided):
        yield from (fewer(facts, n, _BETWEEN) for n in (every, *rests_of(script, every)))
    divided = {*divided, *paced, *(n for count in paced.values() for n in walk(count))}
    found: dict[cst.CSTNode, None] = {}
    for value in (*_weights(facts, reads), *_chances(facts), *_put(facts)):
        made = computed(facts.flow, [value], reads)
        if any(grows(facts, n) for n in made.nodes) and not any(n in divided for n in made.nodes):
            found.update(dict.fromkeys(read for read in made.reads if not picks(facts, read)))
    for read in found:
        yield Edit(read, FOLLOWS, lambda n: expression("torch/serial_steps", {"step": n}, dl=facts.alias))
    yield from ramps.keras(facts)
    yield from phases.keras(facts, reads, {*divided, *found})
    yield from cadences.keras(facts, batches)


def _counted(facts: KerasFacts) -> Iterator[tuple[cst.CSTNode | None, str]]:
    """Yield the classes and variables that a train_step() counts up: ``self.seen.assign_add(1)``."""
    for call in facts.script.calls:
        func, home = call.func, facts.script.function_of(call)
        named = isinstance(home, cst.FunctionDef) and home.name.value == "train_step"
        adds = isinstance(func, cst.Attribute) and func.attr.value == "assign_add" and bool(call.args)
        if named and adds and is_one(call.args[0].value) and dotted(func).startswith("self."):
            yield facts.script.class_of(call), dotted(func).removeprefix("self.").removesuffix(".assign_add")
    for step in (f for f in facts.script.of(cst.FunctionDef) if f.name.value == "train_step"):
        for node in (n for n in walk(step.body) if isinstance(n, cst.AugAssign) and is_one(n.value)):
            if isinstance(node.operator, cst.AddAssign) and dotted(node.target).startswith("self."):
                yield facts.script.class_of(step), dotted(node.target).removeprefix("self.")


def _weights(facts: KerasFacts, reads: Tells) -> Iterator[cst.BaseExpression]:
    """Yield what the parts of losses are multiplied by in a train_step() and the functions that it calls."""
    for product in (n for body in bodies(facts) for n in walk(body) if isinstance(n, cst.BinaryOperation)):
        if isinstance(product.operator, cst.Multiply):
            sides = (product.left, product.right)
            told = [bool(computed(facts.flow, [side], reads).reads) for side in sides]
            yield from [sides[told.index(True)]] if sorted(told) == [False, True] else []


def _chances(facts: KerasFacts) -> Iterator[cst.BaseExpression]:
    """Yield what a train_step() compares what it draws at random with: ``tf.random.uniform(()) < chance``."""
    for node in (n for body in bodies(facts) for n in walk(body)):
        yield from compared_with_draws(facts, node)


def _put(facts: KerasFacts) -> Iterator[cst.BaseExpression]:
    """Yield what callbacks put into variables: ``self.weight.assign(...)``, ``K.set_value(weight, ...)``."""
    for call in facts.script.calls:
        held: cst.BaseExpression | None = None
        if calls_method(call, "assign") and call.args:
            held = call.func.value
        elif facts.script.name_of(call.func).endswith("backend.set_value") and len(call.args) == 2:
            held = call.args[0].value
        if held is not None and not dotted(held).endswith(_RATES):
            yield call.args[-1].value
