"""Part of step "metrics": numbers from training batches that are printed or logged."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from dlrun.port.edits import Doubt, Edit
from dlrun.port.facts.formats import numbers
from dlrun.port.passes import meters
from dlrun.port.passes.metrics import Metrics

_LOGS = ("set_postfix", "set_description", "set_postfix_str", "add_scalar", "add_scalars", "log", "info", "log_value",
         "scalar_summary", "scalar", "write", "writerow", "track")  # fmt: skip


def torch(metrics: Metrics) -> Iterator[Edit | Doubt]:
    """Yield averages for numbers from training batches that are printed or logged."""
    training = _around(metrics, [metrics.script.function_of(loop) for loop in metrics.facts.loops])
    for call in metrics.script.calls:
        logs = isinstance(call.func, cst.Attribute) and call.func.attr.value in _LOGS
        if not logs and not metrics.script.name_of(call.func).endswith(("builtins.print", ".log_value")):
            continue
        if metrics.script.function_of(call) in training and metrics.all_ranks(call):
            metrics.formatted.update(numbers(call))
            yield from meters.shown(metrics, call)
            yield from meters.counts(metrics, call)
            for value in (v for arg in call.args for v in metrics.values(arg.value)):
                if metrics.sums.alone(value):
                    yield Edit(value, "the sum over the ranks, not rank 0's own", metrics.totalled)
                elif (curved := metrics.curved(value)) is None:
                    yield Edit(value, "the mean over the ranks, not rank 0's own", metrics.wrapped)
                elif curved not in metrics.inner:
                    metrics.inner.add(curved)
                    yield Edit(curved, "of the mean over the ranks, not the mean of the ranks' own", metrics.wrapped)


def _around(metrics: Metrics, functions: list[cst.FunctionDef | cst.Module]) -> set[cst.CSTNode]:
    """Return ``functions`` and those that call them, directly or not."""
    found: set[cst.CSTNode] = set()
    while functions:
        function = functions.pop()
        if function not in found:
            found.add(function)
            functions.extend(metrics.script.function_of(call) for call in metrics.facts.flow.callers(function))
    return found
