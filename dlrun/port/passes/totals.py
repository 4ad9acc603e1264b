"""Part of step "metrics": sums over a rank's samples that the script divides by the number of all samples."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from dlrun.port.edits import Doubt, Edit
from dlrun.port.insert import statements
from dlrun.port.passes import returned
from dlrun.port.passes.each import each
from dlrun.port.passes.metrics import Metrics
from dlrun.port.program.script import argument, dotted, walk

_WHY = "a sum over this rank's samples, divided by the number of all samples"
_TWICE = "where n does not divide the samples, up to n - 1 are dealt out twice an epoch, and counted twice here"
_PLAIN = (cst.Call, cst.Arg, cst.BinaryOperation, cst.FormattedString, cst.FormattedStringExpression)
_LEFT = "drop_last leaves out up to a batch of each rank at the end of an epoch, and these samples are counted here"


def torch(metrics: Metrics) -> Iterator[Edit | Doubt]:
    """Yield the sum over the ranks; what is divided then is the same on all of them, and is not averaged again."""
    script, facts = metrics.script, metrics.facts
    found: list[tuple[cst.CSTNode, cst.BaseExpression]] = []
    parts = _parts(metrics)
    for node, total, count in _quotients(metrics):
        names = {(script.function_of(n), n.value) for n in walk(total) if isinstance(n, cst.Name)}
        of_all = _is_of_all(metrics, node, total, count)
        if not of_all and any(metrics.sums.text(count) in parts[name] for name in names if name in parts):
            yield Doubt(node, "a sum over this rank's batches, divided by the number of all batches", "medium",
                        f"{facts.alias}.total({script.code(total)}) before the division")  # fmt: skip
        if not of_all:
            continue
        found.append((node, total))
        if isinstance(node, cst.BinaryOperation):
            yield Edit(total, _WHY, metrics.total_of(total))
        else:
            name, test = script.code(total), returned.trains_where(facts, total)
            lines = statements("torch/total_statement", dl=facts.alias, name=name, trains=test and script.code(test))
            metrics.settle(name, node)
            yield Edit(script.line_of(node), _WHY, before=lines)
    if found:
        yield _inexact(metrics, found[0][0])
        metrics.cut(total for node, total in found
                    if isinstance(node, cst.BinaryOperation) or not isinstance(total, cst.Name))  # fmt: skip


def _parts(metrics: Metrics) -> dict[tuple[cst.CSTNode, str], set[str]]:
    """Return the lists and dicts whose entries loops over shared positions add to, ``terms[0] += loss``: up to what."""
    found: dict[tuple[cst.CSTNode, str], set[str]] = {}
    for node in metrics.script.of(cst.AugAssign):
        if isinstance(node.operator, cst.AddAssign) and isinstance(node.target, cst.Subscript):
            place = (metrics.script.function_of(node), dotted(node.target.value))
            found.setdefault(place, set()).update(metrics.sums.bounds(node))
    return found


def _inexact(metrics: Metrics, node: cst.CSTNode) -> Doubt:
    """Return the doubt about ``node``: what it divides by is not the number of samples that were summed up."""
    facts = metrics.facts
    made = {o.node for feed in facts.feeds if isinstance(feed.node, cst.BaseExpression)
            for o in facts.flow.origins(feed.node)}  # fmt: skip
    drops = [argument(n, "drop_last") for n in made if isinstance(n, cst.Call) and facts.kinds.of_call(n) == "loader"]
    if drops and all(value is not None and dotted(value) == "True" for value in drops):
        return Doubt(node, _LEFT, "low", "divide by the number of samples that were summed up")
    return Doubt(node, _TWICE, "low", "choose n that divides them, or drop_last=True")


def _quotients(metrics: Metrics) -> Iterator[tuple[cst.CSTNode, cst.BaseExpression, cst.BaseExpression]]:
    """Yield the divisions of the script, with what is divided by what: ``a / b``, ``a /= b``."""
    for node in metrics.script.nodes:
        match node:
            case cst.BinaryOperation(operator=cst.Divide()):
                yield node, node.left, node.right
            case cst.AugAssign(operator=cst.DivideAssign(), target=target):
                named = target.value if isinstance(target, cst.Subscript) else target
                if isinstance(named, (cst.Name, cst.Attribute)):
                    yield node, target, node.value


def divided(metrics: Metrics, node: cst.BaseExpression) -> cst.BaseExpression | None:
    """Return the sum over this rank's samples that ``node`` divides by the number of all; None where it does not."""
    for part in walk(node):
        if isinstance(part, cst.BinaryOperation) and isinstance(part.operator, cst.Divide):
            return part.left if _sums_all(metrics, part.left, part.right) else None
    return None


def _is_of_all(metrics: Metrics, node: cst.CSTNode, total: cst.BaseExpression, count: cst.BaseExpression) -> bool:
    """Tell whether ``node`` divides a sum over this rank's samples by the number of all, where all ranks come to it."""
    way = [node, *metrics.script.above(node)]
    at = next((i for i, up in enumerate(way) if isinstance(up, (cst.DictComp, cst.ListComp, cst.GeneratorExp))), 0)
    made, plain = way[at], all(isinstance(up, _PLAIN) for up in way[:at])
    if isinstance(made, (cst.DictComp, cst.ListComp, cst.GeneratorExp)):  # {k: round(v / n) for k, v in sums.items()}
        node = made if plain and way[at - 1] in each(metrics, made) else node
    return _sums_all(metrics, total, count) and metrics.all_ranks(node)


def _sums_all(metrics: Metrics, total: cst.BaseExpression, count: cst.BaseExpression) -> bool:
    """Tell whether ``total`` is a sum over this rank's samples, and ``count`` the number of all."""
    own = metrics.trained(total) and (metrics.scalar(total) or metrics.sums.only(total))
    own = own and (metrics.sums.in_training(total) or metrics.sums.handed_on(total))
    parts = [n for n in walk(total) if isinstance(n, cst.BinaryOperation)]
    divided = [n.right for n in parts if isinstance(n.operator, cst.Divide)]
    further = list(_further(metrics, total))
    if not all(map(_is_written, divided)) or (further and _is_written(count)):
        return False  # the sum of loss / batches is no sum; of total / 2 / len(data) the whole is
    return own and all(metrics.sums.over(each, total) for each in (count, *further))


def _is_written(count: cst.BaseExpression) -> bool:
    return isinstance(count, (cst.Integer, cst.Float))


def _further(metrics: Metrics, total: cst.BaseExpression) -> Iterator[cst.BaseExpression]:
    """Yield by what else ``total`` is divided around its first division: ``seen`` of ``total / 2 / seen``."""
    for up in metrics.script.above(metrics.script.parents[total]):
        if not isinstance(up, cst.BinaryOperation):
            break
        if isinstance(up.operator, cst.Divide) and metrics.script.inside(total, up.left):
            yield up.right
