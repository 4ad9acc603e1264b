"""Part of step "metrics": which numbers count the samples or batches of all ranks, and which those of one."""

from __future__ import annotations

import re

import libcst as cst

from dlrun.port.facts import Facts
from dlrun.port.facts.numbers.computed import computed
from dlrun.port.feeds.positions.positions import gives
from dlrun.port.program.script import added, dotted, names_in, walk
from dlrun.port.steps.counts.counters import each_update

_DEPTH = 4
_LENGTHS = re.compile(r"len|mask|tok|num|valid|count", re.IGNORECASE)
_SAME = ("item", "float", "int", "long", "double", "type", "cpu", "numpy", "detach", "to", "view", "reshape", "squeeze")


def all_samples(facts: Facts, node: cst.CSTNode, depth: int = 0) -> bool:
    """Tell whether ``node`` counts samples or batches before they are sharded: ``len(x) // batch_size``."""
    if facts.full_batch or not facts.feeds:
        return False
    for n in walk(node):
        if isinstance(n, cst.Call) and facts.script.name_of(n.func) == "builtins.len" and n.args:
            return _is_whole(facts, n.args[0].value)
        if isinstance(n, cst.Attribute) and n.attr.value == "shape":
            return _is_whole(facts, n.value)
        if isinstance(n, cst.Subscript) and depth < _DEPTH:  # sizes["train"]
            made = [o.node for o in facts.flow.origins(n) if isinstance(o.node, cst.Call)]
            if made and all(all_samples(facts, call, depth + 1) for call in made):
                return True
        if isinstance(n, cst.Name) and depth < _DEPTH and _bound_outside(facts, n):
            values = [b.written for b in facts.script.bindings_of(n)]
            if any(value is not None and all_samples(facts, value, depth + 1) for value in values):
                return True
    return False


def _is_whole(facts: Facts, counted: cst.BaseExpression) -> bool:
    """Tell whether every rank holds all of ``counted``: it is sharded at the loop, or cut out of what is."""
    name = dotted(counted)
    if any(call.args[0].value is counted for call in facts.lengths) or grows(facts, counted):
        return False
    if any(name and name == dotted(f.node) for f in facts.feeds if f.how == "iterable"):
        return True
    if any(name in f.names for f in facts.feeds if f.how in ("named", "arrays", "stretches")):
        return False
    sharded = {f.node for f in facts.feeds}
    sharded |= {f.node.value for f in facts.feeds if isinstance(f.node, cst.Assign)}
    if sharded.intersection(facts.flow.through(counted)):
        return False
    if facts.kinds.of(counted) == "loader":
        return True
    return all(_bound_outside(facts, n) for n in walk(counted) if isinstance(n, cst.Name))


def grows(facts: Facts, box: cst.BaseExpression) -> bool:
    """Tell whether a training loop adds to the list ``box``."""
    name, loops = dotted(box), set(facts.loops)
    fills = (c for c in facts.script.calls if name and dotted(c.func) in (f"{name}.append", f"{name}.extend"))
    return any(up in loops for call in fills for up in facts.script.above(call))


def _bound_outside(facts: Facts, name: cst.Name) -> bool:
    """Tell whether no training loop gives ``name`` its value."""
    bindings = facts.script.bindings_of(name)
    loops = set(facts.loops)
    return not any(up in loops for b in bindings for up in (b.node, *facts.script.above(b.node)))


def from_length(facts: Facts, node: cst.BaseExpression) -> bool:
    """Tell whether ``node`` is computed from a length: that of a sharded loader is this rank's."""
    return any(
        isinstance(n, cst.Call) and facts.script.name_of(n.func) == "builtins.len"
        for n in computed(facts.flow, [node]).nodes
    )


def is_own(facts: Facts, node: cst.BaseExpression) -> bool:
    """Tell whether ``node`` is computed from the length of a rank's share."""
    return any(is_length_of_share(facts, n) for n in computed(facts.flow, [node]).nodes)


def is_length_of_share(facts: Facts, node: cst.CSTNode) -> bool:
    """Tell whether ``node`` is ``len(x)`` of what each rank has a share of, or ``x.size`` of its stretch."""
    if isinstance(node, cst.Attribute) and node.attr.value == "size":
        return node in sizes_of_stretches(facts)
    length = isinstance(node, cst.Call) and facts.script.name_of(node.func) == "builtins.len"
    return length and bool(facts.feeds) and not all_samples(facts, node)


def sizes_of_stretches(facts: Facts) -> set[cst.CSTNode]:
    """Return what reads how many entries a rank's stretch of an array has, in the function that cuts it."""
    found: set[cst.CSTNode] = set()
    for feed in (f for f in facts.feeds if f.how == "stretches"):
        home, at = facts.script.function_of(feed.node), facts.script.order[feed.node]
        for n in walk(home):
            size = isinstance(n, cst.Attribute) and n.attr.value == "size" and dotted(n.value) in feed.names
            called = isinstance(up := facts.script.parents.get(n), cst.Call) and up.func is n
            if size and not called and facts.script.order[n] >= at:
                found.add(n)
    return found


def adds_samples(facts: Facts, node: cst.CSTNode) -> tuple[cst.BaseExpression, cst.BaseExpression] | None:
    """Return the count to which ``node`` adds the samples of each batch, and these; else None.

    ``seen += len(x)``, ``tokens += (y >= 0).sum()``, and ``tokens += batch * length``, a number alike on all ranks.
    """
    found = None if facts.full_batch or facts.episodes else added(node)
    if found is None or not each_update(facts, node) or _picks(facts, found[0]):
        return None
    per_rank = facts.options.batch != "global" and _is_number(facts, found[1])
    return found if per_rank or is_size_of_batch(facts, found[1]) else None


def is_size_of_batch(facts: Facts, size: cst.BaseExpression, depth: int = _DEPTH) -> bool:
    """Tell whether ``size`` is how much a training loop takes, or makes: ``len(x)``, ``x.shape[0] * length``."""
    match size:
        case cst.Name() if depth:  # n = len(x)
            made = [b.written for b in facts.script.bindings_of(size)]
            return bool(made) and all(v is not None and is_size_of_batch(facts, v, depth - 1) for v in made)
        case cst.BinaryOperation(operator=cst.Multiply(), left=one, right=other):
            own = [is_size_of_batch(facts, side, depth) for side in (one, other)]
            return any(own) and all(mine or _is_number(facts, n, 1) for n, mine in zip((one, other), own, strict=True))
        case cst.Call(func=cst.Name("int" | "float"), args=[cst.Arg(value=inner)]):
            return is_size_of_batch(facts, inner, depth)
        case cst.Call(func=cst.Attribute(inner, cst.Name("item")), args=[]):
            return is_size_of_batch(facts, inner, depth)
        case cst.Call(func=cst.Name("len"), args=[cst.Arg(value=batch)]):
            return _is_made_inside(facts, batch)
        case cst.Call(func=cst.Attribute(batch, cst.Name("sum")), args=[]):
            return (hits(facts, size) or bool(_LENGTHS.search(dotted(batch)))) and _is_made_inside(facts, batch)
        case cst.Call(func=cst.Attribute(batch, cst.Name("size" | "numel"))):
            return _is_made_inside(facts, batch)
        case cst.Subscript(value=cst.Attribute(batch, cst.Name("shape"))):
            return _is_made_inside(facts, batch)
    return False


def _picks(facts: Facts, count: cst.BaseExpression) -> bool:
    """Tell whether ``count`` is a place among the samples: ``x[at : at + 8]``, ``batch(at)``."""
    for use in (n for n in facts.script.of(type(count)) if n.deep_equals(count)):
        for up in facts.script.above(use):
            if isinstance(up, cst.SubscriptElement) or (
                isinstance(up, cst.Call) and gives(facts.flow, up, names_in(count))
            ):
                return True
            if isinstance(up, (cst.BaseCompoundStatement, cst.SimpleStatementLine)):
                break
    return False


def _is_made_inside(facts: Facts, batch: cst.BaseExpression) -> bool:
    """Tell whether ``batch`` is what a training loop takes, or makes."""
    return any(
        isinstance(n, cst.Name) and facts.script.bindings_of(n) and not _bound_outside(facts, n) for n in walk(batch)
    )


def _is_number(facts: Facts, node: cst.BaseExpression, least: int = 2) -> bool:
    """Tell whether ``node`` is a whole number, of ``least`` or more, that is alike on all ranks: ``batch * length``."""
    if isinstance(node, cst.BinaryOperation) and isinstance(node.operator, cst.Multiply):
        return _is_number(facts, node.left, 1) and _is_number(facts, node.right, 1)
    given = (a.value for c in facts.script.calls for a in c.args if a.keyword and a.keyword.value == "batch_size")
    made = [o.node for o in facts.flow.origins(node)] if isinstance(node, (cst.Name, cst.Attribute)) else [node]
    whole = bool(made) and all(isinstance(n, cst.Integer) and n.evaluated_value >= least for n in made)
    return whole or any(value.deep_equals(node) for value in given)


def of_an_epoch(facts: Facts, count: cst.BaseExpression) -> cst.BaseExpression:
    """Return the factor of ``epochs * (len(data) // size)`` that counts an epoch's steps: each rounds up its own."""
    while isinstance(count, cst.BinaryOperation) and isinstance(count.operator, cst.Multiply):
        sides = [side for side in (count.left, count.right) if all_samples(facts, side)]
        if len(sides) != 1:
            break
        count = sides[0]
    return count


def hits(facts: Facts, node: cst.CSTNode, depth: int = 0) -> bool:
    """Tell whether ``node`` is a number of samples for which something holds: ``(predicted == y).sum().item()``."""
    match node:
        case cst.Call(func=cst.Attribute(attr=cst.Name("sum"), value=value), args=args):
            return _compares(args[0].value if len(args) == 1 else value)  # torch.sum(predicted == y), too
        case cst.Call(func=cst.Attribute(attr=cst.Name(method), value=value)) if method in _SAME:
            return hits(facts, value, depth)
        case cst.Call(func=cst.Name("int" | "float"), args=[cst.Arg(value=value)]):
            return hits(facts, value, depth)
        case cst.Attribute(attr=cst.Name("data"), value=value):
            return hits(facts, value, depth)
        case cst.Name() if depth < _DEPTH:
            made = [b.written for b in facts.script.bindings_of(node)]
            return bool(made) and all(value is not None and hits(facts, value, depth + 1) for value in made)
    return False


def _compares(node: cst.CSTNode) -> bool:
    match node:
        case cst.Call(func=cst.Attribute(attr=cst.Name(method), value=value)):
            return method in ("eq", "ne", "gt", "lt", "ge", "le") or (method in _SAME and _compares(value))
        case cst.BinaryOperation(operator=cst.BitAnd() | cst.BitOr()):  # (y == c) & (predicted == y)
            return _compares(node.left) or _compares(node.right)
    return isinstance(node, cst.Comparison)
