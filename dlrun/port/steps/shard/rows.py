"""Part of step "shard": the batch size in the shapes of what a global batch is computed with.

Of each serial batch a rank has 1/n. Labels, noise and states that are made with ``batch_size`` rows meet it: each rank
makes its part of the rows. What is only shown, or evaluated without gradients, keeps the whole size.
"""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from dlrun.port.edits import Edit
from dlrun.port.facts import Facts
from dlrun.port.facts.taint import without_gradients
from dlrun.port.insert import expression
from dlrun.port.placement.interpret.parts import is_of_samples
from dlrun.port.program.script import argument, calls_method, dotted, walk

_DEPTH = 3  # functions through which the size is handed on
_WHY = "each rank has 1/n of the samples of a batch"
# Functions of libraries that make arrays of a shape, and methods, of whatever library, that are given one.
_MAKERS = frozenset(
    {
        *("ones", "zeros", "full", "empty", "rand", "randn", "randint", "normal", "uniform", "arange", "Tensor"),
        *("FloatTensor", "LongTensor", "random", "standard_normal", "tile", "eye", "linspace", "fill", "range"),
        *("truncated_normal", "stateless_normal", "stateless_uniform", "repeat_interleave", "broadcast_to"),
    }
)
_METHODS = frozenset(
    {
        *("new_ones", "new_zeros", "new_full", "new_empty", "new_tensor", "new", "sample", "rsample", "unflatten"),
        *("view", "reshape", "expand", "repeat", "resize_"),
    }
)
_LIBRARIES = ("torch", "numpy", "tensorflow", "keras")


def parts(facts: Facts) -> Iterator[Edit]:
    """Make batch sizes in shapes those of this rank's part, where a training loop computes with what has them.

    Before:
        real = torch.ones(batch_size, 1)
        for x, _ in loader:
            z = torch.randn(batch_size, 16)
            loss = bce(D(x), real) + bce(D(G(z)), 1 - real)

    After:
        real = torch.ones(dl.part(batch_size), 1)
        for x, _ in loader:
            z = torch.randn(dl.part(batch_size), 16)
            loss = bce(D(x), real) + bce(D(G(z)), 1 - real)
    """
    for node in local_sizes(facts):
        yield Edit(node, _WHY, lambda size: expression("torch/cut", {"batch": size}, dl=facts.alias, summed=False))


def local_sizes(facts: Facts) -> list[cst.BaseExpression]:
    """Return the batch sizes in shapes that are to be those of a rank's part."""
    found: dict[cst.BaseExpression, None] = {}
    for feed in facts.feeds:
        size = of_batches(facts, feed.node)
        if size is None:
            continue
        made = set(facts.flow.through(size))
        for kind in (cst.Name, cst.Attribute, cst.Integer):
            for node in facts.script.of(kind):
                shape = node is not size and _is_shape(facts, node)
                if shape and _is_size(facts, node, size, made) and _is_computed_with(facts, node):
                    found[node] = None
    return [n for n in found if not any(o in found for o in facts.flow.through(n) if o is not n)]  # where it is given


def of_batches(facts: Facts, node: cst.CSTNode) -> cst.BaseExpression | None:
    """Return what a loader, a data set, or a function of the program that yields batches, is given as their size."""
    if hasattr(facts, "style"):
        return _of_data_set(facts, node)
    if not isinstance(node, cst.Call):
        return None
    targets = facts.flow.targets(node)
    given = [facts.flow.argument(node, t, "batch_size") for t in targets if isinstance(t, cst.FunctionDef)]
    sizes = [argument(node, "batch_size", 1 if facts.kinds.of_call(node) == "loader" else -1), *given]
    return next((size for size in sizes if size is not None), None)


def _of_data_set(facts: Facts, node: cst.CSTNode) -> cst.BaseExpression | None:
    """Return the size of the batches of a data set of TensorFlow: of ``data.shuffle(96).batch(12)`` 12."""
    seen: dict[cst.CSTNode, None] = {}
    todo: list[cst.CSTNode] = [node]
    while todo:
        at = todo.pop()
        if at in seen:
            continue
        seen[at] = None
        todo += [n for n in facts.flow.through(at) if n is not at]
        if isinstance(at, cst.Call):
            if calls_method(at, "batch"):
                return argument(at, "batch_size", 0)
            todo += [at.func.value] if isinstance(at.func, cst.Attribute) else [a.value for a in at.args[:1]]
    return None


def _is_size(facts: Facts, node: cst.BaseExpression, size: cst.BaseExpression, made: set[cst.CSTNode]) -> bool:
    """Tell whether ``node`` is read as the batch size: the same variable, or a number written alike."""
    if isinstance(node, cst.Integer):
        written = isinstance(size, cst.Integer) and size.evaluated_value == node.evaluated_value
        return written and node.evaluated_value > 1 and _is_first(facts, node)
    if isinstance(size, cst.Integer) or (isinstance(node, cst.Name) and _is_bound(facts, node)):
        return False
    if isinstance(node, cst.Attribute):
        return dotted(node) != "" and dotted(node) == dotted(size)
    same = {n for n in facts.flow.through(node) if n is not node} & made
    return bool(same) or (isinstance(size, cst.Name) and bool(_bindings(facts, node) & _bindings(facts, size)))


def _bindings(facts: Facts, node: cst.CSTNode) -> set[tuple[cst.CSTNode, object]]:
    """Return where a name is bound, and as which part of that: ``n, batch_size = 96, 12`` binds two."""
    return {(b.node, b.path) for b in facts.script.bindings_of(node)}


def _is_bound(facts: Facts, node: cst.Name) -> bool:
    """Tell whether a name is written to here, or is the name of an attribute or of an argument."""
    up = facts.script.parents[node]
    match up:
        case cst.Attribute(attr=attr):
            return attr is node
        case cst.Arg(keyword=keyword):
            return keyword is node
        case cst.AssignTarget() | cst.Param() | cst.AnnAssign() | cst.AugAssign():
            return True
    return False


def _is_first(facts: Facts, node: cst.CSTNode) -> bool:
    """Tell whether a number is the first of a shape, and the whole entry."""
    up = facts.script.parents[node]
    if isinstance(up, cst.Element):
        shape = facts.script.parents[up]
        return isinstance(shape, (cst.Tuple, cst.List)) and up in shape.elements[:1]
    call = facts.script.parents[up]
    return isinstance(up, cst.Arg) and isinstance(call, cst.Call) and up in call.args[:1]


def _is_shape(facts: Facts, node: cst.CSTNode, depth: int = _DEPTH) -> bool:
    """Tell whether ``node`` is a dimension of what an array function makes, also in a function that it is given to."""
    up, arg = facts.script.parents[node], node
    while isinstance(up, (cst.Element, cst.Tuple, cst.List)) or (
        isinstance(up, cst.BinaryOperation) and isinstance(up.operator, cst.Multiply)
    ):
        arg, up = up, facts.script.parents[up]
    call = facts.script.parents[up]
    if not isinstance(up, cst.Arg) or not isinstance(call, cst.Call):
        return False
    targets = [t for t in facts.flow.targets(call) if isinstance(t, cst.FunctionDef)]
    if targets:
        return arg is node and depth > 0 and all(_shapes(facts, t, call, node, depth - 1) for t in targets)
    name = facts.script.name_of(call.func)
    last = (name or dotted(call.func)).rpartition(".")[2] or getattr(getattr(call.func, "attr", None), "value", "")
    return last in _METHODS or (last in _MAKERS and name.partition(".")[0] in _LIBRARIES)


def _shapes(facts: Facts, function: cst.FunctionDef, call: cst.Call, given: cst.CSTNode, depth: int) -> bool:
    """Tell whether ``function`` has no use for ``given`` but as a dimension."""
    params = [p.name for p in (*function.params.params, *function.params.kwonly_params)]
    mine = [p for p in params if facts.flow.argument(call, function, p.value) is given]
    uses = [
        n
        for p in mine
        for n in walk(function.body)
        if isinstance(n, cst.Name) and n.value == p.value and not _is_bound(facts, n)
    ]
    return bool(mine) and bool(uses) and all(_is_shape(facts, n, depth) for n in uses)


def _is_computed_with(facts: Facts, node: cst.CSTNode) -> bool:
    """Tell whether a training loop computes its loss with what has ``node`` rows."""
    if any(facts.script.inside(node, loop.body) for loop in facts.loops):
        return not without_gradients(facts.script, node)
    function = facts.script.function_of(node)
    if function is not None and (calls := [c for c in facts.script.calls if function in facts.flow.targets(c)]):
        inside = [any(facts.script.inside(c, loop.body) for loop in facts.loops) for c in calls]
        if any(inside):
            return all(inside) and not any(without_gradients(facts.script, c) for c in (*calls, node))
    statement = facts.script.statement_of(node)
    made = {n for n in walk(statement) if isinstance(n, cst.Call) and facts.script.inside(node, n)}
    uses = [
        n
        for loop in facts.loops
        for body in facts.flow.bodies(loop.body)
        for n in walk(body)
        if isinstance(n, (cst.Name, cst.Attribute)) and made.intersection(facts.flow.through(n))
    ]
    return any(_meets_samples(facts, n) for n in uses)


def _meets_samples(facts: Facts, node: cst.CSTNode) -> bool:
    """Tell whether ``node`` is computed with beside what has an entry for each sample: ``bce(D(x), real)``."""
    from dlrun.port.placement.torch import interpreted

    run, up = interpreted(facts), facts.script.parents[node]
    match up:
        case cst.Arg():
            call = facts.script.parents[up]
            beside = [a.value for a in getattr(call, "args", ()) if a is not up]
        case cst.BinaryOperation(left=left, right=right):
            beside = [right if left is node else left]
        case cst.Attribute() if isinstance(call := facts.script.parents[up], cst.Call):  # onehot.scatter_(1, y, 1)
            beside = [a.value for a in call.args]
        case cst.Index() if isinstance(row := facts.script.parents[facts.script.parents[up]], cst.Subscript):
            beside = [row.value, *(n for e in row.slice for n in walk(e) if isinstance(n, cst.Name) and n is not node)]
        case _:
            beside = []
    return any(is_of_samples(v, v.place) for n in beside for v in run.seen.get(n, ()))
