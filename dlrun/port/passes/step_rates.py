"""Part of step "steps": learning rates that the script computes from a count of steps itself, and sets."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator

import libcst as cst

from dlrun.port.edits import Doubt, Edit
from dlrun.port.facts import Facts, ScriptFacts
from dlrun.port.facts.computed import Computed, Tells, computed, leaves, nothing, tests
from dlrun.port.facts.rates import is_groups_rate, is_zero, sets_groups_rate
from dlrun.port.insert import expression
from dlrun.port.passes.counters import each_update, innermost
from dlrun.port.passes.counts import is_length_of_share
from dlrun.port.program.script import dotted, walk

_TELLS_APART = (cst.Equal, cst.NotEqual, cst.In, cst.NotIn)
_ALIKE = ("builtins.float", "builtins.int", "builtins.max", "builtins.min")
_ENDS = ("builtins.max", "builtins.min")
_SCALES = (cst.MultiplyAssign, cst.DivideAssign)
_JOINS = (cst.Divide, cst.FloorDivide, cst.Subtract)


class StepRates:
    """Rates as functions of the steps so far: they are told the serial steps that n ranks have done.

    Where a count of the rank's own batches is computed with, as the length of a shared loader, or one that is divided
    already, the steps stay the rank's own, and what else they are measured by is divided.
    """

    def __init__(
        self, facts: ScriptFacts, counts: Tells, divided: Collection[cst.CSTNode] = (), skips: Tells = nothing
    ) -> None:
        """Follow what ``counts`` tells to be a number of updates so far; ``divided`` are counts of the rank's own.

        What ``skips`` tells follows the number of ranks already.
        """
        self.facts = facts
        self.flow = facts.flow
        self.counts = counts
        self.skips = skips
        self.divided = set(divided)
        loops = getattr(facts, "loops", ())
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
        """Tell whether the rank's own number of batches is among what ``rate`` is computed from."""
        return any(n in self.divided or (isinstance(self.facts, Facts) and is_length_of_share(self.facts, n))
                   for n in rate.nodes)  # fmt: skip

    def _runs_out(self, rate: Computed) -> bool:
        """Tell whether ``rate`` is a power of what is left: it must not fall below 0, as n steps at once might."""
        return any(
            isinstance(n, cst.BinaryOperation) and isinstance(n.operator, cst.Power) and self._steps(n.left)
            and any(isinstance(m, cst.BinaryOperation) and isinstance(m.operator, cst.Subtract)
                    for m in self.computed(n.left).nodes)
            for n in rate.nodes)  # fmt: skip

    def _serial(self, rate: Computed) -> Iterator[Edit | Doubt]:
        for node in rate.nodes:
            if isinstance(node, cst.Comparison) and isinstance(node.comparisons[0].operator, _TELLS_APART):
                sides = (node.left, node.comparisons[0].comparator)
                plain = any(is_zero(s) or isinstance(s, cst.SimpleString) for s in sides)
                if any(self._steps(s) for s in sides) and not plain:
                    text = self.facts.script.code(node)
                    yield Doubt(node, f"the rate changes where {text}, and n ranks take 1/n of the steps: they come "
                                "by another number, or never", "high",
                                f"compare with >= and {self.facts.alias}.steps(...)")  # fmt: skip
                    return
        for read in rate.reads:
            yield Edit(read, "the rate follows the serial steps: n ranks do n of them at once", self._in_serial)

    def _in_serial(self, step: cst.BaseExpression) -> cst.BaseExpression:
        return expression("torch/serial_steps", {"step": step}, dl=self.facts.alias)

    def measured(self, rate: Computed) -> Iterator[Edit]:
        """Yield the division of the serial counts that ``rate`` compares the rank's own steps with, where it does."""
        why = "the rate is computed from steps, and n ranks take 1/n of them"
        terms = dict.fromkeys(term for node in rate.nodes for side in self._beside(node) for term in self._terms(side))
        for term in terms:
            if term not in self.divided and all(map(self._is_serial, leaves(self.flow, term))):
                yield Edit(term, why, self._divided)

    def _beside(self, node: cst.CSTNode) -> Iterator[cst.BaseExpression]:
        """Yield what ``node`` compares a number of steps with: ``warm`` in ``step / warm`` and in ``step < warm``."""
        match node:
            case cst.BinaryOperation() if isinstance(node.operator, _JOINS):
                sides = [node.left, node.right]
            case cst.Comparison() if len(node.comparisons) == 1:
                sides = [node.left, node.comparisons[0].comparator]
            case _:
                return
        steps = [self._steps(side) for side in sides]
        if steps == [True, False]:
            yield sides[1]
        elif steps == [False, True] and not isinstance(getattr(node, "operator", None), (cst.Divide, cst.FloorDivide)):
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

    def _is_serial(self, count: cst.BaseExpression) -> bool:
        """Tell whether ``count`` may be a number of serial steps, and not the rank's own."""
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
        if isinstance(node, cst.Assign) and sets_groups_rate(facts, node):
            yield from ways(facts, node.value)
    for _, rates in facts.by_hand:
        for rate in rates:
            yield from ways(facts, rate)


def ways(facts: ScriptFacts, value: cst.BaseExpression) -> list[cst.BaseExpression]:
    """Return ``value``, or what it is assigned before where it is a name."""
    if not isinstance(value, cst.Name):
        return [value]
    bindings = facts.script.scopes[value].lookup(value.value)[0]
    found = [b.written for b in bindings if b.how == "assign" and b.written is not None]
    return found if found and len(found) == len(bindings) else [value]


def compound(facts: ScriptFacts, factor: cst.BaseExpression) -> Edit:
    """Return the edit of a ``factor`` that the rate is multiplied by at every batch."""
    return Edit(factor, "it multiplies the rate at every batch, and n ranks take 1/n of the batches",
                lambda node: expression("torch/compound", {"factor": node}, dl=facts.alias))  # fmt: skip


def compounded(facts: Facts, divided: Collection[cst.CSTNode]) -> Iterator[Edit | Doubt]:
    """Raise the factor that the rate is multiplied by at every update, and multiply what it grows or falls by.

    ``group["lr"] *= 0.999``, also by a name that is written there. Not so under a test with one of the counts that are
    ``divided``, or with values of the training. A factor that changes is only doubted.
    """
    for node in facts.script.nodes:
        found = _change(facts, node)
        if found is None:
            continue
        by, adds = found
        around = innermost(facts, node)
        over_groups = isinstance(around, cst.For) and around not in facts.loops
        at = around if around is not None and over_groups else node
        if not each_update(facts, at) or is_told(facts, at, divided) or _is_judged(facts, at):
            continue
        bindings = [b for n in walk(by) if isinstance(n, cst.Name) and n in facts.script.scopes
                    for b in facts.script.scopes[n].lookup(n.value)[0]]  # fmt: skip
        loop = innermost(facts, at)
        if any(loop is not None and facts.script.inside(b.node, loop) for b in bindings):
            how = "serial_steps" if adds else "compound"
            yield Doubt(node, "changes the rate at every batch, and n ranks take 1/n of the batches: it changes n "
                        "times more slowly", "high", f"{facts.alias}.{how}({facts.script.code(by)})")  # fmt: skip
        elif adds:
            yield Edit(by, "the rate changes by it at every batch, and n ranks take 1/n of the batches",
                       _grown(facts, node))  # fmt: skip
        else:
            yield compound(facts, by)


def _grown(facts: Facts, node: cst.CSTNode) -> Callable[[cst.BaseExpression], cst.BaseExpression]:
    """Return what multiplies that by which ``node`` changes a rate; a group's, which is scaled, by as much again."""
    target = node.target if isinstance(node, cst.AugAssign) else node.targets[0].target  # type: ignore[attr-defined]
    rule = facts.options.lr_scaling

    def more(by: cst.BaseExpression) -> cst.BaseExpression:
        steps = expression("torch/serial_steps", {"step": by}, dl=facts.alias)
        if rule == "none" or not is_groups_rate(facts, target):
            return steps
        return expression("torch/rate", {"lr": steps}, dl=facts.alias, rule=rule)

    return more


def _is_judged(facts: Facts, node: cst.CSTNode) -> bool:
    """Tell whether ``node`` runs where values of the training are so: ``if loss.item() > 2``."""
    tests = [up.test for up in facts.script.above(node) if isinstance(up, cst.If)]
    return any(facts.local(n) for test in tests for n in walk(test))


def is_told(facts: Facts, node: cst.CSTNode, divided: Collection[cst.CSTNode], depth: int = 3) -> bool:
    """Tell whether ``node`` runs once in as many steps as one of the counts that are ``divided``, or at that step."""
    tests = [n for up in facts.script.above(node) if isinstance(up, cst.If) for n in walk(up.test)
             if isinstance(n, cst.Comparison) and isinstance(n.comparisons[0].operator, _TELLS_APART)]  # fmt: skip
    function = facts.script.function_of(node)
    calls = facts.flow.callers(function) if depth and isinstance(function, cst.FunctionDef) else []
    return any(facts.script.inside(n, test) for n in divided for test in tests) or (
        bool(calls) and all(is_told(facts, call, divided, depth - 1) for call in calls))  # fmt: skip


def _change(facts: Facts, node: cst.CSTNode) -> tuple[cst.BaseExpression, bool] | None:
    """Return what ``node`` multiplies a rate with, or adds to it, and whether it adds.

    ``f`` in ``g["lr"] *= f``, in ``g["lr"] = f * g["lr"]`` and in ``lr = max(low, lr * f)``.
    """
    if isinstance(node, cst.AugAssign) and _is_rate(facts, node.target):
        adds = isinstance(node.operator, (cst.AddAssign, cst.SubtractAssign))
        return (node.value, adds) if adds or isinstance(node.operator, _SCALES) else None
    if not (isinstance(node, cst.Assign) and _is_rate(facts, target := node.targets[0].target)):
        return None
    kept = [node.value]
    if isinstance(node.value, cst.Call) and facts.script.name_of(node.value.func) in _ENDS:
        kept = [arg.value for arg in node.value.args]
    for value in (v for v in kept if isinstance(v, cst.BinaryOperation)):
        same = [facts.script.code(side) == facts.script.code(target) for side in (value.left, value.right)]
        other = value.right if same[0] else value.left
        turned = isinstance(value.operator, (cst.Multiply, cst.Add))
        if same == [True, False] or (same == [False, True] and turned):
            if isinstance(value.operator, (cst.Add, cst.Subtract)):
                return other, True
            return (other, False) if isinstance(value.operator, (cst.Multiply, cst.Divide)) else None
    return None


def _is_rate(facts: Facts, target: cst.CSTNode) -> bool:
    """Tell whether ``target`` is a group's rate, or what one is set to as it is: ``group["lr"] = lr``."""
    if is_groups_rate(facts, target):
        return True
    if not isinstance(target, (cst.Name, cst.Attribute)):
        return False
    written = (n.value for n in facts.script.of(cst.Assign) if sets_groups_rate(facts, n))
    return any(type(value) is type(target) and dotted(value) == dotted(target) and (
        facts.script.bindings_of(value) == facts.script.bindings_of(target) if isinstance(target, cst.Name)
        else facts.script.class_of(value) is facts.script.class_of(target)) for value in written)  # fmt: skip
