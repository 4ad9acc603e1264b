"""What a model makes anew only where a batch's shape asks for another: the mask of a Transformer."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from dlrun.port.placement.interpret.by_key import ByKey
from dlrun.port.program.script import Script, calls_method, dotted, walk

_SHAPES = ("shape", "device", "dtype", "is_cuda", "ndim")
_ASKS = ("size", "dim")


def by_shape(machine: ByKey, node: cst.If) -> bool:
    """Tell whether ``node`` makes something of a batch's shape alone, unless what is kept is of that shape already.

    Either way it then holds what this batch's shape makes of it, as if it were made anew each time:
    ``if self.mask is None or self.mask.size(0) != len(x): self.mask = mask_of(len(x))``.
    """
    lines = _lines(node)
    if node.orelse is not None or lines is None:
        return False
    targets = [line.targets[0].target for line in lines]
    kept = {dotted(t) for t in targets if isinstance(t, cst.Attribute)}
    local = {t.value for t in targets if isinstance(t, cst.Name)}
    if not kept or not any(_asks_for_another(part, kept) for part in _alternatives(node.test)):
        return False
    return all(_is_set_here_alone(machine, t, node) for t in targets) and all(
        _of_shape(machine, line.value, kept, local) for line in lines
    )


def _lines(node: cst.If) -> list[cst.Assign] | None:
    """Return the assignments that are all that ``node`` does, each to one name or attribute."""
    found: list[cst.Assign] = []
    for line in node.body.body:
        for part in line.body if isinstance(line, cst.SimpleStatementLine) else (line,):
            one = isinstance(part, cst.Assign) and len(part.targets) == 1
            if not one or not isinstance(part.targets[0].target, (cst.Name, cst.Attribute)):  # type: ignore[union-attr]
                return None
            found.append(part)  # type: ignore[arg-type]
    return found


def _alternatives(test: cst.BaseExpression) -> Iterator[cst.BaseExpression]:
    if isinstance(test, cst.BooleanOperation) and isinstance(test.operator, cst.Or):
        yield from _alternatives(test.left)
        yield from _alternatives(test.right)
    else:
        yield test


def _asks_for_another(test: cst.BaseExpression, kept: set[str]) -> bool:
    """Tell whether ``test`` asks whether something kept is of another shape than something that is not kept."""
    match test:
        case cst.Comparison(left=left, comparisons=[cst.ComparisonTarget(cst.NotEqual(), right)]):
            sides = [any(_names(n, kept) for n in walk(side)) for side in (left, right)]
            return sides.count(True) == 1
    return False


def _names(node: cst.CSTNode, kept: set[str]) -> bool:
    return isinstance(node, cst.Attribute) and dotted(node) in kept


def _is_attribute(script: Script, name: cst.Name) -> bool:
    up = script.parents[name]
    return isinstance(up, cst.Attribute) and up.attr is name


def _is_set_here_alone(machine: ByKey, target: cst.BaseExpression, node: cst.If) -> bool:
    """Tell whether nothing but ``node`` gives ``target`` a value, but None; and that no other line reads a name.

    Other methods may do as ``node`` does, word for word.
    """
    script = machine.script
    if isinstance(target, cst.Name):
        alike = [n for n in script.named(target.value) if script.function_of(n) is script.function_of(node)]
        return all(script.inside(n, node) or _is_attribute(script, n) for n in alike)
    owner = script.class_of(node)
    name = target.attr.value if isinstance(target, cst.Attribute) else ""
    if owner is None or dotted(target) != f"self.{name}":
        return False
    for binding in script.attributes.get((owner, name), []):
        value = binding.value
        for at in binding.path:
            value = value.elements[at].value if isinstance(value, cst.Tuple) and isinstance(at, int) else None
        none = isinstance(value, cst.Name) and value.value == "None"
        again = any(script.code(up).strip() == script.code(node).strip() for up in _tests(script, binding.node))
        if not none and not again:
            return False
    in_place = [c.func for c in script.calls if isinstance(c.func, cst.Attribute) and c.func.attr.value.endswith("_")]
    stores = [n for n in script.of(cst.Subscript) if isinstance(script.parents[n], (cst.AssignTarget, cst.AugAssign))]
    changed = [n.value for n in in_place] + [n.value for n in stores]
    return not any(dotted(n) == f"self.{name}" for n in changed)


def _tests(script: Script, line: cst.CSTNode) -> Iterator[cst.If]:
    yield from (up for up in script.above(line) if isinstance(up, cst.If))


def _of_shape(machine: ByKey, value: cst.BaseExpression, kept: set[str], local: set[str]) -> bool:
    """Tell whether ``value`` reads nothing of the batch but its shape, its device and its type."""
    script = machine.script
    for name in (n for n in walk(value) if isinstance(n, cst.Name)):
        up = script.parents[name]
        if _is_attribute(script, name) or name.value in local or name not in script.scopes:
            continue
        if isinstance(up, cst.Arg) and up.keyword is name:
            continue
        outer = script.parents[up]
        asks = isinstance(up, cst.Attribute) and isinstance(outer, cst.Call) and calls_method(outer, *_ASKS)
        counts = isinstance(outer, cst.Call) and up in outer.args and script.name_of(outer.func) == "builtins.len"
        if asks or counts or (isinstance(up, cst.Attribute) and up.attr.value in _SHAPES):
            continue
        with machine.unrecorded():
            held = machine.eval(name)
        if not held.refs and not machine.content(held).uniform:
            return False
    return True
