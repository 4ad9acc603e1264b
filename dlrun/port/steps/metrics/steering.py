"""Part of step "metrics": decisions that outlast a batch, and by which training goes on: a curriculum's next level."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from dlrun.port.facts import Facts
from dlrun.port.facts.numbers.computed import computed
from dlrun.port.facts.taint import losses
from dlrun.port.facts.updates.rates import sets_groups_rate
from dlrun.port.program.script import walk
from dlrun.port.steps.counts.counters import each_update

_Sets = cst.Assign | cst.AugAssign


def trained_by(facts: Facts) -> frozenset[cst.CSTNode]:
    """Return what the batches, the losses and the rates of the training are made of."""
    values = losses(facts.script)
    values += [loop.iter for loop in facts.loops if isinstance(loop, cst.For)]
    values += [n.value for n in facts.script.of(cst.Assign) if sets_groups_rate(facts, n)]
    return frozenset(computed(facts.flow, values).nodes)


def lasts(facts: Facts, node: cst.If | cst.IfExp, followed: frozenset[cst.CSTNode]) -> bool:
    """Tell whether what ``node`` sets is ``followed`` by the training, and is kept for later batches.

    What is chosen for a batch by that batch alone may differ: a weight for those with large losses.
    """
    read = {n.attr.value for n in followed if isinstance(n, cst.Attribute)}  # levels.level, of any object
    return any(
        (n.value in followed or (isinstance(target := _target(n), cst.Attribute) and target.attr.value in read))
        and _kept(facts, n)
        for n in _set_by(facts, node)
    )


def _set_by(facts: Facts, node: cst.If | cst.IfExp) -> Iterator[_Sets]:
    """Yield the assignments that ``node`` decides on, also those to objects in methods that it calls."""
    if isinstance(node, cst.IfExp):
        up = facts.script.parents[node]
        yield from [up] if isinstance(up, _Sets) else []
        return
    for block in (node.body, node.orelse):
        for n in walk(block) if block is not None else ():
            if isinstance(n, _Sets):
                yield n
            elif isinstance(n, cst.Call):
                yield from (
                    m
                    for f in facts.flow.targets(n)
                    for m in walk(f.body)
                    if isinstance(m, _Sets) and isinstance(_target(m), cst.Attribute)
                )


def _kept(facts: Facts, node: _Sets) -> bool:
    """Tell whether later batches read what ``node`` sets: it is set between epochs, or was set before the loop."""
    target, script = _target(node), facts.script
    if not isinstance(target, cst.Name) or not each_update(facts, node):
        return True
    loop = next((up for up in script.above(node) if up in facts.loops), None)
    return any(
        loop is None or not script.inside(b.node, loop)
        for b in script.bindings_of(target)
        if script.function_of(b.node) is not script.function_of(node) or loop is not None
    )


def _target(node: _Sets) -> cst.BaseExpression:
    return node.target if isinstance(node, cst.AugAssign) else node.targets[0].target
