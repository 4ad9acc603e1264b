"""Weights and gradients of a model, and what changes them, or how they are trained."""

from __future__ import annotations

import libcst as cst

from dlrun.port.facts import ScriptFacts
from dlrun.port.facts.updates.rates import is_group, text_of
from dlrun.port.program.script import calls_method, dotted, walk

CHANGES = ("add_", "sub_", "mul_", "div_", "copy_", "addcmul_", "lerp_", "masked_fill_", "index_copy_", "index_fill_")
ASSIGNS = ("assign", "assign_add", "assign_sub")  # of a variable of TensorFlow
LOADS = ("load_state_dict", "set_weights", "load_weights")
RESETS = ("reset_parameters", "_reset_parameters", "init_weights", "reset_weights")
_KEEPS = ("state_dict", "get_weights")  # weights of this moment
_FREEZES = ("requires_grad_",)
_STEERS = ("lr", "learning_rate", "stop_training", "param_groups", "requires_grad", "trainable")
_VARIABLES = ("trainable_variables", "trainable_weights", "variables", "weights")
_OF_WEIGHTS = ("parameters", "named_parameters")


def is_weight(facts: ScriptFacts, node: cst.CSTNode) -> bool:
    """Tell whether ``node`` is a weight, or the gradient of one: ``p`` of a model's, ``layer.weight.data[k]``."""
    while isinstance(node, (cst.Subscript, cst.Attribute)):
        if isinstance(node, cst.Attribute) and node.attr.value in ("weight", "bias", "grad"):
            return True
        node = node.value
    loops = [b.node for b in facts.script.bindings_of(node) if isinstance(b.node, cst.For)]
    return any(
        (calls_method(n, *_OF_WEIGHTS))
        or (isinstance(n, cst.SimpleString) and text_of(n) == "params")  # for p in group["params"]
        or (isinstance(n, cst.Attribute) and n.attr.value in _VARIABLES)
        for loop in loops
        for n in walk(loop.iter)
    )


def is_held(facts: ScriptFacts, target: cst.CSTNode) -> bool:
    """Tell whether ``target`` is a weight, the gradient of one, or what a group of an optimizer holds."""
    group = isinstance(target, cst.Subscript) and is_group(facts, target.value)
    return group or is_weight(facts, target)


def changes_weights(facts: ScriptFacts, node: cst.CSTNode) -> bool:
    """Tell whether ``node`` changes weights or gradients: ``p.grad.mul_(0.5)``, ``model.load_state_dict(best)``."""
    match node:
        case cst.Call(func=cst.Attribute(value=owner, attr=cst.Name(how))):
            return how in (*LOADS, *RESETS) or ((how[-1] == "_" or how in ASSIGNS) and is_weight(facts, owner))
        case cst.AugAssign(target=target) | cst.Assign(targets=[cst.AssignTarget(target=target)]):
            return isinstance(target, (cst.Subscript, cst.Attribute)) and is_weight(facts, target)
    return False


def changes_training(facts: ScriptFacts, node: cst.CSTNode) -> bool:
    """Tell whether ``node`` changes weights or a model, keeps weights for later, freezes them, or sets a rate."""
    match node:
        case cst.Call(func=cst.Attribute(attr=cst.Name(how))) if how in _KEEPS:
            above = (up for up in facts.script.above(node) if isinstance(up, cst.Call))
            return not any("save" in dotted(call.func) for call in above)  # rank 0 alone writes
        case cst.Call(func=cst.Attribute(attr=cst.Name(how))) if how in _FREEZES:
            return True
        case cst.Call(func=func, args=[cst.Arg(value=first), *_]) if dotted(func).endswith(".set_value"):
            return dotted(first).endswith((".lr", ".learning_rate"))
        case cst.Call(func=func) if dotted(func).endswith((".lr.assign", ".learning_rate.assign")):
            return True
        case cst.AugAssign(target=target) | cst.Assign(targets=[cst.AssignTarget(target=target)]):
            if any(isinstance(n, (cst.Attribute, cst.SimpleString)) and _steers(n) for n in walk(target)):
                return True
            if isinstance(target, cst.Attribute) and dotted(target.value) not in ("", "self", "cls"):
                return facts.kinds.of(target.value) == "module" or changes_weights(facts, node)  # dropout.p = 0.5
    return changes_weights(facts, node)


def _steers(node: cst.Attribute | cst.SimpleString) -> bool:
    word = node.attr.value if isinstance(node, cst.Attribute) else str(node.evaluated_value)
    return word in _STEERS
