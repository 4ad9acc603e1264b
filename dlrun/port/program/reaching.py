"""Which of the lines that bind a name a use of it gets its value from."""

from __future__ import annotations

import libcst as cst

from dlrun.port.program.script import Binding, Script


def reaching(script: Script, use: cst.Name) -> list[Binding] | None:
    """Return the bindings that ``use`` may see, where a loop or a line above it is sure to bind it anew; else None.

    ``loss`` of the training loop is another than that of the evaluation after it.
    """
    bindings = script.bindings_of(use)
    if len(bindings) < 2:
        return None
    order, inside = script.order, script.inside
    home, around = script.function_of(use), list(script.above(use))
    if any(
        script.function_of(b.node) is not home or (inside(use, b.node) and not _within(script, use, b))
        for b in bindings
    ) or any(isinstance(up, cst.Lambda) for up in around):
        return None
    iterations = [
        up
        for up in around
        if isinstance(up, (cst.For, cst.While)) and not (isinstance(up, cst.For) and inside(use, up.iter))
    ]
    above = [b for b in bindings if order[b.node] < order[use] and (b.node in iterations or not inside(use, b.node))]
    last = max((b for b in above if _is_sure(script, use, b)), key=lambda b: order[b.node], default=None)
    if last is None:
        return None
    loops = [up for up in iterations if not inside(last.node, up)]
    return [
        b
        for b in bindings
        if (b in above and order[b.node] >= order[last.node]) or any(inside(b.node, up) for up in loops)
    ]  # h = cell(x[t], h): from one iteration to the next


def _within(script: Script, use: cst.Name, binding: Binding) -> bool:
    """Tell whether ``use``, inside of ``binding``, is no target of it."""
    node = binding.node
    if isinstance(node, cst.For):
        return not script.inside(use, node.target)
    return isinstance(node, (cst.Assign, cst.AnnAssign)) and node.value is not None and script.inside(use, node.value)


def _is_sure(script: Script, use: cst.Name, binding: Binding) -> bool:
    """Tell whether ``use`` is never come to but by way of ``binding``, if no loop over data is empty."""
    node = binding.node
    if not isinstance(node, (cst.For, cst.Assign, cst.AnnAssign, cst.FunctionDef, cst.ClassDef)):
        return False
    block = node.body if isinstance(node, cst.For) else script.suite(node)
    while not script.inside(use, block):
        around = script.parents[block]
        if not isinstance(around, (cst.For, cst.With)) or block is not around.body:
            return False
        block = script.parents[around]
    return True
