"""Part of step "metrics": the greatest and the least so far of training batches, ``best = min(best, loss.item())``."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import libcst as cst

from dlrun.port.edits import Edit
from dlrun.port.insert import expression
from dlrun.port.passes.metrics import Metrics
from dlrun.port.program.script import dotted, walk

_LEAST = ("min", "amin", "minimum")
_GREATEST = ("max", "amax", "maximum")
_REDUCES = ("mean", "sum", "average", "norm", "std", "var", "median", *_LEAST, *_GREATEST)
_OF_ALL = "of the samples of all ranks, not of rank 0's own"


def of_all(metrics: Metrics, value: cst.BaseExpression) -> list[Edit] | None:
    """Return the edits that make ``value``, an extreme so far that is shown, that of all ranks; None where it is none.

    The least of the batches' losses is that of the means over the ranks, which all take part in a batch; the greatest
    error of a sample is the greatest on any rank.
    """
    if (which := _gathered(metrics, value)) is not None:
        return [Edit(value, _OF_ALL, partial(_widest, metrics, which))]
    kept = list(_kept(metrics, value))
    if not kept or not all(metrics.all_ranks(call) for call, _ in kept):
        return None
    which = kept[0][0].func.value  # type: ignore[attr-defined]
    if all(_is_extreme(metrics, other, which) for _, other in kept):
        return [Edit(value, _OF_ALL, partial(_widest, metrics, which))]
    new = [other for _, other in kept if other not in metrics.inner]
    metrics.inner.update(new)
    return [Edit(n, "of the means over the ranks, not of rank 0's own", metrics.wrapped) for n in new]


def _widest(metrics: Metrics, which: str, node: cst.BaseExpression) -> cst.BaseExpression:
    return expression("torch/extreme", {"value": node}, which=which, dl=metrics.facts.alias)


def _gathered(metrics: Metrics, value: cst.BaseExpression) -> str | None:
    """Return "min" or "max" if ``value`` is that of what a loop gathered of its samples: ``np.max(errors)``."""
    while isinstance(value, cst.Call) and isinstance(value.func, cst.Attribute) and value.func.attr.value == "item":
        value = value.func.value
    made = [o.node for o in metrics.facts.flow.origins(value)] if isinstance(value, cst.Name) else []
    if len(made) == 1 and isinstance(made[0], cst.Call):
        value = made[0]
    which = next((w for w, names in (("min", _LEAST), ("max", _GREATEST)) if isinstance(value, cst.Call)
                  and _last(metrics, value) in names), None)  # fmt: skip
    given = [n for n in walk(value) if isinstance(n, cst.Name) and metrics.gathered(n)] if which is not None else []
    others = [n for n in walk(value) if isinstance(n, cst.Call) and n is not value and _last(metrics, n) in _REDUCES]
    return which if given and not others else None


def _last(metrics: Metrics, call: cst.Call) -> str:
    return (dotted(call.func) or metrics.script.code(call.func)).rsplit(".", 1)[-1]


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
    return any(_last(metrics, c) in names for c in calls)
