"""Loops over positions: whether the number that a loop counts picks samples out of arrays."""

from __future__ import annotations

import libcst as cst

from dlrun.port.flow import Flow
from dlrun.port.script import dotted, walk


def picks_samples(flow: Flow, loop: cst.For) -> bool:
    """Tell whether the loop's variable picks samples: it appears in a subscript or goes into a function's."""
    names = {n.value for n in walk(loop.target) if isinstance(n, cst.Name)}
    for n in walk(loop.body):
        if isinstance(n, cst.Assign) and mentions(n.value, names):
            numbers = not any(isinstance(m, (cst.Call, cst.SimpleString)) for m in walk(n.value))
            if numbers and isinstance(n.targets[0].target, cst.Name):
                names.add(n.targets[0].target.value)  # start = i * batch_size
    for n in walk(loop.body):
        if isinstance(n, cst.SubscriptElement) and mentions(n, names):
            box = flow.script.parents[n]
            if not isinstance(flow.script.parents[box], cst.AssignTarget):
                return True
        if isinstance(n, cst.Call) and _given(flow, n, names):
            return True
    return False


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
