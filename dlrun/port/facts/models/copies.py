"""What an object keeps of a model: copies of its weights (averages, a target, the best so far), or the model itself."""

from __future__ import annotations

import libcst as cst

from dlrun.port.facts.models.kinds_tensorflow import plain
from dlrun.port.facts.models.weights import VARIABLES, WEIGHTS
from dlrun.port.facts.torch import Gradients
from dlrun.port.program.script import Script, dotted, walk

_READS = (".read_value", ".value", ".numpy", "identity")  # of a variable of TensorFlow


def copied(script: Script, cls: cst.ClassDef) -> set[str]:
    """Return the attributes of ``self`` that hold copies of weights: deepcopy(model), or clones in a dict."""
    found = {
        name
        for (owner, name), bindings in script.attributes.items()
        if owner is cls
        for b in bindings
        if (made := b.written or b.value) is not None and _copying(script, made)
    }
    for node in walk(cls.body):
        target = node.targets[0].target if isinstance(node, cst.Assign) else None
        if isinstance(node, cst.Assign) and isinstance(target, cst.Subscript) and _copying(script, node.value):
            found.add(dotted(target.value).removeprefix("self."))
    return found


def is_list_of_copies(script: Script, made: cst.CSTNode | None) -> bool:
    """Tell whether ``made`` copies each of a model's weights: ``[p.detach().clone() for p in model.parameters()]``."""
    if not isinstance(made, (cst.ListComp, cst.DictComp)):
        return False
    entry = made.value if isinstance(made, cst.DictComp) else made.elt
    over = (n.attr.value for n in walk(made.for_in.iter) if isinstance(n, cst.Attribute))
    return _copying(script, entry) and any(name in (*WEIGHTS, *VARIABLES) for name in over)


def _copying(script: Script, value: cst.CSTNode) -> bool:
    return any(_copies(script, n) for n in walk(value) if isinstance(n, cst.Call))


def _copies(script: Script, call: cst.Call) -> bool:
    """Tell whether ``call`` copies a model or a weight: ``p.data.clone()``, ``v.detach().clone()``, deepcopy().

    Or makes, in TensorFlow, a variable of one: ``tf.Variable(v, trainable=False)``, ``tf.Variable(v.read_value())``.
    """
    name = plain(script.name_of(call.func))
    if name in ("copy.deepcopy", "keras.models.clone_model"):
        return True
    if name == "tensorflow.Variable" and call.args:
        first = call.args[0].value
        return bool(dotted(first)) or (isinstance(first, cst.Call) and dotted(first.func).endswith(_READS))
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
