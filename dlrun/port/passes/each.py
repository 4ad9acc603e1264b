"""Part of step "metrics": what comprehensions make of numbers, as many on all ranks: ``f"{v}" for v in means``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from dlrun.port.program.dicts import pairs
from dlrun.port.program.script import added, calls_method, dotted, names_in, walk

if TYPE_CHECKING:
    from dlrun.port.passes.metrics import Metrics


def each(
    metrics: Metrics, made: cst.ListComp | cst.GeneratorExp | cst.DictComp, depth: int = 3
) -> list[cst.BaseExpression]:
    """Return that in ``made`` which holds its numbers, if all ranks make as many: ``str(v) for v in (a, b)``."""
    turns, entries = made.for_in, made.for_in.iter
    keys = names_in(turns.target.elements[0]) if isinstance(turns.target, cst.Tuple) else set()
    if turns.inner_for_in is not None or any(names_in(i.test) - keys for i in turns.ifs):  # if key != "count"
        return []
    part = made.value if isinstance(made, cst.DictComp) else made.elt
    counts = isinstance(entries, cst.Call) and metrics.script.name_of(entries.func) == "builtins.range"
    if isinstance(entries, cst.SimpleString) or (counts and not any(map(metrics.facts.unequal, walk(entries)))):
        return [part]
    if isinstance(entries, (cst.List, cst.Tuple)):
        return [part if all(isinstance(e.value, cst.SimpleString) for e in entries.elements) else entries]
    boxes: list[cst.BaseExpression] = [entries]
    if isinstance(entries, cst.Call) and metrics.script.name_of(entries.func) == "builtins.zip":
        boxes = [arg.value for arg in entries.args]
    elif isinstance(entries, cst.Call) and isinstance(entries.func, cst.Attribute):
        boxes = [entries.func.value] if entries.func.attr.value in ("items", "values") else []
    tables = [o.node for box in boxes for o in metrics.facts.flow.origins(box)]
    alike = all(_is_as_long(metrics, t, depth) for t in tables) or all(_fill_together(metrics, box) for box in boxes)
    return [part] if tables and alike else []


def _fill_together(metrics: Metrics, box: cst.BaseExpression) -> bool:
    """Tell whether all ranks fill the entries of the dict ``box`` together: ``logs[key].append(loss)``, ``+= loss``."""
    bound = metrics.script.bindings_of(box) if isinstance(box, cst.Name) else []
    named = (n for n in metrics.script.named(dotted(box)) if bound and metrics.script.bindings_of(n) == bound)
    entries = [up for n in named if isinstance(up := metrics.script.parents[n], cst.Subscript) and up.value is n]
    fills = [(up, entry) for entry in entries for up in metrics.script.above(entry)
             if (calls_method(up, "append", "extend") and up.func.value is entry)
             or ((grown := added(up)) is not None and grown[0] is entry)
             ]  # fmt: skip
    keys = [n for _, entry in fills for n in walk(entry.slice[0])]
    alike = not any(map(metrics.facts.unequal, keys))  # not hits[label] += 1
    return bool(fills) and alike and all(metrics.all_ranks(_around(metrics, fill)) for fill, _ in fills)


def _around(metrics: Metrics, fill: cst.CSTNode) -> cst.CSTNode:
    """Return the loop over the entries of a dict that runs ``fill``: ``for key, value in step(x).items():``."""
    line = metrics.script.line_of(metrics.script.statement_of(fill))
    up = metrics.script.parents[metrics.script.parents[line]]
    return up if isinstance(up, cst.For) and calls_method(up.iter, "items", "keys") else fill


def _is_as_long(metrics: Metrics, made: cst.CSTNode, depth: int) -> bool:
    """Tell whether ``made`` is a box that holds as much on all ranks: written out, or made of such a one."""
    match made:
        case cst.List() | cst.Tuple():
            return bool(made.elements)
        case cst.DictComp() | cst.ListComp():
            return depth > 0 and bool(each(metrics, made, depth - 1))
        case cst.BinaryOperation(left=cst.List(), operator=cst.Multiply()):  # [0.0] * 10
            return not metrics.facts.unequal(made)
    return isinstance(made, cst.SimpleString) or bool(pairs(made) or metrics.facts.flow.keyworded(made))
