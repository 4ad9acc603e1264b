"""Gradients that the script takes apart and writes anew before the update: of several losses, without conflicts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from dlrun.port.program.script import calls_method, dotted, walk

if TYPE_CHECKING:
    from dlrun.port.facts.torch import Gradients


def taken_apart(gradients: Gradients, call: cst.Call, owner: cst.BaseExpression) -> list[cst.CSTNode]:
    """Return the statements that read gradients of one loss, where those of all are then written anew.

    What is made of them, such as a projection, is no mean of what each rank would make: gradients are averaged before
    it. That is for the update ``call`` of the optimizer ``owner``, where that is known there.
    """
    if not any(_writes(gradients, node) for node in gradients.script.of(cst.Assign)) and not _copies(gradients):
        return []
    found = []
    for backward in gradients.backwards:
        reader = _reader(gradients, backward)
        if reader is not None and _knows(gradients, reader, call, owner) and reader not in found:
            found.append(reader)
    return found


def _writes(gradients: Gradients, node: cst.Assign) -> bool:
    """Tell whether ``node`` gives a parameter a gradient: ``p.grad = total``."""
    target = node.targets[0].target
    none = isinstance(node.value, cst.Name) and node.value.value == "None"
    if not isinstance(target, cst.Attribute) or target.attr.value != "grad" or none:
        return False
    return not _is_optimizers(gradients, node) and not gradients.script.name_of(node.value).endswith("zeros_like")


def _copies(gradients: Gradients) -> bool:
    """Tell whether gradients are copied into those that parameters have: ``p.grad.copy_(total)``."""
    calls = (c for c in gradients.script.calls if calls_method(c, "copy_"))
    return any(dotted(c.func).endswith(".grad.copy_") and not _is_optimizers(gradients, c) for c in calls)


def _is_optimizers(gradients: Gradients, node: cst.CSTNode) -> bool:
    owner = gradients.script.class_of(node)
    return owner is not None and gradients.kinds.of_bases(gradients.flow.bases(owner)) == "optimizer"


def _reader(gradients: Gradients, backward: cst.Call) -> cst.CSTNode | None:
    """Return the first statement behind ``backward``, before another pass, that keeps gradients which it reads."""
    line = gradients.script.statement_of(backward)
    block = gradients.script.block(line)
    first = None
    for node in block[block.index(line) + 1 :]:
        if gradients.runs_backward(node) or gradients.runs_step(node):
            break
        if first is None and gradients.reads_grad(node):
            first = node
    return first


def _knows(gradients: Gradients, reader: cst.CSTNode, call: cst.Call, owner: cst.BaseExpression) -> bool:
    """Tell whether ``owner``, the optimizer that steps by ``call``, has the same name at ``reader``."""
    script = gradients.script
    head = next((n for n in walk(owner) if isinstance(n, cst.Name)), None)
    if head is None or not dotted(owner):
        return False
    if script.function_of(reader) is script.function_of(call):
        return True
    if head.value == "self":
        return script.class_of(reader) is script.class_of(call)
    return bool(script.bindings_of(head)) and script.scopes[reader].lookup(head.value)[0] == script.bindings_of(head)
