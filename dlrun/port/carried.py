"""A hidden state that one batch hands on to the next."""

from __future__ import annotations

import libcst as cst

from dlrun.port.kinds import Kinds
from dlrun.port.positions import mentions
from dlrun.port.script import walk


def hands_on(kinds: Kinds, loop: cst.For | cst.While) -> cst.CSTNode | None:
    """Return the assignment that hands a model's state from batch to batch, if there is one."""
    for n in walk(loop.body):
        if isinstance(n, cst.Assign) and isinstance(n.value, cst.Call) and kinds.of(n.value.func) == "module":
            given = {m.value for a in n.value.args for m in walk(a.value) if isinstance(m, cst.Name)}
            for name in {m.value for m in walk(n.targets[0].target) if isinstance(m, cst.Name)} & given:
                bindings, _ = kinds.script.scopes[n].lookup(name)
                inside = [b for b in bindings if kinds.script.inside(b.node, loop)]
                own = [b for b in inside if b.value is not None and mentions(b.value, {name})]
                if len(inside) < len(bindings) and len(own) == len(inside):
                    return n
    return None
