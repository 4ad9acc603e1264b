"""Samples that are kept beside earlier ones for later losses: a queue of negatives, of which each rank has its own."""

from __future__ import annotations

import libcst as cst

from dlrun.port.edits import Doubt
from dlrun.port.program.script import dotted, walk

_JOINS = (".cat", ".concat", ".concatenate", ".vstack", ".hstack", ".append")


def fills(node: cst.CSTNode) -> bool:
    """Tell whether ``node`` puts samples beside others that are kept: ``queue[at : at + n] = z``, ``seen.extend(z)``.

    Or ``queue = torch.cat([z, queue])``, ``queue.assign(tf.concat([z, queue[:-n]], 0))``.
    """
    match node:
        case cst.Assign(targets=[cst.AssignTarget(target=cst.Subscript(slice=elements))]):
            begins = [e.slice.lower for e in elements if isinstance(e.slice, cst.Slice)]
            return any(lower is not None and not isinstance(lower, cst.Integer) for lower in begins)
        case (
            cst.Assign(targets=[cst.AssignTarget(target=target)], value=value)
            | cst.Call(func=cst.Attribute(value=target, attr=cst.Name("assign")), args=[cst.Arg(value=value), *_])
        ):
            calls = [n for n in walk(value) if isinstance(n, cst.Call) and dotted(n.func).endswith(_JOINS)]
            return any(
                type(n) is type(target) and n.deep_equals(target) for c in calls for a in c.args for n in walk(a)
            )
        case cst.Call(func=cst.Attribute(attr=cst.Name("extend"))):
            return True
    return False


def of_its_own(node: cst.CSTNode, name: str) -> Doubt:
    """Return the doubt about what each rank ``fills`` with its own samples."""
    why = f"{name}: each rank keeps those of its own samples, as many and as old as in the serial run"
    return Doubt(node, f"{why}, and compares with other ones than the other ranks do", "low")
