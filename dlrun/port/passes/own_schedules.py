"""Part of step "steps": schedules that are functions or classes of the script, and follow the steps so far."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator

import libcst as cst

from dlrun.port.edits import Doubt, Edit
from dlrun.port.facts import Facts
from dlrun.port.facts.computed import Tells, of_function, reaching
from dlrun.port.facts.keras import KerasFacts
from dlrun.port.facts.rates import changes, is_groups_rate, is_zero, reads_rate
from dlrun.port.facts.tensorflow import TensorFlowFacts
from dlrun.port.insert import expression
from dlrun.port.passes import keras_rate, schedules
from dlrun.port.passes.bounds import AFTER, compared
from dlrun.port.passes.changing_rates import compound
from dlrun.port.passes.counters import is_one_more
from dlrun.port.passes.so_far import bare, steps_so_far
from dlrun.port.passes.step_rates import StepRates, ways
from dlrun.port.program.script import argument, dotted, walk

_STEPS = ("last_epoch", "_step_count")  # what a scheduler of PyTorch counts its steps in
_BASES = ("LRScheduler", "_LRScheduler")
_ONCE = ("__init__", "on_train_begin")  # where an attribute gets a value that it keeps
_BATCH = re.compile(r"^on_(train_)?batch_(begin|end)$")


def torch(facts: Facts, call: cst.Call, name: str, divided: Collection[cst.CSTNode]) -> Iterator[Edit | Doubt]:
    """Tell the function of a LambdaLR, or the own class that ``call`` makes, the serial steps of all ranks.

    Before:
        scheduler = torch.optim.lr_scheduler.LambdaLR(opt, lambda step: 1 / (1 + step))
        for x, y in DataLoader(data, shuffle=True):
            (model(x) - y).pow(2).mean().backward()
            opt.step()
            scheduler.step()

    After:
        scheduler = torch.optim.lr_scheduler.LambdaLR(opt, dl.steps(lambda step: 1 / (1 + step)))
        for x, y in DataLoader(data, shuffle=True):
            (model(x) - y).pow(2).mean().backward()
            opt.step()
            scheduler.step()
    """
    if name == "LambdaLR" and (value := argument(call, "lr_lambda", 1)) is not None:
        each = value.elements if isinstance(value, (cst.List, cst.Tuple)) else None
        for function in [e.value for e in each] if each is not None else [value]:
            yield from _function(facts, function, divided)
    cls = facts.flow.definition(call.func)
    if isinstance(cls, cst.ClassDef) and any(b.endswith(_BASES) for b in facts.flow.bases(cls)):
        yield from _class(facts, cls, divided)


def inner_calls(facts: Facts, call: cst.Call) -> list[cst.Call]:
    """Return the calls in which the class that ``call`` makes an object of makes a scheduler of it."""
    cls = facts.flow.definition(call.func)
    init = facts.flow.method(cls, "__init__") if isinstance(cls, cst.ClassDef) else None
    return [n for n in walk(init.body) if isinstance(n, cst.Call) and _is_init(facts, n)] if init is not None else []


def names(facts: Facts, call: cst.Call) -> list[str]:
    """Return the names of the classes that ``call`` may make a scheduler of, without their modules."""
    cls = facts.script.class_of(call)
    bases = facts.flow.bases(cls) if cls is not None and _is_init(facts, call) else facts.kinds.names(call.func)
    return [name.rsplit(".", 1)[-1] for name in bases] or [""]


def _is_init(facts: Facts, call: cst.Call) -> bool:
    """Tell whether ``call`` is ``super().__init__(optimizer, ...)``."""
    func = call.func
    called = isinstance(func, cst.Attribute) and func.attr.value == "__init__" and isinstance(func.value, cst.Call)
    return called and facts.script.name_of(func.value.func) == "builtins.super"  # type: ignore[attr-defined]


def _function(facts: Facts, value: cst.BaseExpression, divided: Collection[cst.CSTNode]) -> Iterator[Edit | Doubt]:
    """Yield what tells the function ``value`` the serial steps, or divides what it compares the rank's own with."""
    function = _defined(facts, value)
    if function is not None and (params := [p.name.value for p in function.params.params if p.name.value != "self"]):

        def counts(node: cst.CSTNode) -> bool:
            scope = facts.script.scopes[node].lookup(node.value)[1] if isinstance(node, cst.Name) else None
            return scope is not None and scope.node is function and node.value == params[0]  # type: ignore[attr-defined]

        rates = StepRates(facts, counts, divided)
        rate = rates.computed(*of_function(facts.flow, function))
        if rates.is_own(rate):
            yield from rates.measured(rate)
            return
    yield Edit(value, "it is told the steps of all ranks, n times the rank's own",
               lambda f: expression("torch/steps", {"count": f}, dl=facts.alias))  # fmt: skip


def _defined(facts: Facts, value: cst.BaseExpression) -> cst.FunctionDef | cst.Lambda | None:
    """Return the function of the program that ``value`` is, be it a method, or handed on."""
    if isinstance(value, cst.Attribute) and isinstance(value.value, cst.Name) and value.value.value == "self":
        owner = facts.script.class_of(value)
        return facts.flow.method(owner, value.attr.value) if owner is not None else None
    for node in (value, *(o.node for o in facts.flow.origins(value))):
        local = facts.flow.definition(node)
        if isinstance(node, cst.Lambda) or isinstance(local, cst.FunctionDef):
            return node if isinstance(node, cst.Lambda) else local  # type: ignore[return-value]
    return None


def _class(facts: Facts, cls: cst.ClassDef, divided: Collection[cst.CSTNode]) -> Iterator[Edit | Doubt]:
    rates = facts.flow.method(cls, "get_lr")
    if rates is None:
        return
    if any(is_groups_rate(facts, n) for n in walk(rates.body)):
        yield Doubt(rates, f"{cls.name.value} makes a rate of the one before at every batch, and n ranks take 1/n of "
                    "the batches", "high", f"compute it from {facts.alias}.serial_steps(self.last_epoch)")  # fmt: skip
        return

    def counts(node: cst.CSTNode) -> bool:
        own = isinstance(node, cst.Attribute) and isinstance(node.value, cst.Name) and node.value.value == "self"
        return own and node.attr.value in _STEPS  # type: ignore[attr-defined]

    yield from StepRates(facts, counts, divided).told(of_function(facts.flow, rates))


def tensorflow(facts: TensorFlowFacts, divided: Collection[cst.CSTNode]) -> Iterator[Edit | Doubt]:
    """Tell the rates that a TensorFlow script computes from its steps the serial ones.

    Before:
        step = tf.Variable(0)
        for x, y in data:
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(model(x) - y)
            opt.apply_gradients(zip(tape.gradient(loss, model.variables), model.variables))
            step.assign_add(1)
            opt.lr.assign(0.1 * tf.minimum(1.0, step / 100))

    After:
        step = tf.Variable(0)
        for x, y in data:
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(model(x) - y)
            opt.apply_gradients(zip(tape.gradient(loss, model.variables), model.variables))
            step.assign_add(1)
            opt.lr.assign(0.1 * tf.minimum(1.0, dl.serial_steps(step) / 100))
    """
    script = facts.script
    given = [value for call in facts.optimizers if (value := schedules.rate_of(facts, call)) is not None]
    given += [found.node for found in keras_rate.assigned(facts) if isinstance(found.node, cst.BaseExpression)]
    rates = StepRates(facts, steps_so_far(facts), divided, lambda node: schedules.follows_steps(facts, node))
    held = rates.computed(*given).nodes
    named_so = {script.code(node) for node in held if isinstance(node, (cst.Name, cst.Attribute))}
    given += [value for key, value in facts.fed if script.code(key) in named_so
              or any(o.node in held for o in facts.flow.origins(key) if isinstance(o.node, cst.Call))]  # fmt: skip
    yield from rates.told(way for value in given for way in ways(facts, value))


def keras(facts: KerasFacts) -> Iterator[Edit | Doubt]:
    """Tell the serial steps to callbacks that count batches, and set the rate by them.

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
    counts = batches(facts)
    yield from _stops(facts, counts)
    own = [n for n in script.of(cst.Attribute) if dotted(n) == "self.params"]  # a rank's steps
    given = [found.node for found in (*keras_rate.assigned(facts), *keras_rate.resets(facts))]
    rates = StepRates(facts, counts, own)
    yield from rates.told(way for n in given if isinstance(n, cst.BaseExpression) for way in ways(facts, n))
    for node in changes(facts):
        value = node.args[-1].value if isinstance(node, cst.Call) and node.args else getattr(node, "value", None)
        here = script.function_of(node)
        again = isinstance(node, cst.AugAssign) or (
            isinstance(value, cst.BaseExpression)
            and any(script.function_of(read) is here for read in reads_rate(facts, value)))  # fmt: skip
        if not again or not _of_batches(facts, node):
            continue
        factor = _factor(facts, node if isinstance(node, cst.AugAssign) else value)
        if factor is not None and _is_plain(facts, factor, node):
            yield compound(facts, factor)
        else:
            yield Doubt(node, "makes a rate of the one before at every batch, and n ranks take 1/n of the batches: it "
                        "changes n times more slowly", "high", f"{facts.alias}.compound(factor)")  # fmt: skip


def batches(facts: KerasFacts) -> Tells:
    """Return what tells whether a node is a callback's count of the training batches."""
    script = facts.script
    known = {
        key for key, bindings in script.attributes.items()
        if any(is_one_more(b.node) and _of_batches(facts, b.node)
               for b in bindings)}  # fmt: skip

    def counts(node: cst.CSTNode) -> bool:
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


def _is_plain(facts: KerasFacts, factor: cst.BaseExpression, node: cst.CSTNode) -> bool:
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
            scope = script.scopes[n].lookup(n.value)[1]
            if scope is not None and scope.node is here:
                return False
    return True


def _stops(facts: KerasFacts, counts: Tells) -> Iterator[Edit]:
    """Divide the counts of batches after which a callback ends the training: ``if self.seen >= 900:``."""
    for node in facts.script.of(cst.If):
        ends = any(isinstance(n, cst.AssignTarget) and dotted(n.target).endswith(".stop_training")
                   for n in walk(node.body))  # fmt: skip
        for left, how, right in compared(node.test) if ends else ():
            count = bare(facts, left)
            counted = counts(count) or dotted(count).endswith("optimizer.iterations")
            if counted and issubclass(how, (*AFTER, cst.Equal)) and not is_zero(right):
                yield Edit(right, "it counts batches, and each rank sees 1/n of them",
                           lambda n: expression("torch/steps", {"count": n}, dl=facts.alias))  # fmt: skip


def _of_batches(facts: KerasFacts, node: cst.CSTNode) -> bool:
    """Tell whether ``node`` stands in a method that Keras calls with every training batch."""
    function = facts.script.function_of(node)
    return isinstance(function, cst.FunctionDef) and bool(_BATCH.search(function.name.value))
