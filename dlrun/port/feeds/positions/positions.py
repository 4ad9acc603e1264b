"""Loops over positions: whether the number that a loop counts picks samples out of arrays."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import libcst as cst

from dlrun.port.facts.models.boxes import contents
from dlrun.port.facts.models.kinds import Kinds
from dlrun.port.feeds.streams.several import is_of_iterator
from dlrun.port.program.flow import Flow
from dlrun.port.program.script import calls_method, dotted, names_in, walk

_ONES = ("module", "optimizer", "scheduler", "loss", "loader", "scaler", "writer")


def picks_samples(kinds: Kinds, loop: cst.For, drawn_beside: Callable[[cst.CSTNode], bool] | None = None) -> bool:
    """Tell whether the loop's variable picks samples: it appears in a subscript or goes into a function's.

    What it picks out of several models, and what is kept of each, ``nets[i]`` and ``losses[i].append()``, is none.
    Nor is, where the loop draws with next(), the iterator from which it does, ``its[i % 3]``, or its name, nor what
    ``drawn_beside`` says is a number of a schedule: ``group["lr"] = rates[i]``.
    """
    flow = kinds.flow
    names = positions(flow, loop)
    for n in walk(loop.body):
        if isinstance(n, cst.SubscriptElement) and mentions(n, names):
            box = flow.script.parents[n]
            if not isinstance(flow.script.parents[box], cst.AssignTarget) and not (
                _is_of_model(kinds, box)
                or keeps(flow, n, loop.body)
                or (drawn_beside is not None and (is_of_iterator(flow, box) or drawn_beside(box)))
            ):
                return True
        if isinstance(n, cst.Call) and gives(flow, n, names) and not (drawn_beside and drawn_beside(n)):
            return True
    return False


def _is_of_model(kinds: Kinds, picked: cst.CSTNode) -> bool:
    """Tell whether ``picked`` is one of several models, optimizers or loaders, or of what a script keeps of each."""
    up = kinds.script.parents[picked]
    if isinstance(up, cst.AugAssign) and up.target is picked:
        return True
    if isinstance(up, cst.Attribute) and up.attr.value == "append":
        return True
    return isinstance(picked, cst.Subscript) and (
        kinds.of(picked) in _ONES
        or kinds.of(picked.value) == "module"
        or any(kinds.of(entry) in _ONES for entry in contents(kinds, picked.value))
    )


def positions(flow: Flow, loop: cst.For) -> set[str]:
    """Return the names of the numbers that ``loop`` counts, and of those that are computed from them."""
    names = names_in(loop.target)
    for n in walk(loop.body):
        if isinstance(n, cst.Assign) and mentions(n.value, names) and _is_number(flow, n.value):
            names.update(m.value for m in walk(n.targets[0].target) if isinstance(m, cst.Name))  # start = i * size
    return names


def uses_of_number(loop: cst.For) -> Iterator[cst.Name]:
    """Yield the uses, in the body of ``loop``, of what it runs over; not of the count that enumerate() gives."""
    target: cst.BaseExpression = loop.target
    if isinstance(target, cst.Tuple) and isinstance(loop.iter, cst.Call) and dotted(loop.iter.func) == "enumerate":
        target = target.elements[-1].value
    names = names_in(target)
    yield from (n for n in walk(loop.body) if isinstance(n, cst.Name) and n.value in names)


_PLAIN = ("builtins.len", "builtins.min", "builtins.max", "builtins.int")


def _is_number(flow: Flow, value: cst.CSTNode, depth: int = 1) -> bool:
    """Tell whether ``value`` is computed from numbers: no texts, and no calls but of len(), min() and the like.

    Or of a function of the script's own that computes so with what it is given: ``start, end = bounds(step)``.
    """
    calls = [n for n in walk(value) if isinstance(n, cst.Call)]
    texts = any(isinstance(n, (cst.SimpleString, cst.FormattedString)) for n in walk(value))
    return not texts and all(
        flow.script.name_of(c.func) in _PLAIN or (depth > 0 and _computes_number(flow, c, depth)) for c in calls
    )


def _computes_number(flow: Flow, call: cst.Call, depth: int) -> bool:
    """Tell whether ``call`` runs functions of the script's own that do nothing but compute with numbers."""
    return bool(targets := flow.targets(call)) and all(
        flow.returns(t) and all(_is_number(flow, r, depth - 1) and not _takes(r) for r in flow.returns(t))
        for t in targets
    )


def _takes(value: cst.CSTNode) -> bool:
    return any(isinstance(n, (cst.Subscript, cst.Attribute)) for n in walk(value))


def moving(loop: cst.For | cst.While, name: str) -> bool:
    """Tell whether ``loop`` takes slices of the array ``name`` at positions that it moves, and writes none there."""
    if any(
        isinstance(n, cst.AssignTarget) and isinstance(n.target, cst.Subscript) and dotted(n.target.value) == name
        for n in walk(loop.body)
    ):
        return False
    moved = {
        m.value
        for n in walk(loop.body)
        if isinstance(n, (cst.AugAssign, cst.Assign))
        for t in (n.targets if isinstance(n, cst.Assign) else (n,))
        for m in walk(t.target)
        if isinstance(m, cst.Name)
    }
    if isinstance(loop, cst.For):
        moved |= names_in(loop.target)
    return any(
        isinstance(n, cst.Subscript) and dotted(n.value) == name and any(mentions(e, moved) for e in n.slice)
        for n in walk(loop.body)
    )


def slides(flow: Flow, loop: cst.For | cst.While, again: bool = False) -> Iterator[cst.Subscript]:
    """Yield the slices of arrays made before ``loop`` that begin where it has come to: ``x[at : at + n]; at += n``.

    With ``again`` those of arrays too that the loop puts in another order: ``x = x[permutation]``.
    """
    grown = _grown(loop)
    for n in walk(loop.body):
        if not (isinstance(n, cst.Subscript) and isinstance(n.value, cst.Name) and mentions(n.slice[0], grown)):
            continue
        if isinstance(n.slice[0].slice, cst.Slice) and moving(loop, n.value.value):
            made = flow.script.scopes[loop].lookup(n.value.value)[0]
            made = [
                b
                for b in made
                if not (again and isinstance(b.value, cst.Subscript) and dotted(b.value.value) == b.name)
            ]
            if not any(flow.script.inside(b.node, loop) for b in made):
                yield n


def _grown(loop: cst.For | cst.While) -> set[str]:
    """Return the names of the numbers that ``loop`` adds to."""
    found = {n.target.value for n in walk(loop.body) if isinstance(n, cst.AugAssign) and isinstance(n.target, cst.Name)}
    for n in walk(loop.body):
        if isinstance(n, cst.Assign) and isinstance(name := n.targets[0].target, cst.Name):
            found |= {name.value} if mentions(n.value, {name.value}) else set()
    return found


def ends(flow: Flow, loop: cst.For | cst.While) -> Iterator[cst.BaseExpression]:
    """Yield the constants at which the position that ``loop`` moves within arrays begins anew: ``at % 50000``."""
    sliced = {m.value for n in slides(flow, loop) for m in walk(n.slice[0]) if isinstance(m, cst.Name)}
    grown = _grown(loop) & sliced
    for n in walk(loop.body):
        sides: tuple[cst.BaseExpression, ...] = ()
        if isinstance(n, cst.Comparison) and len(n.comparisons) == 1:
            sides = (n.left, n.comparisons[0].comparator)
        elif isinstance(n, cst.BinaryOperation) and isinstance(n.operator, cst.Modulo):
            sides = (n.left, n.right)
        elif isinstance(n, cst.AugAssign) and isinstance(n.operator, cst.ModuloAssign):
            sides = (n.target, n.value) if isinstance(n.target, cst.Name) else ()
        for one, other in (sides, sides[::-1]) if sides else ():
            if mentions(one, grown) and any(isinstance(o.node, cst.Integer) for o in flow.origins(other)):
                yield other


def of_order(loop: cst.For | cst.While, names: list[str]) -> list[str]:
    """Return those of ``names`` that hold numbers of samples: ``order``, for ``pick = order[at : at + 8]; x[pick]``."""
    picked: dict[str, str] = {}  # the names of numbers at hand, and where they are taken from
    for n in walk(loop.body):
        value = n.value if isinstance(n, cst.Assign) else None
        if isinstance(n, cst.Assign) and isinstance(value, cst.Subscript) and dotted(value.value) in names:
            picked[dotted(n.targets[0].target)] = dotted(value.value)
    found = {
        picked[m.value]
        for n in walk(loop.body)
        if isinstance(n, cst.SubscriptElement)
        for m in walk(n)
        if isinstance(m, cst.Name) and m.value in picked
    }
    return [name for name in names if name in found]


def other_length(flow: Flow, loop: cst.For | cst.While, names: list[str]) -> cst.BaseExpression | None:
    """Return the length of other data than ``names``, if ``loop`` compares the positions that it moves with one."""
    moved = {
        m.value
        for n in walk(loop.body)
        if isinstance(n, (cst.AugAssign, cst.Assign))
        for t in (n.targets if isinstance(n, cst.Assign) else (n,))
        for m in walk(t.target)
        if isinstance(m, cst.Name)
    }
    for n in walk(loop.body):
        least = isinstance(n, cst.Call) and dotted(n.func).rsplit(".", 1)[-1] in ("min", "minimum")
        wraps = isinstance(n, cst.BinaryOperation) and isinstance(n.operator, cst.Modulo)
        if not (least or wraps or isinstance(n, cst.Comparison)) or not mentions(n, moved):
            continue
        for part in walk(n):
            made = [o.node for o in flow.origins(part)] if isinstance(part, cst.Name) else [part]
            data = _measured(flow, made[0]) if len(made) == 1 else ""
            if data and data not in names and isinstance(part, cst.BaseExpression):
                return part
    return None


def _measured(flow: Flow, node: cst.CSTNode) -> str:
    """Return ``x`` in ``len(x)``, ``x.shape[0]`` and ``x.size(0)``."""
    if isinstance(node, cst.Call) and len(node.args) == 1:
        size = calls_method(node, "size")
        inner = node.func.value if isinstance(node.func, cst.Attribute) and size else node.args[0].value
        return dotted(inner) if (size or flow.script.name_of(node.func) == "builtins.len") else ""
    shape = node.value if isinstance(node, cst.Subscript) else None
    return dotted(shape.value) if isinstance(shape, cst.Attribute) and shape.attr.value == "shape" else ""


def names_of(target: cst.BaseExpression) -> set[str]:
    """Return the names that an assignment gives values to; none where it does so to parts of other things."""
    parts = [e.value for e in target.elements] if isinstance(target, (cst.Tuple, cst.List)) else [target]
    return {p.value for p in parts if isinstance(p, cst.Name)}


def may_be_position(value: cst.CSTNode) -> bool:
    """Tell whether ``value`` may be a number, by whatever function it is computed: ``np.min([(i + 1) * size, n])``.

    Entries of what else the program has are samples, but those of a shape: ``min(i + size, x.shape[0])``.
    """
    return not any(
        isinstance(n, (cst.SimpleString, cst.FormattedString)) or (isinstance(n, cst.Subscript) and not _of_shape(n))
        for n in walk(value)
    )


def _of_shape(node: cst.Subscript) -> bool:
    made = node.value.func if isinstance(node.value, cst.Call) else node.value
    return dotted(made).rpartition(".")[2] == "shape"


def gives(flow: Flow, call: cst.Call, names: set[str]) -> bool:
    """Tell whether ``call`` gets one of ``names`` and picks samples with it, or is foreign and looks as if it did."""
    for target in flow.targets(call):
        for p in target.params.params:
            value = flow.argument(call, target, p.name.value)
            if isinstance(value, cst.Name) and value.value in names:
                inner = {p.name.value}
                for n in walk(target.body):  # pick = np.arange(number * size, (number + 1) * size)
                    if isinstance(n, cst.Assign) and mentions(n.value, inner) and may_be_position(n.value):
                        inner |= names_of(n.targets[0].target)
                picks = (m for m in walk(target.body) if isinstance(m, cst.SubscriptElement) and mentions(m, inner))
                if not all(keeps(flow, m, target.body) for m in picks):
                    return True
    gets = dotted(call.func).rsplit(".", 1)[-1].lower()
    foreign = not flow.targets(call) and ("batch" in gets or gets.startswith("get"))
    return foreign and any(isinstance(a.value, cst.Name) and a.value.value in names for a in call.args)


def keeps(flow: Flow, at: cst.SubscriptElement, body: cst.CSTNode) -> bool:
    """Tell whether ``at`` is where something is kept: ``losses[step] = ...``, or where ``body`` reads that again.

    A slice is where a batch's samples are, but of a list to which ``body`` adds its own: ``losses[step - 49 :]``.
    """
    box = flow.script.parents[at]
    up = flow.script.parents[box]
    fills = (n.func.value for n in walk(body) if calls_method(n, "append"))
    if isinstance(box, cst.Subscript) and any(filled.deep_equals(box.value) for filled in fills):
        return True
    if isinstance(at.slice, cst.Slice):
        return False
    if isinstance(up, cst.AssignTarget) or (isinstance(up, cst.AugAssign) and up.target is box):
        return True
    if isinstance(up, cst.Attribute) and up.attr.value == "append":
        return True
    for n in walk(body):
        if isinstance(n, cst.Assign) and any(t.target.deep_equals(box) for t in n.targets):
            anew = not any(m.deep_equals(box) for m in walk(n.value))  # x[i] = changed(x[i]) is a sample
            return anew and flow.script.order[n] < flow.script.order[box]
    return False


def mentions(node: cst.CSTNode, names: set[str]) -> bool:
    """Tell whether one of ``names`` appears in ``node``."""
    return any(isinstance(n, cst.Name) and n.value in names for n in walk(node))


def takes_part(flow: Flow, index: cst.BaseSlice) -> bool:
    """Tell whether an index along axis 0 leaves entries out.

    The name or number of one array of several does not, nor does what a loop counts: x[i] for all i.
    """
    if isinstance(index, cst.Slice):
        return any(bound is not None for bound in (index.lower, index.upper, index.step))
    value = index.value if isinstance(index, cst.Index) else None
    if isinstance(value, cst.Name):
        bound = flow.script.bindings_of(value)
        return bool(bound) and not any(isinstance(b.node, (cst.For, cst.CompFor)) for b in bound)
    inverted = isinstance(value, cst.UnaryOperation) and isinstance(value.operator, cst.BitInvert)  # x[~held_out]
    return inverted or isinstance(value, (cst.Attribute, cst.Comparison))
