"""Sessions with the global batch kept: where what a run made of this rank's samples meets all of the batch."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from dlrun.port.edits import Doubt
from dlrun.port.facts.numbers.fetches import fetched, parts
from dlrun.port.facts.numbers.scalars import Scalars
from dlrun.port.facts.tensorflow import TensorFlowFacts
from dlrun.port.facts.updates.session import SessionGradients
from dlrun.port.program.script import dotted, names_in, walk


def beside(facts: TensorFlowFacts) -> Iterator[Doubt]:
    """Yield a doubt where a run's predictions for a part of a batch stand beside all of its labels.

    A run is fed with this rank's part; elsewhere the batch stays whole: ``np.sum(predicted == labels)``.
    """
    gradients = facts.gradients
    if facts.options.batch != "global" or facts.full_batch or not isinstance(gradients, SessionGradients):
        return
    cut = {feed.node for feed in facts.feeds if feed.how == "array"}
    for run, _ in gradients.step_calls:
        loop = next((up for up in facts.script.above(run) if isinstance(up, (cst.For, cst.While))), None)
        values = [value for value in gradients.fed(run) if value in cut]
        if loop is None or not values:
            continue
        number = Scalars(facts.kinds, (*facts.runs, run))
        mine = _grown(loop, _made(facts, run, number), number)
        whole = _grown(loop, {_base(value) for value in values} - {""}, number)
        runs = {*facts.runs, *(step for step, _ in gradients.step_calls)}
        if (node := next(_met(loop, runs, mine - whole, whole - mine, number), None)) is not None:
            yield Doubt(
                node,
                "a run made one side of this of this rank's samples, and the other one is of the whole batch",
                "high",
                f"cut the batch before it is fed: x, y = {facts.alias}.shard((x, y), batch='global')",
                name="local-number",
            )


def _base(value: cst.BaseExpression) -> str:
    """Return the name of the array that ``value`` is, or is taken from."""
    while isinstance(value, cst.Subscript):
        value = value.value
    return dotted(value)


def _made(facts: TensorFlowFacts, run: cst.Call, number: Scalars) -> set[str]:
    """Return the names that hold what ``run`` fetched, but for single numbers."""
    line = facts.script.statement_of(run)
    target = line.targets[0].target if isinstance(line, cst.Assign) and line.value is run else None
    wanted = parts(fetched(run))
    if isinstance(target, cst.Tuple) and len(target.elements) == len(wanted):
        pairs = zip(target.elements, wanted, strict=True)
        return {dotted(name.value) for name, value in pairs if not number(value)} - {"", "_"}
    return {dotted(target)} - {""} if isinstance(target, cst.Name) and not all(map(number, wanted)) else set()


def _grown(loop: cst.For | cst.While, names: set[str], number: Scalars) -> set[str]:
    """Return ``names`` with those of what ``loop`` computes of them, but for single numbers."""
    found = set(names)
    for n in walk(loop.body):
        if isinstance(n, cst.Assign) and _mentions(n.value, found, number) and not number(n.value):
            found |= {name for t in n.targets if isinstance(t.target, cst.Name) for name in names_in(t.target)}
    return found


def _mentions(node: cst.CSTNode, names: set[str], number: Scalars) -> bool:
    """Tell whether ``node`` holds an entry for each sample of what ``names`` hold."""
    return any(dotted(n) in names for n in walk(node)) and not number(node)


def _met(
    loop: cst.For | cst.While, runs: set[cst.Call], mine: set[str], whole: set[str], number: Scalars
) -> Iterator[cst.CSTNode]:
    """Yield what puts arrays of both kinds side by side in ``loop``; not what its ``runs`` are fed with."""
    for n in walk(loop.body):
        sides: list[cst.CSTNode] = []
        if isinstance(n, cst.BinaryOperation):
            sides = [n.left, n.right]
        elif isinstance(n, cst.Comparison):
            sides = [n.left, *(c.comparator for c in n.comparisons)]
        elif isinstance(n, cst.Subscript):
            sides = [n.value, *n.slice]
        elif isinstance(n, cst.Call) and n not in runs and dotted(n.func) != "print":
            sides = [arg.value for arg in n.args]
        holds = [(_mentions(side, mine, number), _mentions(side, whole, number)) for side in sides]
        if (True, False) in holds and (False, True) in holds:
            yield n
