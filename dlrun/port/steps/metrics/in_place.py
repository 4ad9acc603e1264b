"""What changes a tensor, an array or a weight from what it was, and which expressions name one and the same."""

from __future__ import annotations

import libcst as cst

from dlrun.port.facts import Facts, ScriptFacts
from dlrun.port.program.script import dotted, walk

_MOVES = ("add_", "sub_", "mul_", "div_", "lerp_", "index_add_", "scatter_add_", "index_put_", "addcmul_")
_SETS = ("copy_", "index_copy_", "scatter_")
_SAME = ("data", "cuda", "to", "cpu", "float", "double", "detach", "requires_grad_")


def moved(facts: ScriptFacts, node: cst.CSTNode) -> cst.BaseExpression | None:
    """Return the tensor that ``node`` changes from what it was, or (a buffer) overwrites in part."""
    objects = isinstance(facts, Facts)
    match node:
        case cst.AugAssign(target=target):
            return tensor_of(target, objects)
        case cst.Assign(targets=[cst.AssignTarget(target=cst.Name())], value=value):
            if not isinstance(value, cst.BinaryOperation):
                return None  # a hidden state, or what was made anew
            state = tensor_of(node.targets[0].target)
            return state if state is not None and any(is_same(facts, n, state) for n in walk(value)) else None
        case cst.Assign(targets=[cst.AssignTarget(target=cst.Subscript() | cst.Attribute() as target)]):
            state = tensor_of(target, objects)
            reads = state is not None and _follows(facts, node.value, state, isinstance(target, cst.Attribute))
            part = isinstance(target, cst.Subscript) and (_is_part(facts, state) or _own_place(facts, target))
            data = isinstance(target, cst.Attribute) and target.attr.value == "data" and _is_part(facts, state)
            return state if reads or part or data else None
        case cst.Assign(targets=[cst.AssignTarget(target=cst.Tuple(elements=[cst.Element(value=target), *_]))]):
            state = (
                tensor_of(target, objects) if isinstance(target, cst.Attribute) else None
            )  # self.mean, self.n = f(...)
            return state if state is not None and _follows(facts, node.value, state, names=False) else None
        case cst.Expr(value=cst.Call(func=cst.Attribute(attr=cst.Name(how)), args=args)):
            inner, state = node.value, None
            while isinstance(inner, cst.Call) and isinstance(inner.func, cst.Attribute):  # x.mul_(a).add_(b)
                state, inner = inner.func.value, inner.func.value
            state = tensor_of(state, objects) if state is not None else None
            reads = state is not None and any(is_same(facts, n, state) for a in args for n in walk(a))
            return state if how in _MOVES or (how in _SETS and (reads or _is_part(facts, state))) else None
    return None


def tensor_of(node: cst.BaseExpression, objects: bool = False) -> cst.BaseExpression | None:
    """Return what holds the tensor: ``self.centers`` in ``self.centers.data[k]``; with ``objects`` ``net.centers``."""
    while isinstance(node, cst.Subscript) or (isinstance(node, cst.Attribute) and node.attr.value in _SAME):
        node = node.value
    own = isinstance(node, cst.Attribute) and (dotted(node.value) == "self" or (objects and dotted(node.value) != ""))
    return node if own or isinstance(node, cst.Name) else None


def owner_of(facts: ScriptFacts, state: cst.CSTNode) -> cst.ClassDef | None:
    """Return the class of which ``state``, ``self.centers`` or ``net.centers``, is an attribute; None of a name."""
    if not isinstance(state, cst.Attribute) or dotted(state.value) == "self":
        return facts.script.class_of(state)
    classes = facts.flow.classes(state.value)
    return classes[0] if len(classes) == 1 else None


def is_same(facts: ScriptFacts, node: cst.CSTNode, state: cst.BaseExpression) -> bool:
    """Tell whether ``node`` names the tensor ``state``."""
    if type(node) is not type(state) or dotted(node) != dotted(state):
        return False
    if getattr(facts.script.parents.get(node), "attr", None) is node:
        return False  # the name of an attribute
    if isinstance(state, cst.Name):
        return facts.script.bindings_of(node) == facts.script.bindings_of(state)
    return facts.script.class_of(node) is facts.script.class_of(state)


def _follows(facts: ScriptFacts, value: cst.CSTNode, state: cst.BaseExpression, names: bool, depth: int = 3) -> bool:
    """Tell whether ``value`` is made of ``state``, also by ``names`` of its function: ``old = self.mean``."""
    home = facts.script.function_of(value)
    known = [b for n in walk(value) if names and depth and isinstance(n, cst.Name) for b in facts.script.bindings_of(n)]
    made = [b.value for b in known if b.how == "assign" and facts.script.function_of(b.node) is home]
    return any(is_same(facts, n, state) for n in walk(value)) or any(
        _follows(facts, v, state, names, depth - 1) for v in made if v is not None
    )


def _own_place(facts: ScriptFacts, target: cst.Subscript) -> bool:
    """Tell whether ``target`` is an entry for local samples."""
    return isinstance(facts, Facts) and facts.unequal(target.slice[0])


def is_buffer(facts: ScriptFacts, state: cst.BaseExpression | None) -> bool:
    """Tell whether ``state`` is an attribute that its module registers as a buffer."""
    owner = owner_of(facts, state) if isinstance(state, cst.Attribute) else None
    return owner is not None and any(
        isinstance(n, cst.Call)
        and dotted(n.func) == "self.register_buffer"
        and n.args
        and facts.script.code(n.args[0].value).strip("'\"") == state.attr.value  # type: ignore[union-attr]
        for n in walk(owner)
    )


def is_weight(facts: ScriptFacts, state: cst.BaseExpression | None) -> bool:
    """Tell whether ``state`` is an attribute that holds a parameter of its module."""
    return state is not None and any(
        isinstance(b.written, cst.Call) and facts.script.name_of(b.written.func) == "torch.nn.Parameter"
        for b in facts.script.kept_bindings(state)
    )


def _is_part(facts: ScriptFacts, state: cst.BaseExpression | None) -> bool:
    return is_buffer(facts, state) or is_weight(facts, state)
