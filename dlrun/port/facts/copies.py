"""What an object keeps of a model: copies of its weights (averages, a target, the best so far), or the model itself."""

from __future__ import annotations

import libcst as cst

from dlrun.port.facts.torch import Gradients
from dlrun.port.program.script import Script, dotted, walk


def copied(script: Script, cls: cst.ClassDef) -> set[str]:
    """Return the attributes of ``self`` that hold copies of weights: deepcopy(model), or clones in a dict."""
    found = {name for (owner, name), bindings in script.attributes.items() if owner is cls
             for b in bindings if b.value is not None and _copying(script, b.value)}  # fmt: skip
    for node in walk(cls.body):
        target = node.targets[0].target if isinstance(node, cst.Assign) else None
        if isinstance(node, cst.Assign) and isinstance(target, cst.Subscript) and _copying(script, node.value):
            found.add(dotted(target.value).removeprefix("self."))
    return found


def _copying(script: Script, value: cst.CSTNode) -> bool:
    return any(_copies(script, n) for n in walk(value) if isinstance(n, cst.Call))


def _copies(script: Script, call: cst.Call) -> bool:
    """Tell whether ``call`` copies a model or a weight: ``p.data.clone()``, ``v.detach().clone()``, deepcopy()."""
    if script.name_of(call.func) == "copy.deepcopy":
        return True
    if not isinstance(call.func, cst.Attribute) or call.func.attr.value != "clone":
        return False
    owner = call.func.value
    name = dotted(owner.func) if isinstance(owner, cst.Call) else dotted(owner)
    return name.endswith((".data", ".detach")) or name.startswith(("p.", "param")) or name in ("p", "v")


def held(gradients: Gradients, candidates: list[tuple[str, cst.CSTNode]]) -> list[tuple[str, cst.CSTNode]]:
    """Return the keyword arguments of those of ``candidates`` that have the optimizers which are stepped.

    ``checkpoint.net`` and ``checkpoint.optimizer`` after ``checkpoint = tf.train.Checkpoint(net=net, optimizer=...)``.
    """
    flow, found = gradients.flow, dict[cst.CSTNode, str]()
    owners = [o.value for _, o in gradients.step_calls if isinstance(o, cst.Attribute)]
    holders = {origin for owner in owners for origin in flow.origins(owner)}
    for name, use in candidates:
        for word, value in () if holders.isdisjoint(flow.origins(use)) else flow.kept(use):
            found.setdefault(value, f"{name}.{word}")
    return [(name, value) for value, name in found.items()]
