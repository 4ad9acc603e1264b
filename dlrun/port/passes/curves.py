"""Part of step "metrics": lists of numbers from all batches that are plotted or saved whole."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial

import libcst as cst

from dlrun.port.edits import Edit
from dlrun.port.facts.boxes import contents
from dlrun.port.facts.summed import is_summed
from dlrun.port.insert import expression
from dlrun.port.passes.metrics import Metrics
from dlrun.port.passes.writes import WRITES
from dlrun.port.program.dicts import pairs
from dlrun.port.program.script import dotted, walk

_PLOTS = re.compile(r"(^|\.)(plot|scatter|semilog[xy]|loglog|fill_between|lineplot)$")
_TAKES = re.compile(r"^(torch\.save|numpy\.(array|asarray|stack)|pandas\.(DataFrame|Series))$|(^|\.)writerows$")
# What a function of the script is called that shows or saves what it is given.
_SHOWS = re.compile(r"plot|show|draw|save|write|log|visuali", re.IGNORECASE)
_MEANS = "of every batch the mean over the ranks, not rank 0's own"
_CHANGES = ("append", "extend", "insert", "clear", "pop")


def torch(metrics: Metrics) -> Iterator[Edit]:
    """Average, where it is plotted or saved, a list of numbers that every batch adds to.

    Before:
        model, losses = torch.nn.Linear(2, 1), []
        for x, y in loader:
            loss = (model(x) - y).mean()
            loss.backward()
            opt.step()
            losses.append(loss.item())
        plt.plot(losses)

    After:
        model, losses = torch.nn.Linear(2, 1), []
        for x, y in loader:
            loss = (model(x) - y).mean()
            loss.backward()
            opt.step()
            losses.append(loss.item())
        plt.plot(dl.average(losses))
    """
    for call in metrics.script.calls:
        if _shows(metrics, call) and metrics.all_ranks(call):
            for arg in call.args:
                for node in _held(arg.value):
                    lists = metrics.listed(node) or (not metrics.facts.flow.targets(call) and (
                        metrics.tabled(node) or _holds_lists(metrics, node)))  # fmt: skip
                    if is_summed(metrics.script, node):
                        continue
                    if lists and metrics.trained(node) and not metrics.sums.elsewhere(node):
                        yield Edit(node, _MEANS, metrics.wrapped)
                    elif not lists and (keys := _listed_keys(metrics, node)):
                        yield Edit(node, _MEANS, partial(_entries, metrics, keys))


def _entries(metrics: Metrics, keys: list[str], node: cst.BaseExpression) -> cst.BaseExpression:
    """Return the table ``node`` with the means over the ranks under ``keys``."""
    return expression("torch/average_entries", {"table": node}, keys=keys, dl=metrics.facts.alias)


def _shows(metrics: Metrics, call: cst.Call) -> bool:
    """Tell whether ``call`` plots or saves what it is given, and does not add to it."""
    name = metrics.script.name_of(call.func) or dotted(call.func)
    targets = metrics.facts.flow.targets(call)
    if targets:
        return all(_SHOWS.search(t.name.value) and not _fills(t) for t in targets)
    return bool(WRITES.search(name) or _TAKES.search(name) or _PLOTS.search(name))


def _fills(function: cst.FunctionDef) -> bool:
    """Tell whether ``function`` may change a list that it is given."""
    return any(isinstance(n, cst.Attribute) and n.attr.value in _CHANGES for n in walk(function))


def _holds_lists(metrics: Metrics, node: cst.BaseExpression) -> bool:
    """Tell whether ``node`` holds lists of numbers, filled by their names or numbers: ``kept["loss"].append(loss)``."""
    made = [o.node for o in metrics.facts.flow.origins(node)] if isinstance(node, (cst.Name, cst.Attribute)) else []
    several = len(made) == 1 and isinstance(made[0], (cst.List, cst.ListComp, cst.DictComp))
    if several and (lists := contents(metrics.facts.kinds, node)):
        return all(isinstance(entry, cst.List) and metrics.listed(entry) for entry in lists)
    if len(made) != 1 or not isinstance(made[0], (cst.Dict, cst.Call)):
        return False
    used = _by_key(metrics, node)
    if len(used) == 1 and all(
        isinstance(n.slice[0].slice, cst.Index) and isinstance(n.slice[0].slice.value, cst.Name) for n in used.values()
    ):  # rows[name].append(value)
        return all(map(metrics.listed, used.values()))
    if metrics.script.name_of(getattr(made[0], "func", made[0])) == "collections.defaultdict":
        return bool(used) and all(map(metrics.listed, used.values()))
    begun = {_text(metrics, key): value for key, value in pairs(made[0])}
    keys = {key for key, value in begun.items() if key in used or metrics.script.code(value) != "[]"}
    return bool(keys) and all(key in used and metrics.listed(used[key]) for key in keys)


def _listed_keys(metrics: Metrics, node: cst.BaseExpression) -> list[str]:
    """Return the keys under which ``node`` holds lists of numbers that every batch adds to, beside what is no list."""
    made = [o.node for o in metrics.facts.flow.origins(node)] if isinstance(node, (cst.Name, cst.Attribute)) else []
    if len(made) != 1 or not pairs(made[0]):
        return []
    used = _by_key(metrics, node)
    return [metrics.script.code(n.slice[0].slice) for n in used.values()
            if metrics.listed(n) and any(metrics.trained(c.args[0]) for c in metrics.scalar.lists.filled(n))
            and not metrics.sums.elsewhere(n)]  # fmt: skip


def _by_key(metrics: Metrics, node: cst.BaseExpression) -> dict[str, cst.Subscript]:
    """Return the places where the script reads or changes an entry of ``node``, one for each key."""
    places = [n for n in metrics.script.of(cst.Subscript) if metrics.script.code(n.value) == metrics.script.code(node)]
    return {_text(metrics, n.slice[0].slice): n for n in places}


def _text(metrics: Metrics, key: cst.CSTNode | None) -> str:
    """Return what stands for ``key``, in whatever quotation marks it is written; for what is put in whole ``**``."""
    key = key.value if isinstance(key, cst.Index) else key
    if key is None or isinstance(key, cst.SimpleString):
        return "**" if key is None else repr(key.evaluated_value)
    return metrics.script.code(key)


def _held(node: cst.BaseExpression) -> Iterator[cst.BaseExpression]:
    """Yield ``node``, or what it holds, where it is a dict, a list or a tuple that is written out, or made of one."""
    match node:
        case cst.ListComp() | cst.DictComp():  # {name: [float(x) for x in kept] for name, kept in history.items()}
            over = node.for_in.iter
            of = over.func if isinstance(over, cst.Call) and not over.args else None
            yield of.value if isinstance(of, cst.Attribute) and of.attr.value in ("items", "values") else over
        case cst.Dict() | cst.Call(func=cst.Name("dict")):  # dict(history), of a defaultdict(list)
            for _, value in pairs(node):
                yield from _held(value)
        case cst.Call(func=cst.Name("zip" | "list"), args=parts):  # zip(*rows.values())
            for part in parts:
                yield from _held(part.value)
        case cst.Call(func=cst.Attribute(value=table, attr=cst.Name("values" | "items")), args=[]):
            yield table
        case cst.List() | cst.Tuple():
            for element in node.elements:
                yield from _held(element.value)
        case _:
            yield node
