"""What runs for a model's weights: for each of them, or for all at once."""

from __future__ import annotations

import libcst as cst

from dlrun.port.facts import ScriptFacts
from dlrun.port.program.script import dotted, walk

WEIGHTS = ("parameters", "named_parameters", "state_dict", "params", "get_weights", "get_collection")
VARIABLES = ("variables", "trainable_variables", "weights", "trainable_weights")  # attributes of Keras' models
_GRADIENTS = ("grad", "gradient", "gradients")


def of_weights(facts: ScriptFacts, node: cst.CSTNode, depth: int = 5) -> bool:
    """Tell whether ``node`` runs for each of a model's weights, or for all of them: lists, or a vector."""
    if _of_all(facts, node):
        return True
    function = facts.script.function_of(node)
    for up in facts.script.above(node):
        if up is function:
            break
        over = up.iter if isinstance(up, cst.For) and up not in facts.loops else None
        over = up.for_in.iter if isinstance(up, (cst.ListComp, cst.DictComp)) else over
        if over is not None and any(_gives_weights(facts, n) for n in walk(over)):
            return True
    calls = facts.flow.callers(function) if depth and isinstance(function, cst.FunctionDef) else []
    return bool(calls) and all(of_weights(facts, call, depth - 1) for call in calls)


def _of_all(facts: ScriptFacts, node: cst.CSTNode) -> bool:
    """Tell whether ``node`` takes a model's weights in a vector, or as lists: ``torch._foreach_lerp_(old, new, w)``."""
    if isinstance(node, cst.Call) and dotted(node.func).startswith("torch._foreach_"):
        return any(_gives_weights(facts, n) for arg in node.args for n in walk(arg.value))
    made = [o.node for n in walk(node) if isinstance(n, (cst.Name, cst.Call)) for o in facts.flow.origins(n)]
    return any(isinstance(m, cst.Call) and facts.script.name_of(m.func).endswith(".parameters_to_vector") for m in made)


def of_gradients(facts: ScriptFacts, node: cst.CSTNode) -> bool:
    """Tell whether gradients are averaged, as an optimizer's own momentum does: that stays, as in PyTorch's."""
    made = [
        n
        for part in walk(node)
        for n in (part, *(o.node for o in (facts.flow.origins(part) if isinstance(part, cst.Name) else ())))
    ]
    return any(isinstance(n, cst.Attribute) and n.attr.value in _GRADIENTS for m in made for n in walk(m))


def _gives_weights(facts: ScriptFacts, node: cst.CSTNode, asked: frozenset[cst.CSTNode] = frozenset()) -> bool:
    """Tell whether ``node`` is a model's weights, or made of them; those that are ``asked`` already are not."""
    if node in asked:
        return False
    if isinstance(node, cst.Call):
        return isinstance(node.func, cst.Attribute) and node.func.attr.value in WEIGHTS
    if not isinstance(node, (cst.Name, cst.Attribute)):
        return False
    if isinstance(node, cst.Attribute) and node.attr.value in VARIABLES:
        return True
    made = (o.node for o in facts.flow.origins(node) if o.node is not node)
    kept = (m for m in made if facts.kinds.of(m) not in ("optimizer", "loader", "module"))  # no weights one by one
    asked |= {node}  # a = b.a; b = a.b
    return any(
        isinstance(n, (cst.Call, cst.Attribute)) and _gives_weights(facts, n, asked) for m in kept for n in walk(m)
    )
