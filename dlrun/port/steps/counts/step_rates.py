"""Part of step "steps": learning rates that the script computes from a count of steps itself, and sets."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

import libcst as cst

from dlrun.port.edits import Doubt, Edit
from dlrun.port.facts import Facts, ScriptFacts
from dlrun.port.facts.numbers.computed import Computed, Tells, computed, leaves, nothing, tests
from dlrun.port.facts.updates.rates import is_zero, set_in_group
from dlrun.port.insert import expression
from dlrun.port.steps.counts.counters import this_included
from dlrun.port.steps.counts.counts import is_length_of_share
from dlrun.port.steps.rate import rate_tables

TELLS_APART = (cst.Equal, cst.NotEqual, cst.In, cst.NotIn)
_ALIKE = ("builtins.float", "builtins.int", "builtins.max", "builtins.min", "numpy.maximum", "numpy.minimum")
_BOUNDS = ("min", "max", "minimum", "maximum", "clip", "clamp")
_PARTS = (cst.Divide, cst.FloorDivide, cst.Modulo)  # what stands on the left is measured by what stands on the right
_JOINS = (*_PARTS, cst.Subtract)


class StepRates:
    """Rates as functions of the steps so far: they are told the serial steps that n ranks have done.

    Where a count of local batches is computed with, as the length of a shared loader, or one that is divided
    already, the steps stay local, and what else they are measured by is divided.
    """

    def __init__(
        self, facts: ScriptFacts, counts: Tells, divided: Collection[cst.CSTNode] = (), skips: Tells = nothing
    ) -> None:
        """Follow what ``counts`` tells to be a number of updates so far; ``divided`` are counts that are local.

        What ``skips`` tells follows the number of ranks already.
        """
        self.facts = facts
        self.flow = facts.flow
        self.counts = counts
        self.skips = skips
        self.divided = set(divided)
        loops = (*getattr(facts, "loops", ()), *getattr(facts, "sharded", ()))
        self.around = {facts.script.function_of(loop) for loop in loops}

    def told(self, values: Iterable[cst.BaseExpression]) -> Iterator[Edit | Doubt]:
        """Yield what changes in the computation of the rates ``values``, each judged by itself."""
        found = [self.computed(value, *tests(self.flow, value, self.around)) for value in values]
        found = [rate for rate in found if rate.reads]
        own = {read for rate in found if self.is_own(rate) or self._runs_out(rate) for read in rate.reads}
        done: set[cst.CSTNode] = set()
        for rate in found:
            for edit in self.measured(rate) if own.intersection(rate.reads) else self._serial(rate):
                if edit.node not in done:
                    done.add(edit.node)
                    yield edit

    def computed(self, *values: cst.BaseExpression) -> Computed:
        """Return what ``values`` are computed from."""
        return computed(self.flow, values, self.counts, self.skips, self.around)

    def is_own(self, rate: Computed) -> bool:
        """Tell whether the local number of batches is among what ``rate`` is computed from."""
        return any(
            n in self.divided or (isinstance(self.facts, Facts) and is_length_of_share(self.facts, n))
            for n in rate.nodes
        )

    def _runs_out(self, rate: Computed) -> bool:
        """Tell whether ``rate`` is a power of what is left: it must not fall below 0, as n steps at once might."""
        return any(
            isinstance(n, cst.BinaryOperation)
            and isinstance(n.operator, cst.Power)
            and self._steps(n.left)
            and any(
                isinstance(m, cst.BinaryOperation) and isinstance(m.operator, cst.Subtract)
                for m in self.computed(n.left).nodes
            )
            for n in rate.nodes
        )

    def _serial(self, rate: Computed) -> Iterator[Edit | Doubt]:
        for node in rate.nodes:
            if isinstance(node, cst.Comparison) and isinstance(node.comparisons[0].operator, TELLS_APART):
                sides = (node.left, node.comparisons[0].comparator)
                plain = any(is_zero(s) or isinstance(s, cst.SimpleString) or self._is_span(s) for s in sides)
                if any(self._steps(s) for s in sides) and not plain:
                    text = self.facts.script.code(node)
                    yield Doubt(
                        node,
                        f"the rate changes where {text}, and n ranks take 1/n of the steps: they come "
                        "by another number, or never",
                        "high",
                        f"compare with >= and {self.facts.alias}.steps(...)",
                    )
                    return
        for read in rate.reads:
            picked = rate_tables.picks(self.facts.script, read)
            so_far = read if picked else this_included(self.facts.script, read)
            yield Edit(so_far, "the rate follows the serial steps: n ranks do n of them at once", self._in_serial)
        yield from rate_tables.kept_inside(self.facts, rate.reads)

    def _is_span(self, node: cst.BaseExpression) -> bool:
        """Tell whether ``node`` is all numbers from one to another, as in ``step in range(warm)``."""
        return (
            isinstance(node, cst.Call)
            and self.facts.script.name_of(node.func) == "builtins.range"
            and len(node.args) < 3
        )

    def _in_serial(self, step: cst.BaseExpression) -> cst.BaseExpression:
        return expression("torch/serial_steps", {"step": step}, dl=self.facts.alias)

    def measured(self, rate: Computed) -> Iterator[Edit]:
        """Yield the division of the serial counts that ``rate`` compares the local steps with, where it does."""
        why = "the rate is computed from steps, and n ranks take 1/n of them"
        terms = dict.fromkeys(term for node in rate.nodes for side in self._beside(node) for term in self._terms(side))
        for term in terms:
            if term not in self.divided and all(map(self._is_serial, leaves(self.flow, term))):
                yield Edit(term, why, self._divided)

    def _beside(self, node: cst.CSTNode) -> Iterator[cst.BaseExpression]:
        """Yield what ``node`` measures steps by: ``warm`` in ``step / warm``, ``step % warm`` and ``step < warm``."""
        match node:
            case cst.BinaryOperation() if isinstance(node.operator, _JOINS):
                sides = [node.left, node.right]
            case cst.Comparison() if len(node.comparisons) == 1:
                sides = [node.left, node.comparisons[0].comparator]
            case cst.Call() if self.facts.script.name_of(node.func).endswith(_BOUNDS):  # min(step, warm)
                if any(self._is_count(arg.value) for arg in node.args):
                    yield from (arg.value for arg in node.args if not self._steps(arg.value))
                return
            case _:
                return
        steps = [self._steps(side) for side in sides]
        if not any(map(self._is_count, sides)):
            return  # a share of all, or what a curve makes of it: (1 + cos(pi * step / total)) / 2
        if steps == [True, False]:
            yield sides[1]
        elif steps == [False, True] and not isinstance(getattr(node, "operator", None), _PARTS):
            yield sides[0]

    def _terms(self, node: cst.BaseExpression) -> Iterator[cst.BaseExpression]:
        """Yield the counts that ``node`` adds up: ``total`` and ``warm`` of ``max(1, float(total - warm))``."""
        if isinstance(node, cst.Call) and self.facts.script.name_of(node.func) in _ALIKE:
            for arg in node.args:
                yield from self._terms(arg.value)
        elif isinstance(node, cst.BinaryOperation) and isinstance(node.operator, (cst.Add, cst.Subtract)):
            yield from self._terms(node.left)
            yield from self._terms(node.right)
        else:
            yield node

    def _is_count(self, node: cst.BaseExpression, depth: int = 6) -> bool:
        """Tell whether ``node`` is itself a number of steps: ``step - warm``, ``float(step)``, ``step // 4``."""
        if self.counts(node) or not depth:
            return self.counts(node)
        match node:
            case cst.Call() if self.facts.script.name_of(node.func) in _ALIKE:
                return any(self._is_count(arg.value, depth - 1) for arg in node.args)
            case cst.BinaryOperation(operator=cst.FloorDivide() | cst.Modulo()):
                return self._is_count(node.left, depth - 1)
            case cst.BinaryOperation(operator=cst.Add() | cst.Subtract() | cst.Multiply()):
                return self._is_count(node.left, depth - 1) or self._is_count(node.right, depth - 1)
            case cst.Name() | cst.Attribute():
                return any(leaf is not node and self._is_count(leaf, depth - 1) for leaf in leaves(self.flow, node))
        return False

    def _is_serial(self, count: cst.BaseExpression) -> bool:
        """Tell whether ``count`` may be a number of serial steps, and not of local ones."""
        number = isinstance(count, (cst.Integer, cst.Float)) and count.evaluated_value > 1
        named = isinstance(count, (cst.Name, cst.Attribute, cst.Subscript, cst.BinaryOperation))
        return (number or named) and not self.is_own(self.computed(count))

    def _divided(self, count: cst.BaseExpression) -> cst.BaseExpression:
        return expression("torch/steps", {"count": count.with_changes(lpar=(), rpar=())}, dl=self.facts.alias)

    def _steps(self, node: cst.CSTNode) -> bool:
        """Tell whether ``node`` is computed from the steps so far."""
        return isinstance(node, cst.BaseExpression) and bool(self.computed(node).reads)


def set_by_hand(facts: Facts) -> Iterator[cst.BaseExpression]:
    """Yield the rates of updates by hand, and those written into groups of PyTorch's optimizers; of a name, each."""
    for node in facts.script.nodes:
        if (rate := set_in_group(facts, node)) is not None:
            yield from ways(facts, rate)
    for _, rates in facts.by_hand:
        for rate in rates:
            yield from ways(facts, rate)


def ways(facts: ScriptFacts, value: cst.BaseExpression) -> list[cst.BaseExpression]:
    """Return ``value``, or what it is assigned before where it is a name."""
    if not isinstance(value, cst.Name):
        return [value]
    bindings = facts.script.bindings_of(value)
    found = [b.written for b in bindings if b.how == "assign" and b.written is not None]
    return found if found and len(found) == len(bindings) else [value]
