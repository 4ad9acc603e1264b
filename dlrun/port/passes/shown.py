"""Part of step "metrics": numbers from training batches that are printed, logged or saved."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from dlrun.port.edits import Doubt, Edit
from dlrun.port.facts.bends import CURVED
from dlrun.port.facts.formats import numbers
from dlrun.port.passes import meters
from dlrun.port.passes.extremes import of_all
from dlrun.port.passes.metrics import Metrics
from dlrun.port.passes.writes import SAVES, WRITES
from dlrun.port.program.dicts import pairs
from dlrun.port.program.script import argument, dotted, walk

_LOGS = ("set_postfix", "set_description", "set_postfix_str", "add_scalar", "add_scalars", "log", "info", "log_value",
         "scalar_summary", "scalar", "write", "writerow", "track", "debug", "warning",
         "log_metric", "log_metrics", "execute", "executemany")  # fmt: skip
_PRINTS = ("builtins.print", ".log_value", ".Summary.Value")
_NAMED = ("torch.save", "os.makedirs", "os.mkdir", "builtins.open")  # and files by numbers: f"{loss:.3f}.pt"
_ONE_NUMBER = ("add_scalar", "log_value", "scalar_summary", "log_metric")  # of these the second argument


def torch(metrics: Metrics) -> Iterator[Edit | Doubt]:
    """Yield averages for numbers from training batches that are printed, logged or saved."""
    done: set[cst.CSTNode] = set()
    closures = [step.closure for step in metrics.facts.steps if step.closure is not None]
    training = _around(metrics, [*closures, *(metrics.script.function_of(loop) for loop in metrics.facts.loops)])
    training |= _within(metrics, training)
    for call in metrics.script.calls:
        if metrics.script.function_of(call) not in training or not metrics.all_ranks(call):
            continue
        given = [arg.value for arg in call.args]
        if not shows(metrics, call.func):
            given = [value for value in _handed_on(metrics, call) if _is_text(value) or isinstance(value, cst.Name)]
            shown = [*filter(_is_text, given), *texts(metrics, given)]
        else:
            if dotted(call.func).rsplit(".", 1)[-1] in _ONE_NUMBER:
                second = (argument(call, name, 1) for name in ("scalar_value", "value"))
                metrics.formatted.update(value for value in second if value is not None)
            shown = list(texts(metrics, given))
            for table in [t for t in shown if isinstance(t, cst.DictComp) and t not in done]:
                done.add(table)
                yield from (told := list(_taken(metrics, table, [table])))
                if told:  # by its name it is shown as it is
                    names = (n for n in metrics.script.of(cst.Name) if n in metrics.script.scopes)
                    metrics.cut(n for n in names if any(b.written is table for b in metrics.script.bindings_of(n)))
            yield from _taken(metrics, call, given)
        for text in dict.fromkeys(text for text in shown if text not in done):
            done.add(text)
            yield from _taken(metrics, text, [text])


def _handed_on(metrics: Metrics, call: cst.Call, depth: int = 3) -> Iterator[cst.BaseExpression]:
    """Yield what ``call`` gives a function of the program that prints or logs it: ``def log(text): print(text)``."""
    for function in metrics.facts.flow.targets(call) if depth else ():
        for inner in (n for n in walk(function.body) if isinstance(n, cst.Call)):
            said = shows(metrics, inner.func)
            told = [a.value for a in inner.args] if said else _handed_on(metrics, inner, depth - 1)
            for name in (n for value in told for n in walk(value) if isinstance(n, cst.Name)):
                if any(b.how == "param" for b in metrics.script.bindings_of(name)):
                    given = metrics.facts.flow.argument(call, function, name.value)
                    yield from [given] if given is not None else []


def shows(metrics: Metrics, func: cst.BaseExpression) -> bool:
    """Tell whether ``func`` prints, logs or saves, by whatever name: ``say = logger.info``, ``def f(say=print)``."""
    made = [o.node for o in metrics.facts.flow.origins(func)] if isinstance(func, cst.Name) else []
    names = [metrics.script.name_of(n) for n in (func, *made)]
    logs = any(isinstance(n, cst.Attribute) and n.attr.value in _LOGS and name not in CURVED
               for n, name in zip((func, *made), names, strict=True))  # fmt: skip
    prints = any(name.endswith(_PRINTS) or name == "tensorflow.print" for name in names)
    saves = any(name in _NAMED or WRITES.search(name) or SAVES.search(name) for name in names)
    return logs or prints or saves or _is_of_visdom(metrics, func)


def _is_of_visdom(metrics: Metrics, func: cst.BaseExpression) -> bool:
    """Tell whether ``func`` draws on a Visdom board: ``viz.line([loss.item()], [step])``."""
    if not isinstance(func, cst.Attribute) or func.attr.value not in ("line", "scatter", "bar", "text"):
        return False
    made = [o.node for o in metrics.facts.flow.origins(func.value)]
    return any(isinstance(n, cst.Call) and metrics.script.name_of(n.func).startswith("visdom.") for n in made)


def _taken(metrics: Metrics, node: cst.CSTNode, parts: list[cst.BaseExpression]) -> Iterator[Edit]:
    """Yield the averages of what ``node``, made of ``parts``, shows."""
    metrics.formatted.update(numbers(node))
    yield from meters.shown(metrics, node)
    counted = list(meters.counts(metrics, node))
    yield from (Edit(n, "the samples of all ranks, not rank 0's own", metrics.total_of(n)) for n in counted)
    for value in (v for part in parts for v in metrics.values(part) if v not in counted):
        if (extremes := of_all(metrics, value)) is not None:
            yield from extremes
        elif metrics.sums.alone(value) or metrics.sums.of_whole(value):
            yield Edit(value, "the sum over the ranks, not rank 0's own", metrics.total_of(value))
        elif (curved := metrics.curved(value)) is None:
            yield Edit(value, "the mean over the ranks, not rank 0's own", metrics.wrapped)
        elif curved not in metrics.inner:
            metrics.inner.add(curved)
            yield Edit(curved, "of the mean over the ranks, not the mean of the ranks' own", metrics.wrapped)


def texts(metrics: Metrics, given: list[cst.BaseExpression]) -> Iterator[cst.BaseExpression]:
    """Yield the texts and tables in ``given`` by a name, or by what a function returns, where all ranks make them.

    ``line = f"{loss:.3f}"; print(line)``, ``log[epoch] = {**train(), **test()}``.
    """
    for node in (n for part in given for n in walk(part)):
        values: list[cst.BaseExpression] = []
        for binding in metrics.script.bindings_of(node) if isinstance(node, cst.Name) else ():
            added = isinstance(binding.node, cst.AugAssign)  # line += f" {loss}"
            value = binding.value if added else binding.written if binding.how == "assign" else None
            values.extend([value] if isinstance(value, cst.BaseExpression) else [])
            if binding.value is not None and binding.path:
                values += metrics.facts.flow.entries(binding.value, binding.path)
        returned = [r for v in (node, *values) if isinstance(v, cst.Call) for r in _returned(metrics, v)]
        for made in (*values, *returned):
            known = _is_text(made) or metrics.entries.numbers(made, metrics.scalar)
            if known and metrics.all_ranks(made) and not metrics.has_gradients(made):
                yield made


def _returned(metrics: Metrics, call: cst.Call) -> Iterator[cst.BaseExpression]:
    """Yield what ``call`` returns, if all ranks come to all calls of its function together."""
    for function in metrics.facts.flow.targets(call):
        if all(map(metrics.all_ranks, metrics.facts.flow.callers(function))):
            for end in metrics.facts.flow.returns(function):
                bindings = metrics.script.bindings_of(end) if isinstance(end, cst.Name) else ()
                only = bindings[0].written if len(bindings) == 1 else None
                filled = metrics.entries.numbers(end, metrics.scalar)
                yield only if only is not None and pairs(only) and not filled else end


def _is_text(node: cst.CSTNode) -> bool:
    """Tell whether ``node`` puts values into a text, or under the texts that name them."""
    if entries := pairs(node):
        return isinstance(entries[0][0], cst.SimpleString)
    match node:
        case cst.BinaryOperation(operator=cst.Add()):
            return _is_text(node.left) or _is_text(node.right)
        case cst.BinaryOperation(operator=cst.Modulo(), left=left):
            return isinstance(left, (cst.SimpleString, cst.ConcatenatedString))
        case cst.BinaryOperation(operator=cst.Divide()):  # folder / f"{loss:.3f}"
            return _is_text(node.right)
        case cst.Call(func=cst.Attribute(attr=cst.Name("format" | "join"))):
            return True
    return isinstance(node, (cst.FormattedString, cst.ConcatenatedString, cst.SimpleString, cst.DictComp))


def _within(metrics: Metrics, training: set[cst.CSTNode]) -> set[cst.CSTNode]:
    """Return the functions that loops which train call, directly or not, where all ranks come to all calls of them."""
    flow, script = metrics.facts.flow, metrics.script
    found: set[cst.CSTNode] = set()
    bodies: list[cst.CSTNode] = [loop.body for loop in metrics.facts.loops]
    while bodies:
        calls = [n for n in walk(bodies.pop()) if isinstance(n, cst.Call)]
        for function in dict.fromkeys(t for call in calls for t in flow.targets(call) if t not in found | training):
            if all(script.function_of(c) in found | training and metrics.all_ranks(c) for c in flow.callers(function)):
                found.add(function)
                bodies.append(function.body)
    return found


def _around(metrics: Metrics, functions: list[cst.FunctionDef | cst.Module]) -> set[cst.CSTNode]:
    """Return ``functions`` and those that call them, directly or not."""
    found: set[cst.CSTNode] = set()
    while functions:
        function = functions.pop()
        if function not in found:
            found.add(function)
            functions.extend(metrics.script.function_of(call) for call in metrics.facts.flow.callers(function))
    return found
