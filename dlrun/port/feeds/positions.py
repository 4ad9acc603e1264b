"""Loops over positions: whether the number that a loop counts picks samples out of arrays."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from dlrun.port.program.flow import Flow
from dlrun.port.program.script import dotted, walk


def picks_samples(flow: Flow, loop: cst.For) -> bool:
    """Tell whether the loop's variable picks samples: it appears in a subscript or goes into a function's."""
    names = positions(flow, loop)
    for n in walk(loop.body):
        if isinstance(n, cst.SubscriptElement) and mentions(n, names):
            box = flow.script.parents[n]
            if not isinstance(flow.script.parents[box], cst.AssignTarget):
                return True
        if isinstance(n, cst.Call) and _given(flow, n, names):
            return True
    return False


def positions(flow: Flow, loop: cst.For) -> set[str]:
    """Return the names of the numbers that ``loop`` counts, and of those that are computed from them."""
    names = {n.value for n in walk(loop.target) if isinstance(n, cst.Name)}
    for n in walk(loop.body):
        if isinstance(n, cst.Assign) and mentions(n.value, names) and _is_number(flow, n.value):
            names.update(m.value for m in walk(n.targets[0].target) if isinstance(m, cst.Name))  # start = i * size
    return names


def uses_of_number(loop: cst.For) -> Iterator[cst.Name]:
    """Yield the uses, in the body of ``loop``, of what it runs over; not of the count that enumerate() gives."""
    target: cst.BaseExpression = loop.target
    if isinstance(target, cst.Tuple) and isinstance(loop.iter, cst.Call) and dotted(loop.iter.func) == "enumerate":
        target = target.elements[-1].value
    names = {n.value for n in walk(target) if isinstance(n, cst.Name)}
    yield from (n for n in walk(loop.body) if isinstance(n, cst.Name) and n.value in names)


def counts_too(flow: Flow, loop: cst.For) -> tuple[cst.Name, ...]:
    """Return the uses of the loop's variable that pick samples, where it has other uses, too: ``if step % 50 == 0``."""
    if not isinstance(loop.target, cst.Name):
        return ()
    name, names = loop.target.value, {loop.target.value}
    index: list[cst.Assign] = []  # assignments of positions: start = step * size % len(x)
    for n in walk(loop.body):
        if isinstance(n, cst.Assign) and mentions(n.value, names) and _may_be_position(n.value):
            target = n.targets[0].target
            if isinstance(target, cst.Name) and _only_picks(flow, loop, target.value):
                names.add(target.value)
                index.append(n)
    uses = [n for n in walk(loop.body) if isinstance(n, cst.Name) and n.value == name and _is_value(flow, n)]
    own = {m for a in index for m in walk(a.value)}
    picks = [n for n in uses if n in own or _picks(flow, loop, n)]
    return tuple(picks) if picks and len(picks) < len(uses) else ()


def _only_picks(flow: Flow, loop: cst.For, name: str) -> bool:
    uses = [n for n in walk(loop.body) if isinstance(n, cst.Name) and n.value == name and _is_value(flow, n)]
    read = [n for n in uses if not isinstance(flow.script.parents[n], cst.AssignTarget)]
    return any(_picks(flow, loop, n) for n in read)


def _is_value(flow: Flow, node: cst.Name) -> bool:
    up = flow.script.parents[node]
    return not ((isinstance(up, cst.Attribute) and up.attr is node) or (isinstance(up, cst.Arg) and up.keyword is node))


def _picks(flow: Flow, loop: cst.For, node: cst.Name) -> bool:
    """Tell whether ``node`` stands in a subscript that is read, or is handed to a function that picks with it."""
    for up in flow.script.above(node):
        if up is loop.body:
            return False
        if isinstance(up, cst.SubscriptElement):
            return not isinstance(flow.script.parents[flow.script.parents[up]], cst.AssignTarget)
        if isinstance(up, cst.Call):
            direct = any(a.value is node for a in up.args)
            return direct and _given(flow, up, {node.value})
    return False


def _is_number(flow: Flow, value: cst.CSTNode) -> bool:
    """Tell whether ``value`` is computed from numbers: no texts, and no calls but of len(), min() and the like."""
    calls = [n for n in walk(value) if isinstance(n, cst.Call)]
    plain = ("builtins.len", "builtins.min", "builtins.max", "builtins.int")
    texts = any(isinstance(n, (cst.SimpleString, cst.FormattedString)) for n in walk(value))
    return not texts and all(flow.script.name_of(c.func) in plain for c in calls)


def _may_be_position(value: cst.CSTNode) -> bool:
    """Tell whether ``value`` may be a number, by whatever function it is computed: ``np.min([(i + 1) * size, n])``."""
    return not any(isinstance(n, (cst.SimpleString, cst.FormattedString, cst.Subscript)) for n in walk(value))


def moving(loop: cst.For | cst.While, name: str) -> bool:
    """Tell whether ``loop`` takes slices of the array ``name`` at positions that it moves, and writes none there."""
    if any(isinstance(n, cst.AssignTarget) and isinstance(n.target, cst.Subscript) and dotted(n.target.value) == name
           for n in walk(loop.body)):  # fmt: skip
        return False
    moved = {m.value for n in walk(loop.body) if isinstance(n, (cst.AugAssign, cst.Assign))
             for t in (n.targets if isinstance(n, cst.Assign) else (n,)) for m in walk(t.target)
             if isinstance(m, cst.Name)}  # fmt: skip
    if isinstance(loop, cst.For):
        moved |= {m.value for m in walk(loop.target) if isinstance(m, cst.Name)}
    return any(
        isinstance(n, cst.Subscript) and dotted(n.value) == name and any(mentions(e, moved) for e in n.slice)
        for n in walk(loop.body)
    )


def _given(flow: Flow, call: cst.Call, names: set[str]) -> bool:
    """Tell whether ``call`` gets one of ``names`` and picks samples with it, or is foreign and looks as if it did."""
    for target in flow.targets(call):
        for p in target.params.params:
            value = flow.argument(call, target, p.name.value)
            if isinstance(value, cst.Name) and value.value in names:
                inner = {p.name.value}
                if any(isinstance(m, cst.SubscriptElement) and mentions(m, inner) for m in walk(target.body)):
                    return True
    gets = dotted(call.func).rsplit(".", 1)[-1].lower()
    foreign = not flow.targets(call) and ("batch" in gets or gets.startswith("get"))
    return foreign and any(isinstance(a.value, cst.Name) and a.value.value in names for a in call.args)


def mentions(node: cst.CSTNode, names: set[str]) -> bool:
    """Tell whether one of ``names`` appears in ``node``."""
    return any(isinstance(n, cst.Name) and n.value in names for n in walk(node))


def takes_part(flow: Flow, index: cst.BaseSlice) -> bool:
    """Tell whether an index along axis 0 leaves entries out.

    The name or number of one array of several does not, nor does what a loop counts: x[i] for all i.
    """
    if isinstance(index, cst.Slice):
        return any(bound is not None for bound in (index.lower, index.upper, index.step))
    value = index.value if isinstance(index, cst.Index) else None
    if isinstance(value, cst.Name):
        bound = flow.script.scopes[value].lookup(value.value)[0]
        return bool(bound) and not any(isinstance(b.node, (cst.For, cst.CompFor)) for b in bound)
    inverted = isinstance(value, cst.UnaryOperation) and isinstance(value.operator, cst.BitInvert)  # x[~held_out]
    return inverted or isinstance(value, (cst.Attribute, cst.Comparison))
