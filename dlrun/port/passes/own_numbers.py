"""Part of step "metrics": numbers of a rank's own that change weights, gradients or rates: models would part."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from dlrun.port.edits import Doubt, Edit
from dlrun.port.facts.rates import is_group
from dlrun.port.passes.metrics import Metrics
from dlrun.port.passes.redrawn import CHANGES, is_weight
from dlrun.port.program.script import dotted

_WHY = "what changes the weights is the same on all ranks, or their models part"
_CLIPS = ("clip_grad_norm_", "clip_grad_value_", "clip_grad_norm")


def torch(metrics: Metrics) -> Iterator[Edit | Doubt]:
    """Average what is made of a rank's own losses and changes weights, gradients, or what an optimizer is set to.

    Before:
        model = torch.nn.Linear(2, 1)
        for x, y in loader:
            loss = (model(x) - y).pow(2).mean()
            loss.backward()
            opt.step()
            for p in model.parameters():
                p.data.mul_(1 - 0.1 * loss.item())

    After:
        model = torch.nn.Linear(2, 1)
        for x, y in loader:
            loss = (model(x) - y).pow(2).mean()
            loss.backward()
            opt.step()
            for p in model.parameters():
                p.data.mul_(dl.average(1 - 0.1 * loss.item()))
    """
    for node in metrics.script.nodes:
        for value in _changing(metrics, node):
            for number in metrics.values(value):
                name = metrics.script.code(number)
                if metrics.graded(number):
                    continue  # what gradients are made of, which are averaged themselves
                if not metrics.plain(number) or not metrics.all_ranks(node):
                    yield Doubt(number, f"{name} is a rank's own: {_WHY}", "high",
                                f"{metrics.facts.alias}.average({name}) where every rank comes by")  # fmt: skip
                elif number not in metrics.trained.cuts:
                    yield Edit(number, _WHY, metrics.wrapped)


def _changing(metrics: Metrics, node: cst.CSTNode) -> Iterator[cst.BaseExpression]:
    """Yield what ``node`` changes weights, gradients or an optimizer's groups with."""
    facts = metrics.facts
    match node:
        case cst.AugAssign(target=target, value=value) if _holds(metrics, target):
            yield value
        case cst.Assign(targets=[cst.AssignTarget(target=cst.Subscript() | cst.Attribute() as target)], value=value):
            yield from [value] if _holds(metrics, target) else ()
        case cst.Call(func=cst.Attribute(value=target, attr=cst.Name(how)), args=args) if how in CHANGES:
            while isinstance(target, cst.Call) and isinstance(target.func, cst.Attribute):  # p.mul_(a).add_(b)
                target = target.func.value
            yield from (arg.value for arg in args) if is_weight(facts, target) else ()
        case cst.Call(args=[_, cst.Arg(value=value), *_]) if dotted(node.func).rsplit(".", 1)[-1] in _CLIPS:
            yield value


def _holds(metrics: Metrics, target: cst.CSTNode) -> bool:
    """Tell whether ``target`` is a weight, the gradient of one, or what a group of an optimizer holds."""
    group = isinstance(target, cst.Subscript) and is_group(metrics.facts, target.value)
    return group or is_weight(metrics.facts, target)
