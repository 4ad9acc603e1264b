"""Part of step "rate": rates of their own: of the parameter groups of PyTorch's optimizers, of updates by hand."""

from __future__ import annotations

from collections.abc import Collection, Iterator

import libcst as cst

from dlrun.port.edits import Doubt, Edit
from dlrun.port.facts import Facts
from dlrun.port.facts.updates.rates import scaled_already, text_of
from dlrun.port.insert import expression
from dlrun.port.program.dicts import pairs

_RATES = ("lr", "initial_lr")  # of a group: the one that it trains with, and the one that schedules start from


def rates(facts: Facts) -> Iterator[cst.BaseExpression]:
    """Yield the rates of the groups that the script writes down: ``groups += [{"params": p, "lr": 10 * lr}]``."""
    order = facts.script.order
    first = min((order[call] for call in facts.optimizers), default=0)
    for node in facts.script.nodes:
        given = {text_of(key): value for key, value in pairs(node) if key is not None}
        for rate in (given[key] for key in _RATES if key in given and "params" in given):
            if order[node] < first or not scaled_already(facts, rate):  # before there is an optimizer to read
                yield rate


def read(facts: Facts, value: cst.BaseExpression, scaled: Collection[cst.CSTNode]) -> bool:
    """Tell whether ``value`` reads the rate of a group that is ``scaled`` where it is written: ``group["lr"]``."""
    index = value.slice[0].slice if isinstance(value, cst.Subscript) else None
    if not isinstance(value, cst.Subscript) or not isinstance(index, cst.Index) or text_of(index.value) != "lr":
        return False
    boxes = [{text_of(k): v for k, v in pairs(o.node) if k is not None} for o in facts.flow.origins(value.value)]
    return any(box.get("lr") in scaled for box in boxes)


def of_their_own(facts: Facts, optimizer: cst.Call) -> bool:
    """Tell whether ``optimizer`` gets a list of groups that is filled with their rates."""
    first = optimizer.args[0].value if optimizer.args else None
    made = [o.node for o in facts.flow.origins(first)] if isinstance(first, (cst.Name, cst.Attribute)) else []
    return any(isinstance(m, cst.List) for m in made) and next(rates(facts), None) is not None


def by_hand(facts: Facts) -> Iterator[Edit | Doubt]:
    """Scale the rates of updates without an optimizer, and doubt where none is seen.

    Before:
        for w in model.parameters():
            w.data -= lr * w.grad

    After:
        for w in model.parameters():
            w.data -= dl.lr_scale(lr) * w.grad
    """

    def scale(node: cst.BaseExpression) -> cst.BaseExpression:
        return expression("torch/rate", {"lr": node}, dl=facts.alias, rule=facts.options.lr_scaling)

    doubted = False
    for update, found in facts.by_hand:
        for rate in found:
            if not scaled_already(facts, rate):
                yield Edit(rate, "the linear scaling rule (an update by hand)", scale)
        if not found and not doubted:
            doubted = True
            yield Doubt(
                update,
                "the rate of this update by hand is not scaled",
                "medium",
                f"{facts.alias}.lr_scale(rate) in place of the rate",
                name="rate-not-scaled",
            )
