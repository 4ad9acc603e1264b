"""Part of step "metrics": parts of a loss that are weighed by the number of batches: a Bayesian net's prior."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import libcst as cst

from dlrun.port.edits import Doubt, Edit
from dlrun.port.facts import Facts
from dlrun.port.facts.numbers.computed import Tells, computed, given, leaves
from dlrun.port.insert import expression
from dlrun.port.program.script import calls_method, children, walk
from dlrun.port.steps.counts.counters import attributes, counters, each_update, held, innermost, takes_batches, tells
from dlrun.port.steps.counts.counts import is_length_of_share

_PARTS = (cst.Multiply, cst.Divide)
_ADDS = (cst.AddAssign, cst.SubtractAssign)
_SCALES = (cst.MultiplyAssign, cst.DivideAssign)
_OBJECTS = ("loader", "module", "dataset", "optimizer")
_ROUNDS = ("builtins.int", "builtins.float", "builtins.max")
_MOST = 400  # expressions that are looked at


def torch(facts: Facts) -> Iterator[Edit | Doubt]:
    """Yield the number of all ranks' batches for that of local ones, where it weighs a part of the loss.

    What counts once an epoch in the serial training would count n times. Shares of an epoch, as ``step / len(loader)``,
    stay.

    Before:
        model, loader = torch.nn.Linear(2, 1), DataLoader(data, shuffle=True)
        for x, y in loader:
            loss = (model(x) - y).pow(2).mean() + prior(model) / len(loader)
            loss.backward()
            opt.step()

    After:
        model, loader = torch.nn.Linear(2, 1), DataLoader(data, shuffle=True)
        for x, y in loader:
            loss = (model(x) - y).pow(2).mean() + prior(model) / dl.serial_steps(len(loader))
            loss.backward()
            opt.step()
    """
    adds = _accumulates(facts)
    if facts.keeps_steps or not facts.feeds or adds == "an epoch":
        return
    steps = tells(facts, {*counters(facts), *attributes(facts), *_of_ranges(facts)})
    done: set[cst.CSTNode] = set()
    for weight in _weights(facts, adds != "no"):
        for way in _ways(facts, weight):
            found = computed(facts.flow, [way], lambda n: steps(n) or _is_count(facts, n), _numbers_beside(facts, way))
            if any(map(steps, found.reads)):
                if _falls(facts, found.nodes) and way not in done:
                    yield Doubt(
                        way,
                        "these weights add up to 1 over a rank's batches, which are 1/n of an epoch: "
                        "what they weigh counts n times",
                        "high",
                        f"divide by {facts.alias}.get_nranks()",
                    )
                done.add(way)
                continue
            for count in (n for n in found.reads if n not in done):
                done.add(count)
                yield Edit(
                    count,
                    "all batches weigh a part of the loss, and a rank has 1/n of them",
                    lambda n: expression("torch/serial_steps", {"step": n}, dl=facts.alias),
                )


def _of_ranges(facts: Facts) -> Iterator[tuple[cst.CSTNode, str]]:
    """Yield what the numbers of steps are called: ``for i in range(batches): x, y = next(it)``."""
    for loop in facts.loops:
        if isinstance(loop, cst.For) and isinstance(loop.target, cst.Name) and takes_batches(facts, loop):
            over = loop.iter
            if isinstance(over, cst.Call) and facts.script.name_of(over.func) == "builtins.range":
                yield from held(facts, loop.target)


def _numbers_beside(facts: Facts, way: cst.CSTNode) -> Tells:
    """Return what tells the local numbers that ``way`` is decided by: ``if total / len(loader) < 0.6``."""
    return lambda n: n is not way and facts.local(n)


def _accumulates(facts: Facts) -> Literal["no", "some batches", "an epoch"]:
    """Tell whether an update takes the gradients of several batches, or of all: their number is then local."""
    tests = [
        up.test
        for step in facts.steps
        for up in facts.script.above(step.node)
        if isinstance(up, cst.If) and innermost(facts, up) is innermost(facts, step.node)
    ]
    parts = [n for test in tests for n in walk(test)]
    every = [n.right for n in parts if isinstance(n, cst.BinaryOperation) and isinstance(n.operator, cst.Modulo)]
    if every and not any(_is_count(facts, number) for number in every):
        return "some batches"
    return "an epoch" if every or any(isinstance(n, cst.Equal) for n in parts) else "no"


def _weights(facts: Facts, terms: bool) -> Iterator[cst.BaseExpression]:
    """Yield what the parts of the losses are multiplied with or divided by, or handed to a function out of sight.

    Of ``terms`` only, that is, not of the loss as a whole, which may be divided by the number of batches of an update.
    """
    todo: list[tuple[cst.CSTNode, bool]] = [
        (c.func.value, not terms) for c in facts.script.calls if calls_method(c, "backward") and each_update(facts, c)
    ]
    seen: set[cst.CSTNode] = set()
    while todo and len(seen) < _MOST:
        node, part = todo.pop()
        if node in seen:
            continue
        seen.add(node)
        parts: list[cst.CSTNode] = list(children(node))
        if isinstance(node, (cst.Name, cst.Attribute)):
            bindings = facts.script.bindings_of(node)
            yield from (
                b.node.value
                for b in bindings
                if part and isinstance(b.node, cst.AugAssign) and isinstance(b.node.operator, _SCALES)
            )
            added = (b.node.operator for b in bindings if isinstance(b.node, cst.AugAssign))
            part = part or any(isinstance(operator, _ADDS) for operator in added)
            parts = [v for b in bindings if not isinstance(b.node, cst.For) for v in given(facts.flow, b)]
        elif isinstance(node, cst.Subscript):
            parts = [node.value]  # not by what number samples are picked
        elif isinstance(node, cst.Call) and (targets := facts.flow.targets(node)):
            parts = [v for target in targets for v in facts.flow.returns(target)]
        elif isinstance(node, cst.Call):
            inner = [node.func.value] if isinstance(node.func, cst.Attribute) else []
            parts = [*inner, *(a.value for a in node.args)] if facts.kinds.of_call(node) not in _OBJECTS else []
        elif isinstance(node, cst.BinaryOperation) and isinstance(node.operator, _PARTS):
            sides = (node.left, node.right)
            parts = [side for side in sides if facts.local(side)]
            yield from (side for side in sides if side not in parts and part)
        elif isinstance(node, cst.BinaryOperation):
            part = part or isinstance(node.operator, (cst.Add, cst.Subtract))
        todo.extend((p, part) for p in reversed(parts))


def _ways(facts: Facts, weight: cst.BaseExpression, depth: int = 4) -> Iterator[cst.BaseExpression]:
    """Yield the expressions one of which ``weight`` is, through names and functions."""
    for leaf in leaves(facts.flow, weight):
        targets = facts.flow.targets(leaf) if isinstance(leaf, cst.Call) and depth else []
        if _is_count(facts, weight) or not targets:
            yield weight if _is_count(facts, weight) else leaf
        for target in targets:
            for value in facts.flow.returns(target):
                yield from _ways(facts, value, depth - 1)


def _is_count(facts: Facts, node: cst.CSTNode) -> bool:
    """Tell whether ``node`` is, or is a name of, a number of local batches."""
    if isinstance(node, (cst.Name, cst.Attribute)):
        made = leaves(facts.flow, node)
        return all(leaf is not node and _grows(facts, leaf) for leaf in made)
    if not is_length_of_share(facts, node) or not isinstance(node, cst.Call):
        return False
    counted = node.args[0].value
    ways = facts.flow.through(counted)
    return facts.kinds.of(counted) == "loader" or any(feed.node in ways for feed in facts.feeds)


def _grows(facts: Facts, node: cst.BaseExpression) -> bool:
    """Tell whether ``node`` is n times as large where a rank's batches are: ``len(loader) // 4``."""
    match node:
        case cst.BinaryOperation(operator=cst.Multiply()):
            return _grows(facts, node.left) or _grows(facts, node.right)
        case cst.BinaryOperation(operator=cst.Divide() | cst.FloorDivide()):
            return _grows(facts, node.left)
        case cst.Call() if facts.script.name_of(node.func) in _ROUNDS:
            return any(_grows(facts, arg.value) for arg in node.args)
    return _is_count(facts, node)


def _falls(facts: Facts, nodes: tuple[cst.CSTNode, ...]) -> bool:
    """Tell whether among ``nodes`` a power has a number of local batches in its exponent."""
    powers = (n for n in nodes if isinstance(n, cst.BinaryOperation) and isinstance(n.operator, cst.Power))
    return any(_is_count(facts, part) for power in powers for part in walk(power.right))
