"""Part of step "metrics": numbers that are kept over the epochs, in a history that is saved or plotted."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from dlrun.port.edits import Doubt, Edit
from dlrun.port.facts.bends import bent
from dlrun.port.insert import statements
from dlrun.port.passes import shown
from dlrun.port.passes.counters import runs_inside
from dlrun.port.passes.metrics import Metrics
from dlrun.port.program.dicts import pairs
from dlrun.port.program.script import Binding, calls_method, dotted, walk

_SUM = "kept over the epochs: the sum over the ranks, not rank 0's"
_KEEPS = ("append", "extend", "update", "writerow", "setdefault")


def torch(metrics: Metrics) -> Iterator[Edit | Doubt]:
    """Average a rank's own number once, where it is bound, if it is kept; an expression, where it is kept.

    Before:
        model = torch.nn.Linear(2, 1)
        for epoch in range(9):
            for x, y in loader:
                loss = (model(x) - y).mean()
                loss.backward()
                opt.step()
            last = loss.item()
            print(epoch, last)
            history.append(last)

    After:
        model = torch.nn.Linear(2, 1)
        for epoch in range(9):
            for x, y in loader:
                loss = (model(x) - y).mean()
                loss.backward()
                opt.step()
            last = dl.average(loss.item())
            print(epoch, last)
            history.append(last)
    """
    script = metrics.script
    why = "kept over the epochs: the mean over the ranks, not rank 0's own"
    kept: list[cst.BaseExpression] = []
    for sink in _sinks(metrics):
        tables = [v for table in shown.texts(metrics, [sink]) for v in metrics.values(table) if v not in kept]
        if tables:
            metrics.cut([*kept, *tables])  # what is averaged where a table holds it is not averaged again here
        for value in (*tables, *metrics.values(sink)):
            if value in kept:
                continue
            kept.append(value)
            binding, alone = _binding(metrics, value), metrics.sums.alone(value)
            if binding is None or (alone and binding.path):
                yield Edit(value, _SUM if alone else why, metrics.total_of(value) if alone else metrics.wrapped)
                continue
            metrics.averaged[script.function_of(value), script.code(value)] = script.order[binding.node]
            if alone and binding.value is not None:
                yield Edit(binding.value, _SUM, metrics.total_of(value))
            elif not binding.path and binding.value is not None:
                yield Edit(bent(script, binding.value) or binding.value, why, metrics.wrapped)
            else:
                lines = statements("torch/average_kept", dl=metrics.facts.alias, name=script.code(value))
                yield Edit(script.line_of(binding.node), why, after=lines)
    if kept:
        metrics.cut(kept)


def _sinks(metrics: Metrics) -> Iterator[cst.BaseExpression]:
    """Yield the expressions that loops over epochs keep: in a list, under a key, in a row of a table."""
    script, loops = metrics.script, metrics.facts.loops
    outer = {loop for loop in loops if runs_inside(metrics.facts, loop.body)}
    for node in script.nodes:
        values: list[cst.BaseExpression] = []
        if _keeps(node):
            values = _put(node)
        elif isinstance(node, cst.Call):
            values = list(_handed_on(metrics, node))
        elif isinstance(node, cst.Assign) and (isinstance(node.value, (cst.List, cst.Dict)) or pairs(node.value)):
            values = [node.value]  # row = [epoch, loss, accuracy]
        elif isinstance(node, cst.AugAssign):  # all_losses += losses
            written = isinstance(node.value, (cst.List, cst.Tuple))  # kept["loss"] += [loss]
            values = [node.value] if written or metrics.listed(node.value) else []
        if values:
            loop = next((u for u in script.above(node) if isinstance(u, (cst.For, cst.While, cst.FunctionDef))), None)
            if isinstance(loop, cst.For) and loop not in outer:  # for name, value in (("loss", loss), ("acc", acc)):
                values, node = [n for value in values for n in _listed(metrics, loop, value)], loop
                loop = next((u for u in script.above(loop) if isinstance(u, (cst.For, cst.While))), None)
            if loop in outer and metrics.all_ranks(node):
                yield from (value for value in values if not metrics.has_gradients(value))


def _keeps(node: cst.CSTNode) -> bool:
    """Tell whether ``node`` puts something into a list, under a key, or into a table."""
    under = isinstance(node, cst.Assign) and isinstance(node.targets[0].target, cst.Subscript)
    return under or calls_method(node, *_KEEPS)


def _put(node: cst.CSTNode) -> list[cst.BaseExpression]:
    """Return what it puts there."""
    return [node.value] if isinstance(node, cst.Assign) else [a.value for a in node.args]  # type: ignore[attr-defined]


def _handed_on(metrics: Metrics, call: cst.Call) -> Iterator[cst.BaseExpression]:
    """Yield what ``call`` gives a function of the program that keeps it: ``def add(self, x): self.kept.append(x)``."""
    flow = metrics.facts.flow
    for function in flow.targets(call):
        put = [value for node in walk(function.body) if _keeps(node) for value in _put(node)]
        if not put or function in metrics.facts.parts:
            continue
        nodes = [n for value in put for n in walk(value) if isinstance(n, cst.Name)]
        turned = [b.value for n in nodes for b in metrics.script.bindings_of(n) if b.path[:1] == ("each",)]
        nodes += [n for value in turned if value is not None for n in walk(value) if isinstance(n, cst.Name)]
        bound = {b.node for n in nodes for b in metrics.script.bindings_of(n) if b.how == "param"}
        named = {p.name.value for p in bound if isinstance(p, cst.Param) and p is not function.params.star_kwarg}
        given = (flow.argument(call, function, name) for name in named)
        yield from (value for value in given if value is not None)
        if function.params.star_kwarg in bound:
            yield from flow.keyworded_by(call, function)


def _listed(metrics: Metrics, loop: cst.For, value: cst.BaseExpression) -> list[cst.BaseExpression]:
    """Return what ``value``, which ``loop`` binds, is in one turn after the other, where this is written out."""
    target = loop.target.elements if isinstance(loop.target, cst.Tuple) else ()
    at = next((i for i, e in enumerate(target) if isinstance(value, cst.Name) and dotted(e.value) == value.value), -1)
    match loop.iter:
        case _ if at < 0:
            return []
        case cst.Tuple(elements=rows) | cst.List(elements=rows):
            cells = [r.value.elements[at].value for r in rows
                     if isinstance(r.value, (cst.Tuple, cst.List)) and at < len(r.value.elements)]  # fmt: skip
            return cells if len(cells) == len(rows) else []
        case cst.Call(args=columns) if metrics.script.name_of(loop.iter.func) == "builtins.zip" and at < len(columns):
            column = columns[at].value
            return [e.value for e in column.elements] if isinstance(column, (cst.Tuple, cst.List)) else []
        case cst.Call(func=cst.Attribute(value=table, attr=cst.Name("items"))) if at == 1:
            return [v for _, v in pairs(table)]
    return []


def _binding(metrics: Metrics, value: cst.BaseExpression) -> Binding | None:
    """Return the one plain assignment that gives the name ``value`` its value, if all ranks come to it."""
    if not isinstance(value, cst.Name) or metrics.listed(value) or metrics.entries.numbers(value, metrics.scalar):
        return None
    bindings, scope = metrics.script.scopes[value].lookup(value.value)
    if len(bindings) != 1 or scope is not metrics.script.scopes[value]:
        return None
    only = bindings[0]
    plain = only.how == "assign" and isinstance(only.node, cst.Assign) and len(only.node.targets) == 1
    script, loops = metrics.script, metrics.facts.loops
    inner = any(up in loops and not script.inside(value, up) for up in script.above(only.node))  # backward() needs it
    return only if plain and not inner and "part" not in only.path and metrics.all_ranks(only.node) else None
