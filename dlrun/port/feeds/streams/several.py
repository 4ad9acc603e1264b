"""Several iterators, of which a loop draws from another one in each iteration."""

from __future__ import annotations

import libcst as cst

from dlrun.port.program.flow import Flow
from dlrun.port.program.script import dotted


def is_of_iterator(flow: Flow, picked: cst.CSTNode) -> bool:
    """Tell whether next() draws from ``picked``, or this is one of several names: ``its[names[step % 3]]``."""
    if any(
        isinstance(up, cst.Call) and flow.script.name_of(up.func) == "builtins.next" for up in flow.script.above(picked)
    ):
        return True
    box = picked.value if isinstance(picked, cst.Subscript) else picked
    made = [o.node for o in flow.origins(box)]
    texts = [
        isinstance(n, (cst.List, cst.Tuple))
        and bool(n.elements)
        and all(isinstance(e.value, cst.SimpleString) for e in n.elements)
        for n in made
    ]
    listed = any(isinstance(n, cst.Call) and dotted(n.func) in ("list", "sorted", "tuple") for n in flow.through(box))
    return all(texts) or (listed and all(isinstance(n, (cst.Dict, cst.DictComp)) for n in made))
