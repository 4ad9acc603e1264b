"""Part of step "steps": schedules that are functions or classes of the script, and follow the steps so far."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

import libcst as cst

from dlrun.port.edits import Doubt, Edit
from dlrun.port.facts import Facts
from dlrun.port.facts.numbers.computed import computed, of_function
from dlrun.port.facts.tensorflow import TensorFlowFacts
from dlrun.port.facts.updates.rates import is_groups_rate
from dlrun.port.insert import expression
from dlrun.port.program.script import argument, walk
from dlrun.port.steps.counts import decays
from dlrun.port.steps.counts.counters import attributes, counters, tells
from dlrun.port.steps.counts.milestones import numbers
from dlrun.port.steps.counts.step_rates import StepRates, ways
from dlrun.port.steps.counts.update_counts import steps_so_far
from dlrun.port.steps.rate import keras_rate, schedules

_STEPS = ("last_epoch", "_step_count")  # what a scheduler of PyTorch counts its steps in
_BASES = ("LRScheduler", "_LRScheduler")


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
    calls = (n for n in walk(init.body) if isinstance(n, cst.Call)) if init is not None else ()
    return [call for call in calls if facts.flow.begins_base(call)]


def names(facts: Facts, call: cst.Call) -> list[str]:
    """Return the names of the classes that ``call`` may make a scheduler of, without their modules."""
    cls = facts.script.class_of(call)
    bases = facts.flow.bases(cls) if cls is not None and facts.flow.begins_base(call) else facts.kinds.names(call.func)
    return [name.rsplit(".", 1)[-1] for name in bases] or [""]


def _function(facts: Facts, value: cst.BaseExpression, divided: Collection[cst.CSTNode]) -> Iterator[Edit | Doubt]:
    """Yield what tells the function ``value`` the serial steps, or divides what it compares the local ones with."""
    function = _defined(facts, value)
    if function is not None and (params := [p.name.value for p in function.params.params if p.name.value != "self"]):

        def counts(node: cst.CSTNode) -> bool:
            scope = facts.script.scope_of(node) if isinstance(node, cst.Name) else None
            return scope is not None and scope.node is function and node.value == params[0]  # type: ignore[attr-defined]

        rates = StepRates(facts, counts, divided)
        rate = rates.computed(*of_function(facts.flow, function))
        if rates.is_own(rate):
            yield from rates.measured(rate)
            return
    yield Edit(
        value,
        "it is told the steps of all ranks, n times the local ones",
        lambda f: expression("torch/steps", {"count": f}, dl=facts.alias),
    )


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
        yield Doubt(
            rates,
            f"{cls.name.value} makes a rate of the one before at every batch, and n ranks take 1/n of the batches",
            "high",
            f"compute it from {facts.alias}.serial_steps(self.last_epoch)",
        )
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
    so_far, named = steps_so_far(facts), tells(facts, numbers(facts, {*counters(facts), *attributes(facts)}))
    rates = StepRates(
        facts, lambda n: so_far(n) or named(n), divided, lambda node: schedules.follows_steps(facts, node)
    )
    given = [rate for call in facts.optimizers for rate in schedules.rates_of(facts, call)]
    given += [found.node for found in keras_rate.assigned(facts) if isinstance(found.node, cst.BaseExpression)]
    yield from rates.told(way for value in (*given, *fed(facts, given)) for way in ways(facts, value))


def fed(facts: TensorFlowFacts, given: Iterable[cst.BaseExpression] = ()) -> Iterator[cst.BaseExpression]:
    """Yield what sessions feed as the rates of optimizers, or as what the rates ``given`` are made of."""
    made = [rate for call in facts.optimizers for rate in schedules.rates_of(facts, call)]
    held = computed(facts.flow, [*made, *given]).nodes
    named = {facts.script.code(node) for node in held if isinstance(node, (cst.Name, cst.Attribute))}
    for key, value in facts.fed:
        calls = (o.node for o in facts.flow.origins(key) if isinstance(o.node, cst.Call))
        if facts.script.code(key) in named or any(call in held for call in calls):
            yield value


def once(facts: TensorFlowFacts, counts: Iterable[Edit]) -> list[Edit]:
    """Return those of ``counts``, of steps in schedules, whose schedules are not told the serial steps already.

    As one in a function is that also compares the step it is given: ``rate(dl.serial_steps(step))``.
    """
    counts = list(counts)
    told = {found.node for found in tensorflow(facts, {edit.node for edit in counts})}
    steps = [(edit, decays.step_of(facts, facts.script.parents[facts.script.parents[edit.node]])) for edit in counts]
    return [edit for edit, step in steps if step is None or told.isdisjoint(computed(facts.flow, [step]).nodes)]
