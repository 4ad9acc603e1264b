"""Loops that go through data in order: what they slice at a position that moves on, and along which axis."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import libcst as cst

from dlrun.port.feeds.positions.positions import mentions
from dlrun.port.program.flow import Flow
from dlrun.port.program.script import calls_method, dotted, names_in, walk

_RANDOM = re.compile(r"^(torch\.(rand|randint|randn|normal|bernoulli|randperm)|numpy\.random\.\w+|random\.\w+)$")
_NUMBERS = ("builtins.len", "builtins.min", "builtins.max", "builtins.int", "builtins.round", "builtins.abs")
_MODULES = ("torch.", "numpy.", "tensorflow.", "builtins.")
_ADDS_AXIS = ("None", "np.newaxis", "numpy.newaxis", "tf.newaxis", "tensorflow.newaxis")
_DEPTH = 3


def axes_of(node: cst.Subscript) -> list[cst.SubscriptElement]:
    """Return what ``node`` takes along each axis of an array, without the axes that it adds: ``x[None, i:j]``."""
    return [e for e in node.slice if not (isinstance(e.slice, cst.Index) and dotted(e.slice.value) in _ADDS_AXIS)]


@dataclass(frozen=True, eq=False)
class Pick:
    """A slice at a moving position: of ``data`` (in the frame of the loop, or of a function it calls), along ``axis``.

    ``steered`` are the expressions that say where and how long the slice is.
    """

    data: cst.BaseExpression
    axis: int
    steered: tuple[cst.CSTNode, ...]


def picks(flow: Flow, loop: cst.For | cst.While) -> list[Pick]:
    """Return the slices that the body of ``loop`` takes at positions that move on from iteration to iteration."""
    start = names_in(loop.target) if isinstance(loop, cst.For) else set()
    return list(_picks(flow, loop.body, start, {}, _DEPTH))


def _picks(
    flow: Flow, body: cst.CSTNode, moved: set[str], given: Mapping[str, cst.BaseExpression], depth: int
) -> Iterator[Pick]:
    moved = _moving(flow, body, moved)
    for n in walk(body):
        if isinstance(n, cst.Subscript) and not isinstance(flow.script.parents[n], cst.AssignTarget):
            for axis, element in enumerate(axes_of(n)):
                if isinstance(element.slice, cst.Slice) and mentions(element, moved):
                    yield Pick(_outside(n.value, given), axis, (element,))
        elif isinstance(n, cst.Call):
            if calls_method(n, "narrow") and len(n.args) == 3:
                where = n.args[0].value
                if isinstance(where, cst.Integer) and any(mentions(a, moved) for a in n.args[1:]):
                    yield Pick(_outside(n.func.value, given), int(where.value), tuple(n.args[1:]))
            for function in flow.targets(n) if depth else ():
                yield from _within(flow, n, function, moved, given, depth)


def _within(
    flow: Flow,
    call: cst.Call,
    function: cst.FunctionDef,
    moved: set[str],
    given: Mapping[str, cst.BaseExpression],
    depth: int,
) -> Iterator[Pick]:
    """Yield what ``function`` slices when ``call`` hands it a position, or where it moves a global one itself."""
    handed: dict[str, cst.BaseExpression] = {}
    for p in (*function.params.params, *function.params.kwonly_params):
        value = flow.argument(call, function, p.name.value)
        if value is not None:
            handed[p.name.value] = _outside(value, given)
    names = {name for name, value in handed.items() if mentions(value, moved)}
    outer = flow.script.scopes[function.body].outer
    names |= {t.value for n in walk(function.body) for t in _targets(n) if t.value in outer}
    steering = tuple(value for name, value in handed.items() if mentions(value, moved))
    for pick in _picks(flow, function.body, names, handed, depth - 1) if names else ():
        yield Pick(pick.data, pick.axis, (*pick.steered, *steering))


def _outside(node: cst.BaseExpression, given: Mapping[str, cst.BaseExpression]) -> cst.BaseExpression:
    """Return what the caller calls ``node``, where it is a parameter."""
    return given.get(node.value, node) if isinstance(node, cst.Name) else node


def _targets(node: cst.CSTNode) -> Iterator[cst.Name]:
    if isinstance(node, cst.AugAssign) and isinstance(node.target, cst.Name):
        yield node.target
    for target in node.targets if isinstance(node, cst.Assign) else ():
        yield from (m for m in walk(target.target) if isinstance(m, cst.Name))


def _moving(flow: Flow, body: cst.CSTNode, start: set[str]) -> set[str]:
    """Return ``start``, the numbers that ``body`` moves on, and those computed from them."""
    moved, before = set(start), -1
    while len(moved) > before:
        before = len(moved)
        for n in walk(body):
            if isinstance(n, cst.AugAssign) and isinstance(n.target, cst.Name) and _is_number(flow, n.value):
                moved.add(n.target.value)
            elif isinstance(n, cst.Assign) and _is_number(flow, n.value):
                names = {t.value for t in _targets(n)}
                if mentions(n.value, moved | names):
                    moved |= names
            elif isinstance(n, cst.For) and mentions(n.iter, moved):
                moved |= names_in(n.target)
    return moved


def _is_number(flow: Flow, value: cst.CSTNode) -> bool:
    calls = [n for n in walk(value) if isinstance(n, cst.Call)]
    plain = all(flow.script.name_of(c.func) in _NUMBERS or dotted(c.func).endswith((".size", ".item")) for c in calls)
    return plain and not any(
        isinstance(n, (cst.Subscript, cst.SimpleString, cst.FormattedString, cst.List))
        for n in walk(value)
        if not _is_shape(n)
    )


def _is_shape(node: cst.CSTNode) -> bool:
    whose = node.value if isinstance(node, cst.Subscript) else None
    return isinstance(whose, cst.Attribute) and whose.attr.value == "shape"


def draws(flow: Flow, within: cst.CSTNode, steered: Iterable[cst.CSTNode]) -> tuple[cst.Call, ...]:
    """Return the random draws inside ``within`` that decide where slices begin and how long they are.

    From ``steered`` backwards through assignments: each rank would draw others, and take another number of steps.
    """
    found: dict[cst.Call, None] = {}
    todo, seen = list(steered), set[str]()
    while todo:
        value = todo.pop()
        for n in walk(value):
            if isinstance(n, cst.Call) and flow.script.inside(n, within):
                if _RANDOM.search(flow.script.name_of(n.func)):
                    found.setdefault(n)
                for target in flow.targets(n):
                    todo.extend(r for r in flow.returns(target))
            elif isinstance(n, cst.Name) and n.value not in seen:
                seen.add(n.value)
                made = (b for b in flow.script.bindings_of(n) if flow.script.inside(b.node, within))
                for b in made:
                    todo.append(b.node.iter if isinstance(b.node, cst.For) else b.node)
    return tuple(found)


def generated(flow: Flow, made: cst.CSTNode) -> list[tuple[cst.BaseExpression, int, tuple[cst.Call, ...]]] | None:
    """Return the data that a generator of this script goes through in order: what the call ``made`` hands to it.

    With the axis, and the random draws that say how far a step goes; None where ``made`` calls no generator, and an
    empty list where it takes no slices of what it is given.
    """
    for function in flow.targets(made) if isinstance(made, cst.Call) else ():
        if flow.yields(function):
            found: dict[str, tuple[cst.BaseExpression, int, tuple[cst.Call, ...]]] = {}
            loops = [n for n in walk(function.body) if isinstance(n, cst.For)]
            iterations = {m.value for loop in loops for m in walk(loop.target) if isinstance(m, cst.Name)}
            for pick in _picks(flow, function.body, iterations, {}, _DEPTH):
                name = dotted(root(flow, pick.data))
                given = flow.argument(made, function, name) if isinstance(made, cst.Call) else None
                if given is not None:
                    plain = dotted(pick.data) == name and len(flow.script.bindings_of(pick.data)) == 1
                    axis = pick.axis if plain else 0
                    found.setdefault(name, (given, axis, draws(flow, function, pick.steered)))
            return list(found.values())
    return None


# What only gives an array another type or shape: the order of its entries stays.
_SHAPES = {
    "reshape",
    "view",
    "t",
    "transpose",
    "contiguous",
    "copy",
    "astype",
    "long",
    "int",
    "float",
    "to",
    "cuda",
    "cpu",
    "narrow",
    "split",
    "array_split",
    "chunk",
    "flatten",
    "ravel",
    "tolist",
    "array",
    "asarray",
    "tensor",
    "as_tensor",
    "from_numpy",
    "LongTensor",
    "squeeze",
    "unsqueeze",
    "clone",
    "detach",
    "stack",
    "type",
    "numpy",
    "fromiter",
    "int32",
    "int64",
    "swapaxes",
    "pad",
}


def reshapes(node: cst.CSTNode) -> bool:
    """Tell whether the call ``node`` only gives an array another type or shape."""
    if isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute):
        return node.func.attr.value in _SHAPES
    return isinstance(node, cst.Call) and dotted(node.func) in ("list", "tuple")


def root(flow: Flow, node: cst.BaseExpression) -> cst.BaseExpression:
    """Return what the array ``node`` is cut out of: ``text``, for ``x`` after ``x = text[:n].reshape(size, -1)``.

    A parameter, a name, an attribute, or the expression that makes it.
    """
    seen: set[str] = set()
    while True:
        if isinstance(node, cst.Subscript):
            node = node.value
        elif isinstance(node, cst.Call) and reshapes(node):
            module = not isinstance(node.func, cst.Attribute) or flow.script.name_of(node.func).startswith(_MODULES)
            if module and not node.args:
                return node
            node = node.args[0].value if module else node.func.value  # type: ignore[attr-defined]
        elif isinstance(node, cst.Name) and node.value not in seen:
            seen.add(node.value)
            bound = flow.script.bindings_of(node)
            made = [b.written for b in bound if b.how == "assign"]
            if any(b.how == "param" for b in bound) or not made or made[0] is None or not _cuts(flow, made[0]):
                return node
            node = made[0]
        else:
            return node


def _cuts(flow: Flow, value: cst.BaseExpression) -> bool:
    """Tell whether ``value`` is another array, cut or reshaped, and not the call that makes the first one."""
    return isinstance(value, (cst.Subscript, cst.Name, cst.Attribute)) or reshapes(value)
