"""Part of step "metrics": the greatest and the least so far of training batches, ``best = min(best, loss.item())``."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from dlrun.port.edits import Edit
from dlrun.port.insert import expression
from dlrun.port.passes.metrics import Metrics
from dlrun.port.program.script import dotted, walk

_LEAST = ("min", "amin", "minimum")
_GREATEST = ("max", "amax", "maximum")


def of_all(metrics: Metrics, value: cst.BaseExpression) -> list[Edit] | None:
    """Return the edits that make ``value``, an extreme so far that is shown, that of all ranks; None where it is none.

    The least of the batches' losses is that of the means over the ranks, which all take part in a batch; the greatest
    error of a sample is the greatest on any rank.
    """
    kept = list(_kept(metrics, value))
    if not kept or not all(metrics.all_ranks(call) for call, _ in kept):
        return None
    which = kept[0][0].func.value  # type: ignore[attr-defined]
    if all(_is_extreme(metrics, other, which) for _, other in kept):

        def widest(node: cst.BaseExpression) -> cst.BaseExpression:
            return expression("torch/extreme", {"value": node}, which=which, dl=metrics.facts.alias)

        return [Edit(value, "of the samples of all ranks, not of rank 0's own", widest)]
    new = [other for _, other in kept if other not in metrics.inner]
    metrics.inner.update(new)
    return [Edit(n, "of the means over the ranks, not of rank 0's own", metrics.wrapped) for n in new]


def _kept(metrics: Metrics, value: cst.BaseExpression) -> Iterator[tuple[cst.Call, cst.BaseExpression]]:
    """Yield ``min(best, loss)`` with ``loss``, if such calls alone give the name ``value`` what is a rank's own."""
    for binding in metrics.script.bindings_of(value) if isinstance(value, cst.Name) else ():
        match binding.written:
            case cst.Call(func=cst.Name("min" | "max"), args=[cst.Arg(value=one), cst.Arg(value=other)]) as call if (
                dotted(one) == binding.name or dotted(other) == binding.name
            ):
                yield call, other if dotted(one) == binding.name else one
            case written if written is None or metrics.trained(written):
                return


def _is_extreme(metrics: Metrics, value: cst.BaseExpression, which: str) -> bool:
    """Tell whether ``value`` is an extreme within a batch already, of the same side: ``error.max().item()``."""
    names = _LEAST if which == "min" else _GREATEST
    made = [b.written for b in metrics.script.bindings_of(value)] if isinstance(value, cst.Name) else []
    calls = (n for part in (value, *made) if part is not None for n in walk(part) if isinstance(n, cst.Call))
    return any((dotted(c.func) or metrics.script.code(c.func)).rsplit(".", 1)[-1] in names for c in calls)
