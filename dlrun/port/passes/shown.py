"""Part of step "metrics": numbers from training batches that are printed or logged."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from dlrun.port.edits import Doubt, Edit
from dlrun.port.facts.formats import numbers
from dlrun.port.passes import meters
from dlrun.port.passes.metrics import Metrics
from dlrun.port.program.script import walk

_LOGS = ("set_postfix", "set_description", "set_postfix_str", "add_scalar", "add_scalars", "log", "info", "log_value",
         "scalar_summary", "scalar", "write", "writerow", "track")  # fmt: skip


def torch(metrics: Metrics) -> Iterator[Edit | Doubt]:
    """Yield averages for numbers from training batches that are printed or logged."""
    training = _around(metrics, [metrics.script.function_of(loop) for loop in metrics.facts.loops])
    known: set[cst.CSTNode] = set()  # texts that were shown before
    for call in metrics.script.calls:
        logs = isinstance(call.func, cst.Attribute) and call.func.attr.value in _LOGS
        if not logs and not metrics.script.name_of(call.func).endswith(("builtins.print", ".log_value")):
            continue
        if metrics.script.function_of(call) in training and metrics.all_ranks(call):
            texts = [text for text in dict.fromkeys(_texts(metrics, call)) if text not in known]
            known.update(texts)
            for made in (call, *texts):
                metrics.formatted.update(numbers(made))
            yield from meters.shown(metrics, call)
            yield from meters.counts(metrics, call)
            for value in (v for node in (*(arg.value for arg in call.args), *texts) for v in metrics.values(node)):
                if metrics.sums.alone(value):
                    yield Edit(value, "the sum over the ranks, not rank 0's own", metrics.totalled)
                elif (curved := metrics.curved(value)) is None:
                    yield Edit(value, "the mean over the ranks, not rank 0's own", metrics.wrapped)
                elif curved not in metrics.inner:
                    metrics.inner.add(curved)
                    yield Edit(curved, "of the mean over the ranks, not the mean of the ranks' own", metrics.wrapped)


def _texts(metrics: Metrics, call: cst.Call) -> Iterator[cst.BaseExpression]:
    """Yield the texts that ``call`` shows and that were put together before: ``line = f"{loss:.3f}"``."""
    script = metrics.script
    for name in (n for arg in call.args for n in walk(arg.value) if isinstance(n, cst.Name)):
        bound = script.scopes[name].lookup(name.value)[0]
        for value in (b.written for b in bound if b.how == "assign"):
            if value is not None and _is_text(value) and script.function_of(value) is script.function_of(call):
                yield from [value] if metrics.all_ranks(value) else ()


def _is_text(node: cst.BaseExpression) -> bool:
    """Tell whether ``node`` puts a text together."""
    match node:
        case cst.FormattedString() | cst.SimpleString() | cst.ConcatenatedString():
            return True
        case cst.BinaryOperation(left=left, operator=cst.Modulo() | cst.Add()):
            return _is_text(left)
        case cst.Call(func=cst.Attribute(value=text, attr=cst.Name("format" | "join"))):
            return _is_text(text)
    return False


def _around(metrics: Metrics, functions: list[cst.FunctionDef | cst.Module]) -> set[cst.CSTNode]:
    """Return ``functions`` and those that call them, directly or not."""
    found: set[cst.CSTNode] = set()
    while functions:
        function = functions.pop()
        if function not in found:
            found.add(function)
            functions.extend(metrics.script.function_of(call) for call in metrics.facts.flow.callers(function))
    return found
