"""Copies of the weights that an object keeps beside the model: averages of them, a target, the best so far."""

from __future__ import annotations

import libcst as cst

from dlrun.port.script import Script, dotted, walk


def holds_copy(script: Script, cls: cst.ClassDef, attribute: str) -> bool:
    """Tell whether ``self.attribute`` is filled with copies of weights: deepcopy(model), or clones in a dict."""
    values = [b.value for b in script.attributes.get((cls, attribute), []) if b.value is not None]
    for node in walk(cls.body):
        target = node.targets[0].target if isinstance(node, cst.Assign) else None
        if isinstance(node, cst.Assign) and isinstance(target, cst.Subscript):
            values += [node.value] if dotted(target.value) == f"self.{attribute}" else []
    return any(_copies(script, n) for v in values for n in walk(v) if isinstance(n, cst.Call))


def _copies(script: Script, call: cst.Call) -> bool:
    """Tell whether ``call`` copies a model or a weight: ``p.data.clone()``, ``v.detach().clone()``, deepcopy()."""
    if script.name_of(call.func) == "copy.deepcopy":
        return True
    if not isinstance(call.func, cst.Attribute) or call.func.attr.value != "clone":
        return False
    owner = call.func.value
    name = dotted(owner.func) if isinstance(owner, cst.Call) else dotted(owner)
    return name.endswith((".data", ".detach")) or name.startswith(("p.", "param")) or name in ("p", "v")
