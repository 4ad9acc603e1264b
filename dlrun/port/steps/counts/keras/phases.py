"""Part of step "steps" for Keras: what begins, or ends, at some step of a train_step() or of a callback's batches."""

from __future__ import annotations

from collections.abc import Collection, Iterator

import libcst as cst

from dlrun.port.edits import Edit
from dlrun.port.facts.keras import KerasFacts
from dlrun.port.facts.numbers.computed import Tells
from dlrun.port.facts.updates.rates import ORDER, is_least
from dlrun.port.insert import expression
from dlrun.port.program.script import calls_method, dotted, walk
from dlrun.port.steps.counts.bounds import compared
from dlrun.port.steps.counts.conditions import divided, is_apart
from dlrun.port.steps.counts.keras.schedules import of_batches
from dlrun.port.steps.counts.update_counts import bare
from dlrun.port.steps.metrics.annealing import COMPARES

_Pair = tuple[cst.BaseExpression, cst.BaseExpression]
_WHY = "it counts batches, and each rank sees 1/n of them"
_RATES = (".lr", ".learning_rate", ".stop_training")


def keras(facts: KerasFacts, counts: Tells, told: Collection[cst.CSTNode]) -> Iterator[Edit]:
    """Divide the numbers of batches with which a train_step() compares what ``counts`` tells, and those at which a
    callback changes the model; not where one of the two follows the ranks already, as ``told`` says.

    Before:
        class Net(keras.Model):
            def train_step(self, data):
                self.seen.assign_add(1)
                with tf.GradientTape() as tape:
                    loss = rest(data)
                    if self.seen > 1000:
                        loss += size(data)
        model = Net()
        model.compile(opt)
        model.fit(x, y)

    After:
        class Net(keras.Model):
            def train_step(self, data):
                self.seen.assign_add(1)
                with tf.GradientTape() as tape:
                    loss = rest(data)
                    if self.seen > dl.steps(1000):
                        loss += size(data)
        model = Net()
        model.compile(opt)
        model.fit(x, y)
    """
    pairs = dict.fromkeys((*_in_steps(facts, counts), *_at_batches(facts, counts)))
    fresh = [number for count, number in pairs if not any(n in told for side in (count, number) for n in walk(side))]
    for number in fresh:
        yield Edit(number, _WHY, lambda n: expression("torch/steps", {"count": n}, dl=facts.alias))


def bodies(facts: KerasFacts) -> dict[cst.CSTNode, None]:
    """Return the bodies of every train_step(), and of the functions that it calls."""
    trains = (f for f in facts.script.of(cst.FunctionDef) if f.name.value == "train_step")
    return dict.fromkeys(body for f in trains for body in facts.flow.bodies(f.body))


def cadences(facts: KerasFacts, counts: Tells) -> dict[cst.BaseExpression, cst.BaseExpression]:
    """Return every how many steps a train_step() does something, each with the count that it divides.

    ``if self.seen % 100 == 0:``, and ``tf.cond(self.seen % 100 == 0, ...)``.
    """
    found: dict[cst.BaseExpression, cst.BaseExpression] = {}
    for test in (test for body in bodies(facts) for node in walk(body) for test in _asked(facts, node)):
        for n in (n for n in walk(test) if isinstance(n, cst.BaseExpression)):
            found |= {every: count for count, every in divided(n) if counts(bare(facts, count))}
    return found


def _asked(facts: KerasFacts, node: cst.CSTNode) -> Iterator[cst.BaseExpression]:
    """Yield the test by which ``node`` does something beside the updates."""
    if isinstance(node, cst.If) and is_apart(facts.flow, node.body):
        yield node.test
    called = node.value if isinstance(node, cst.Expr) and isinstance(node.value, cst.Call) else None
    if called is not None and called.args and facts.script.name_of(called.func).endswith("tensorflow.cond"):
        done = [
            t for arg in called.args[1:] for t in facts.flow.definitions(arg.value) if isinstance(t, cst.FunctionDef)
        ]
        yield from [called.args[0].value] if all(is_apart(facts.flow, f.body) for f in done) else []


def _in_steps(facts: KerasFacts, counts: Tells) -> Iterator[tuple[cst.BaseExpression, cst.BaseExpression]]:
    """Yield what a train_step() compares a count of steps with."""
    for node in (n for body in bodies(facts) for n in walk(body)):
        sides = list(compared(node)) if isinstance(node, cst.Comparison) else []
        if isinstance(node, cst.Call) and COMPARES.search(facts.script.name_of(node.func)) and len(node.args) == 2:
            first, second = (arg.value for arg in node.args)
            sides = [(first, cst.LessThan, second), (second, cst.GreaterThan, first)]
        for left, how, right in sides:
            if issubclass(how, (*ORDER, cst.Equal)) and counts(bare(facts, left)) and not is_least(right):
                yield left, right


def _at_batches(facts: KerasFacts, counts: Tells) -> Iterator[_Pair]:
    """Yield the counts of batches, and the numbers at which callbacks change something else than the rate."""
    for node in (n for n in facts.script.of(cst.If) if of_batches(facts, n) and _changes(n)):
        for left, how, right in compared(node.test):
            if issubclass(how, (*ORDER, cst.Equal)) and counts(bare(facts, left)) and not is_least(right):
                yield left, right


def _changes(node: cst.If) -> bool:
    """Tell whether ``node`` gives a variable, or a part of the model, another value."""
    for n in walk(node.body):
        held = ""
        if calls_method(n, "assign"):
            held = dotted(n.func.value)
        elif isinstance(n, cst.Call) and dotted(n.func).rsplit(".", 1)[-1] == "set_value" and n.args:
            held = dotted(n.args[0].value)
        elif isinstance(n, cst.Assign):
            held = dotted(n.targets[0].target) if "model." in dotted(n.targets[0].target) else ""
        if held and not held.endswith(_RATES):
            return True
    return False
