"""Updates by hand of what is made of gradients: ``update = momentum.add_(p.grad)``, then ``p.sub_(lr * update)``."""

from __future__ import annotations

from collections.abc import Callable

import libcst as cst

from dlrun.port.program.script import Script, dotted, walk

_LOOPS = (cst.For, cst.While)


def root(node: cst.CSTNode) -> cst.CSTNode:
    """Return what a chain of methods changes in place: ``p`` of ``p.data.mul_(0.9).add_(update)``."""
    while isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute):
        node = node.func.value
    return node.value if isinstance(node, cst.Attribute) and node.attr.value == "data" else node


def changes(node: cst.CSTNode) -> tuple[cst.CSTNode, list[cst.CSTNode]] | None:
    """Return what the statement ``node`` changes in place, and the values that it takes for that."""
    match node:
        case cst.AugAssign(target=target, value=value):
            return root(target), [value]
        case cst.Assign(targets=[cst.AssignTarget(target=cst.Attribute(attr=cst.Name("data")) as target)], value=value):
            return root(target), [value]
        case cst.Expr(value=cst.Call(func=cst.Attribute(attr=method)) as call) if method.value.endswith("_"):
            inner = [n for n in walk(call) if isinstance(n, cst.Call)]
            return root(call), [arg.value for c in inner for arg in c.args]
    return None


def moved(script: Script, node: cst.CSTNode) -> str:
    """Return the name of what ``node`` changes by something that is made of its gradient; an empty one of none."""
    found, (name, made) = changes(node), _of_gradient(script, node)
    if found is None or not name or script.code(found[0]) in made:
        return ""
    return name if any(_holds(script, value, name, made) for value in found[1]) else ""


def holds(script: Script, update: cst.CSTNode) -> Callable[[cst.CSTNode], bool]:
    """Return what tells whether an expression in ``update`` is made of the gradient of what that changes."""
    name, made = _of_gradient(script, update)
    return lambda value: bool(name) and _holds(script, value, name, made)


def _of_gradient(script: Script, node: cst.CSTNode) -> tuple[str, set[str]]:
    """Return the name of what ``node`` changes, and what is made of its gradient there; nothing where none is read."""
    found = changes(node)
    name = dotted(found[0]) if found is not None else ""
    home = next((up for up in script.above(node) if isinstance(up, (*_LOOPS, cst.FunctionDef, cst.Module))), None)
    if not name or home is None or not any(_is_gradient(n, name) for n in walk(home)):
        return "", set()
    return name, _made(script, home, name)


def _is_gradient(node: cst.CSTNode, name: str) -> bool:
    return (
        isinstance(node, cst.Attribute) and node.attr.value == "grad" and dotted(node.value) in (name, f"{name}.data")
    )


def _holds(script: Script, value: cst.CSTNode, name: str, made: set[str]) -> bool:
    """Tell whether ``value`` reads the gradient of ``name``, or something of those that are ``made`` of it."""
    kinds = (cst.Name, cst.Attribute, cst.Subscript)
    return any(_is_gradient(n, name) or (isinstance(n, kinds) and script.code(n) in made) for n in walk(value))


def _made(script: Script, home: cst.CSTNode, name: str) -> set[str]:
    """Return what statements in ``home`` make of the gradient of ``name``, or change by it, as text."""
    made: set[str] = set()
    for _ in range(2):  # what is made of what is made
        for node in walk(home):
            found = changes(node)
            if found is None and isinstance(node, cst.Assign):
                found = node.targets[0].target, [node.value]
            if found is None or dotted(found[0]) == name or script.code(found[0]).endswith(".grad"):
                continue
            if any(_holds(script, value, name, made) for value in found[1]):
                made.add(script.code(found[0]))
    return made


def gone_through(script: Script, loop: cst.For, name: str) -> str:
    """Return what ``loop`` goes through to bind ``name``: ``params`` of ``for p, m in zip(params, momenta)``."""
    return _each(script, loop.iter, loop.target, name)


def _each(script: Script, through: cst.BaseExpression, target: cst.BaseExpression, name: str) -> str:
    if dotted(target) == name:
        values = isinstance(through, cst.Call) and dotted(through.func).endswith(".values") and not through.args
        plain = isinstance(through, (cst.Name, cst.Attribute, cst.List, cst.Tuple))
        return script.code(through) if plain or values else ""
    if not isinstance(target, cst.Tuple) or not isinstance(through, cst.Call):
        return ""
    parts = [e.value for e in target.elements]
    if dotted(through.func) == "zip" and len(parts) == len(through.args):
        found = (_each(script, a.value, part, name) for a, part in zip(through.args, parts, strict=True))
        return next(filter(None, found), "")
    if dotted(through.func) == "enumerate" and len(parts) == 2 and through.args:
        return _each(script, through.args[0].value, parts[1], name)
    if dotted(through.func).endswith(".items") and len(parts) == 2 and dotted(parts[1]) == name:
        return f"{script.code(through.func).removesuffix('.items')}.values()"
    return ""
