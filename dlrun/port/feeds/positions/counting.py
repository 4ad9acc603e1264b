"""Loops over positions that also count: which uses of the number pick samples, and which tell the step."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from dlrun.port.facts.numbers.computed import reaching
from dlrun.port.feeds.positions.positions import gives, keeps, may_be_position, mentions, names_of
from dlrun.port.program.flow import Flow
from dlrun.port.program.script import statements, walk


def counts_too(flow: Flow, loop: cst.For) -> tuple[cst.Name, ...]:
    """Return the uses of the loop's variable that pick samples, where it has other uses, too: ``if step % 50 == 0``.

    Or behind the loop: ``print(step + 1)``.
    """
    if not isinstance(loop.target, cst.Name):
        return ()
    name, names = loop.target.value, {loop.target.value}
    steps: list[tuple[cst.Assign, set[str]]] = []  # assignments of positions: start = step * size % len(x)
    for n in walk(loop.body):
        if isinstance(n, cst.Assign) and mentions(n.value, names) and may_be_position(n.value):
            targets = names_of(n.targets[0].target)
            names |= targets
            steps.append((n, targets))
    own: set[cst.CSTNode] = set()
    for assign, targets in reversed(steps):
        if any(n in own or _picks(flow, loop, n) for t in targets for n in _read(flow, loop, t)):
            own.update(walk(assign.value))
    uses = _read(flow, loop, name)
    picks = [n for n in uses if n in own or _picks(flow, loop, n)]
    picks += [n for n in uses if n not in picks and _chooses(flow, loop, n, picks)]
    return tuple(picks) if picks and (len(picks) < len(uses) or _is_read_behind(flow, loop, name)) else ()


def _is_read_behind(flow: Flow, loop: cst.For, name: str) -> bool:
    """Tell whether the last number that ``loop`` has counted is read behind it."""
    function, order = flow.script.function_of(loop), flow.script.order
    names = [n for n in walk(function) if isinstance(n, cst.Name) and n.value == name and order[n] > order[loop]]
    for n in (n for n in names if _is_value(flow, n) and not flow.script.inside(n, loop)):
        from_loop = any(b.node is loop for b in reaching(flow.script, n, flow.script.bindings_of(n)))
        if from_loop and not any(isinstance(up, cst.AssignTarget) for up in _targets_above(flow, n)):
            return True
    return False


def _read(flow: Flow, loop: cst.For, name: str) -> list[cst.Name]:
    """Return the places in ``loop`` that read the variable ``name``, and not what a loop in it counts by that name."""
    uses = [n for n in walk(loop.body) if isinstance(n, cst.Name) and n.value == name and _is_value(flow, n)]
    uses = [n for n in uses if not _is_counted_inside(flow, loop, n)]
    return [n for n in uses if not any(isinstance(up, cst.AssignTarget) for up in _targets_above(flow, n))]


def _is_counted_inside(flow: Flow, loop: cst.For, node: cst.Name) -> bool:
    """Tell whether ``node`` is what another loop, or a comprehension, in ``loop`` runs over: ``for i in range(8)``."""
    made = reaching(flow.script, node, flow.script.bindings_of(node))
    inner = (b.node for b in made if isinstance(b.node, (cst.For, cst.CompFor)))
    return bool(made) and all(b.node is not loop for b in made) and any(flow.script.inside(n, loop.body) for n in inner)


def _targets_above(flow: Flow, node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    """Yield what is around ``node`` up to a subscript, in which it would be read."""
    for up in flow.script.above(node):
        if isinstance(up, (cst.Subscript, cst.BaseSmallStatement, cst.BaseCompoundStatement)):
            return
        yield up


def _is_value(flow: Flow, node: cst.Name) -> bool:
    up = flow.script.parents[node]
    return not ((isinstance(up, cst.Attribute) and up.attr is node) or (isinstance(up, cst.Arg) and up.keyword is node))


def _picks(flow: Flow, loop: cst.For, node: cst.Name) -> bool:
    """Tell whether ``node`` stands in a subscript that is read, or in a slice, or goes to a function that picks."""
    for up in flow.script.above(node):
        if up is loop.body:
            return False
        if isinstance(up, cst.SubscriptElement):
            return not keeps(flow, up, loop.body)
        if isinstance(up, cst.Call):
            direct = any(a.value is node for a in up.args)
            return direct and gives(flow, up, {node.value})
    return False


def _chooses(flow: Flow, loop: cst.For, node: cst.Name, picks: list[cst.Name]) -> bool:
    """Tell whether ``node`` stands in a test that chooses between slices, and nothing else: ``if i + n > len(x):``.

    Or leaves out those beyond the end.
    """
    for up in flow.script.above(node):
        if up is loop.body:
            return False
        if isinstance(up, cst.If):
            parts = [up.body, *([up.orelse] if up.orelse is not None else [])]
            lines = [line for part in parts for line in statements(part)]
            far = any(
                isinstance(n, cst.BinaryOperation) and isinstance(n.operator, cst.Add) and flow.script.inside(node, n)
                for n in walk(up.test)
            )
            if far and up.orelse is None and all(isinstance(line, (cst.Continue, cst.Break)) for line in lines):
                return flow.script.inside(node, up.test)
            plain = all(isinstance(line, (cst.Assign, cst.AnnAssign)) for line in lines)
            return (
                plain
                and flow.script.inside(node, up.test)
                and any(flow.script.inside(n, part) for n in picks for part in parts)
            )
    return False
