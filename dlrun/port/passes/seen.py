"""Part of step "metrics": counts of the samples so far that rates, weights of losses, or tests follow."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from dlrun.port.edits import Doubt, Edit
from dlrun.port.facts.computed import computed
from dlrun.port.passes import step_rates
from dlrun.port.passes.annealing import steered, weights
from dlrun.port.passes.counters import held, innermost, tells
from dlrun.port.passes.counts import adds_samples, is_size_of_batch
from dlrun.port.passes.metrics import Metrics
from dlrun.port.passes.milestones import saves_or_decides
from dlrun.port.program.script import dotted, walk

_WHY = "the samples of all ranks: the training goes by them"


def torch(metrics: Metrics) -> Iterator[Edit | Doubt]:
    """Let a count of the samples so far count those of all ranks, where rates, weights of losses or tests follow it.

    Before:
        seen = 0
        for x, y in loader:
            for group in opt.param_groups:
                group["lr"] = 0.1 * (1 - seen / 60000)
            (model(x) - y).pow(2).mean().backward()
            opt.step()
            seen += len(x)

    After:
        seen = 0
        for x, y in loader:
            for group in opt.param_groups:
                group["lr"] = dl.lr_scale(0.1 * (1 - seen / 60000))
            (model(x) - y).pow(2).mean().backward()
            opt.step()
            seen += dl.total(len(x))
    """
    facts, script = metrics.facts, metrics.script
    steering, asked = list(_steering(metrics)), list(_asked(metrics))
    found = [(node, *count) for node in script.nodes if (count := adds_samples(facts, node)) is not None]
    known = tells(facts, {place for _, target, _ in found for place in held(facts, target)})

    def is_mean(node: cst.CSTNode) -> bool:  # right / seen, which is averaged as a whole
        if not isinstance(node, cst.BinaryOperation) or not isinstance(node.operator, cst.Divide):
            return False
        own = any(known(n) or metrics.trained(n) for n in walk(node.left))
        return own and any(map(known, walk(node.right)))

    shown = [v for v in steering if is_mean(up := script.parents[v]) and not metrics.leads_back(up)]
    steering = [value for value in steering if value not in shown]
    for node, target, size in found:
        reads = tells(facts, set(held(facts, target)))
        followed = [*filter(reads, asked), *computed(facts.flow, steering, reads, is_mean).reads]
        if not followed:
            continue
        name, uses = script.code(target), [n for n in script.nodes if reads(n)]
        if any(_divides(metrics, n) for n in uses) or not metrics.all_ranks(node):
            yield Doubt(node, f"{name} counts this rank's own samples, and the training follows it", "high",
                        f"{name} += {facts.alias}.total({script.code(size)}), and let what is divided by {name} be a "
                        "total, too")  # fmt: skip
            continue
        yield Edit(size, _WHY, metrics.total_of(size) if is_size_of_batch(facts, size) else metrics.of_all_ranks)
        metrics.cut(uses)
        for test in (n for n in followed if _at_multiples(metrics, n)):
            yield Doubt(test, f"{name} grows by the samples of all ranks at once, and may pass by the number that is "
                        "asked for", "medium", f"ask whether {name} // k has grown")  # fmt: skip
            break


def _steering(metrics: Metrics) -> Iterator[cst.BaseExpression]:
    """Yield what the training is steered by: rates, and weights of losses."""
    yield from step_rates.set_by_hand(metrics.facts)
    yield from weights(metrics.facts)
    yield from steered(metrics.facts)


def _asked(metrics: Metrics) -> Iterator[cst.BaseExpression]:
    """Yield what tests compare on which it depends whether the training goes on, saves or decides."""
    facts = metrics.facts
    for node in facts.script.nodes:
        if isinstance(node, cst.While) and (node in facts.loops or any(n in facts.loops for n in walk(node.body))):
            yield from _compared(node.test)
        elif isinstance(node, cst.If) and innermost(facts, node) is not None:
            bodies = [node.body, *([node.orelse] if node.orelse is not None else [])]
            if any(saves_or_decides(facts, body) for body in bodies):
                yield from _compared(node.test)


def _compared(test: cst.BaseExpression) -> Iterator[cst.BaseExpression]:
    """Yield the names that ``test`` compares as they are, or asks for multiples of: ``seen`` in ``seen % 100 == 0``."""
    for node in walk(test):
        sides = [node.left, *(c.comparator for c in node.comparisons)] if isinstance(node, cst.Comparison) else [node]
        for side in sides if isinstance(node, cst.Comparison) or node is test else ():
            if isinstance(side, cst.BinaryOperation) and isinstance(side.operator, (cst.Modulo, cst.FloorDivide)):
                side = side.left
            if isinstance(side, (cst.Name, cst.Attribute)):
                yield side


def _divides(metrics: Metrics, use: cst.CSTNode) -> bool:
    """Tell whether a sum of the rank's own is divided by the count ``use``: ``loss_sum / seen``."""
    for up in metrics.script.above(use):
        if isinstance(up, cst.BinaryOperation) and isinstance(up.operator, (cst.Divide, cst.FloorDivide)):
            return metrics.script.inside(use, up.right) and metrics.trained(up.left)
        if isinstance(up, (cst.BaseCompoundStatement, cst.SimpleStatementLine)):
            break
    return False


def _at_multiples(metrics: Metrics, read: cst.CSTNode) -> bool:
    """Tell whether a test asks whether ``read`` is a multiple: ``seen % 10000 == 0``."""
    up = metrics.script.parents[read]
    test = metrics.script.parents[up]
    rest = isinstance(up, cst.BinaryOperation) and isinstance(up.operator, cst.Modulo) and up.left is read
    equals = isinstance(test, cst.Comparison) and isinstance(test.comparisons[0].operator, cst.Equal)
    return rest and (equals or isinstance(test, (cst.UnaryOperation, cst.If))) and bool(dotted(read))
