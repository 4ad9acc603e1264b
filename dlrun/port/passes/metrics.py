"""Step "metrics": what is shown is the mean over the ranks, and what decides is the same on all of them."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property

import libcst as cst

from dlrun.port.edits import Doubt, Edit
from dlrun.port.facts import Facts
from dlrun.port.facts.formats import numbers
from dlrun.port.facts.scalars import Scalars
from dlrun.port.facts.taint import Taint
from dlrun.port.insert import expression, statements
from dlrun.port.passes import doubts, kept, meters, statistics, totals
from dlrun.port.passes.sums import Sums
from dlrun.port.program.script import children, dotted, walk

_LOGS = ("set_postfix", "set_description", "set_postfix_str", "add_scalar", "add_scalars", "log", "info", "log_value",
         "scalar_summary", "scalar", "write", "writerow", "track")  # fmt: skip
_ORDER = (cst.LessThan, cst.LessThanEqual, cst.GreaterThan, cst.GreaterThanEqual)
_RECORDS = ("best", "min_", "max_", "lowest", "highest", "prev", "last_", "thresh")
_CURVED = ("math.exp", "math.log", "math.sqrt", "numpy.exp", "numpy.log", "numpy.sqrt", "torch.exp", "torch.sqrt")
_LEAVES = (cst.Break, cst.Continue, cst.Return, cst.Raise)


def torch(facts: Facts) -> Iterator[Edit | Doubt]:
    """Average a metric before a plateau scheduler, an early stop or a best checkpoint reads it, and what is printed.

    Before:
        model, best = torch.nn.Linear(2, 1), 0
        for epoch in range(9):
            opt.step()
            accuracy = model(x).mean().item()
            if accuracy > best:
                best = accuracy
                break

    After:
        model, best = torch.nn.Linear(2, 1), 0
        for epoch in range(9):
            opt.step()
            accuracy = model(x).mean().item()
            accuracy = dl.average(accuracy)  # mean over the ranks: all ranks decide alike
            if accuracy > best:
                best = accuracy
                break
    """
    if doubts.uneven(facts) is None:  # else the ranks do not come to the same places together
        metrics = Metrics(facts)
        yield from totals.torch(metrics)
        yield from kept.torch(metrics)
        yield from metrics.decisions()
        yield from metrics.shown()
    yield from statistics.torch(facts)
    yield from doubts.torch(facts)


class Metrics:
    """Finds the places; keeps which names are the same on all ranks from some place on."""

    def __init__(self, facts: Facts) -> None:
        self.facts = facts
        self.script = facts.script
        self.local: Taint = facts.local  # differs between ranks
        self.trained: Taint = facts.trained  # ... because it comes from a rank's own training batches
        self.scalar = Scalars(facts.kinds, [step.node for step in facts.steps])
        self.sums = Sums(facts)
        self.inner: set[cst.CSTNode] = set()  # what functions compute a perplexity from, averaged there
        self.formatted: set[cst.CSTNode] = set()  # what is shown as a number
        self.averaged: dict[tuple[cst.CSTNode, str], int] = {}  # the names, and from where on

    def wrapped(self, node: cst.BaseExpression) -> cst.BaseExpression:
        """Return the mean of ``node`` over the ranks."""
        return expression("torch/average", {"value": node}, dl=self.facts.alias)

    def totalled(self, node: cst.BaseExpression) -> cst.BaseExpression:
        """Return the sum of ``node`` over the ranks."""
        return expression("torch/total", {"value": node}, dl=self.facts.alias)

    # -- decisions ----------------------------------------------------------------------------------------------

    def decisions(self) -> Iterator[Edit | Doubt]:
        """Yield averages for metrics that stop, keep, or steer the training."""
        for call in self.script.calls:
            func = call.func
            if isinstance(func, cst.Attribute) and func.attr.value == "step" and call.args:
                value = call.args[0].value
                steers = self.facts.kinds.of(func.value) == "scheduler" and self.local(value)
                if (self._is_plateau(func.value) or steers) and not self._is_averaged(value):
                    yield Edit(value, "schedulers must see one value, or the ranks' rates drift apart", self.wrapped)
        for node in self.script.nodes:
            if isinstance(node, (cst.If, cst.While)) and self._decides(node):
                yield from self._finite(node)
                tests = [n for n in walk(node.test) if isinstance(n, cst.Comparison)]
                yield from (found for test in tests for found in self._decision(node, test))
            elif isinstance(node, cst.Assign) and self._is_flag(node):
                tests = [n for n in walk(node.value) if isinstance(n, cst.Comparison)]
                yield from (found for test in tests for found in self._decision(node, test))

    def _finite(self, node: cst.If | cst.While) -> Iterator[Edit | Doubt]:
        """Yield averages inside tests for NaN and infinity, which a mean over the ranks passes on."""
        for call in (n for n in walk(node.test) if isinstance(n, cst.Call)):
            tests = self.script.name_of(call.func).endswith((".isnan", ".isinf", ".isfinite"))
            if tests and call.args and self.local(call.args[0].value) and self.all_ranks(node):
                yield Edit(call.args[0].value, "if one rank's value is not finite, all ranks must act", self.wrapped)

    def _is_plateau(self, scheduler: cst.BaseExpression) -> bool:
        return any(
            isinstance(o.node, cst.Call) and self.script.name_of(o.node.func).endswith("ReduceLROnPlateau")
            for o in self.facts.flow.origins(scheduler)
        )

    def _decides(self, node: cst.If | cst.While) -> bool:
        """Tell whether the outcome stops, keeps or steers something: not per sample, and not only for show."""
        loops = [u for u in self.script.above(node) if isinstance(u, (cst.For, cst.While)) and self._same(u, node)]
        if any(loop not in self.facts.loops for loop in loops):
            return False
        if isinstance(node, cst.While):
            return node in self.facts.loops
        tested = {dotted(n) for n in walk(node.test) if isinstance(n, (cst.Name, cst.Attribute))}
        for n in walk(node):
            if isinstance(n, _LEAVES):
                return True
            if isinstance(n, cst.Assign) and any(dotted(m) in tested for t in n.targets for m in walk(t.target)):
                return True
            if isinstance(n, cst.Attribute) and n.attr.value in ("state_dict", "param_groups", "save", "step"):
                return True
            if isinstance(n, cst.Call) and "save" in dotted(n.func):
                return True
        return False

    def _same(self, one: cst.CSTNode, other: cst.CSTNode) -> bool:
        return self.script.function_of(one) is self.script.function_of(other)

    def _is_flag(self, node: cst.Assign) -> bool:
        """Tell whether ``node`` keeps the outcome of a comparison of numbers: ``is_best = accuracy > best``."""
        if not isinstance(node.value, (cst.Comparison, cst.BooleanOperation)):
            return False
        sides = [s for n in walk(node.value) if isinstance(n, cst.Comparison) for s in self._sides(n)]
        name = dotted(node.targets[0].target)
        used = any(
            isinstance(n, cst.If) and name in {dotted(m) for m in walk(n.test)} for n in self.script.nodes
        ) or name.startswith("is_best")
        numbers = name == "is_best" or all(self.scalar(s) or self._is_record(s, node) for s in sides)
        return bool(name) and used and numbers

    def _sides(self, test: cst.Comparison) -> list[cst.BaseExpression]:
        ordered = all(isinstance(c.operator, _ORDER) for c in test.comparisons)
        return [test.left, *(c.comparator for c in test.comparisons)] if ordered else []

    def _decision(self, node: cst.CSTNode, test: cst.Comparison) -> Iterator[Edit | Doubt]:
        anchor = node
        while (up := self.script.parents[anchor]) and isinstance(up, cst.If) and up.orelse is anchor:
            anchor = up  # an elif is decided where its chain begins
        for side in self._sides(test):
            if not (self.local(side) or self._timed(side, node)) or self._is_record(side, node):
                continue
            text = self.script.code(side)
            if not self.all_ranks(anchor):
                why = f"{text}: ranks may decide differently, below a condition that differs too"
                write = f"{text} = {self.facts.alias}.average({text}) where every rank comes by"
                yield Doubt(side, why, "high", write)
            elif isinstance(node, cst.While) or not _is_place(side):
                yield Edit(side, "all ranks must decide alike", self.wrapped)
                for n in walk(node) if isinstance(node, cst.If) else ():
                    if isinstance(n, cst.Assign) and self.script.code(n.value) == text:
                        yield Edit(n.value, "what is kept is what was compared", self.wrapped)
            elif (key := (self.script.function_of(anchor), text)) not in self.averaged:
                self.averaged[key] = self.script.order[anchor]
                yield Edit(self.script.line_of(anchor), f"{text}: all ranks must decide alike",
                           before=statements("torch/average_statement", dl=self.facts.alias, name=text))  # fmt: skip

    def _timed(self, side: cst.BaseExpression, node: cst.CSTNode) -> bool:
        """Tell whether ``side`` is read from the clock, and ends the training: each rank's own clock."""
        ends = isinstance(node, cst.While) or any(isinstance(n, (cst.Break, cst.Return)) for n in walk(node))
        inside = any(up in self.facts.loops for up in (node, *self.script.above(node)))
        return ends and inside and self.facts.unequal(side) and self.clock(side)

    @cached_property
    def clock(self) -> Taint:
        """What is read from the clock."""
        seeds = [c for c in self.script.calls if self.script.name_of(c.func).startswith(("time.", "datetime."))]
        return Taint(self.script, self.facts.kinds, seeds)

    def _is_record(self, side: cst.BaseExpression, node: cst.CSTNode) -> bool:
        """Tell whether ``side`` is a best-so-far, which only ever takes a value that was compared with it."""
        name = dotted(side)
        if any(word in name.lower() for word in _RECORDS):
            return True
        body = node.body if isinstance(node, cst.If) else None
        return (
            bool(name)
            and body is not None
            and any(isinstance(n, cst.Assign) and any(dotted(t.target) == name for t in n.targets) for n in walk(body))
        )

    def all_ranks(self, node: cst.CSTNode) -> bool:
        """Tell whether all ranks come to ``node`` or none: no condition above it depends on a rank's own values."""
        function = self.script.function_of(node)
        for up in self.script.above(node):
            if isinstance(up, (cst.Lambda, cst.ListComp, cst.GeneratorExp, cst.DictComp, cst.IfExp)):
                return False
            if isinstance(up, cst.If) and any(
                self.facts.unequal(side) and (function, self.script.code(side)) not in self.averaged
                for n in walk(up.test)
                if isinstance(n, cst.Comparison)
                for side in (n.left, *(c.comparator for c in n.comparisons))
                if not self._is_record(side, up)
            ):
                return False
            if isinstance(up, cst.If) and any(self._fills_apart(part) for part in _parts(up.test)):
                return False
        return True

    def _fills_apart(self, tested: cst.BaseExpression) -> bool:
        """Tell whether ``tested`` is a list that some ranks may have filled: under ``if done:``, which each decides."""
        bound = self.script.scopes[tested].lookup(tested.value)[0] if isinstance(tested, cst.Name) else []
        if not bound or not all(isinstance(b.written, cst.List) and not b.written.elements for b in bound):
            return False
        fills = [c for c in self.script.calls if dotted(c.func) == f"{dotted(tested)}.append"]
        return any(isinstance(up, cst.If) and any(self._made_in_loop(part) for part in _parts(up.test))
                   for call in fills for up in self.script.above(call))  # fmt: skip

    def _made_in_loop(self, tested: cst.BaseExpression) -> bool:
        """Tell whether ``tested`` is a name that a training loop gives another value in each turn."""
        bound = self.script.scopes[tested].lookup(tested.value)[0] if isinstance(tested, cst.Name) else []
        return any(up in self.facts.loops for b in bound if b.path for up in self.script.above(b.node))

    # -- what is shown ------------------------------------------------------------------------------------------

    def shown(self) -> Iterator[Edit | Doubt]:
        """Yield averages for numbers from training batches that are printed or logged."""
        training = self._around([self.script.function_of(loop) for loop in self.facts.loops])
        for call in self.script.calls:
            logs = isinstance(call.func, cst.Attribute) and call.func.attr.value in _LOGS
            if not logs and not self.script.name_of(call.func).endswith(("builtins.print", ".log_value")):
                continue
            if self.script.function_of(call) in training and self.all_ranks(call):
                self.formatted.update(numbers(call))
                yield from meters.shown(self, call)
                yield from meters.counts(self, call)
                for value in (v for arg in call.args for v in self.values(arg.value)):
                    if self.sums.alone(value):
                        yield Edit(value, "the sum over the ranks, not rank 0's own", self.totalled)
                    elif (curved := self.curved(value)) is None:
                        yield Edit(value, "the mean over the ranks, not rank 0's own", self.wrapped)
                    elif curved not in self.inner:
                        self.inner.add(curved)
                        yield Edit(curved, "of the mean over the ranks, not the mean of rank's own", self.wrapped)

    def _around(self, functions: list[cst.FunctionDef | cst.Module]) -> set[cst.CSTNode]:
        """Return ``functions`` and those that call them, directly or not."""
        found: set[cst.CSTNode] = set()
        while functions:
            function = functions.pop()
            if function not in found:
                found.add(function)
                functions.extend(self.script.function_of(call) for call in self.facts.flow.callers(function))
        return found

    def values(self, node: cst.CSTNode) -> list[cst.BaseExpression]:
        """Return the largest numbers within ``node`` that come from a rank's own training batches."""
        if node in self.trained.cuts:
            return []  # is the sum over all ranks
        if isinstance(node, cst.Call) and self.script.name_of(node.func) in ("builtins.round", "builtins.int"):
            return self.values(node.args[0].value) if node.args else []  # the mean is rounded, not the parts
        if isinstance(node, cst.Call) and self.script.name_of(node.func) in _CURVED:
            return self.values(node.args[0].value) if node.args else []  # perplexity is that of the mean loss
        mine = isinstance(node, cst.BaseExpression) and self.trained(node)
        number = mine and (node in self.formatted or self.scalar(node) or self.scalar.several(node))
        if isinstance(node, cst.BaseExpression) and number:
            return [] if self.sums.elsewhere(node) or self._is_averaged(node) else [node]
        if isinstance(node, (cst.Comparison, cst.Lambda, cst.IfExp, cst.ListComp, cst.GeneratorExp)):
            return []
        if isinstance(node, (cst.Arg, cst.Attribute, cst.Subscript)):
            return self.values(node.value)  # the name of a keyword or an attribute is no value, nor is an index
        return [value for child in children(node) for value in self.values(child)]

    def curved(self, value: cst.BaseExpression) -> cst.BaseExpression | None:
        """Return what the function that ``value`` comes from takes the exponential (or a root) of, at its one end."""
        made = [o.node for o in self.facts.flow.origins(value)]
        only = made[0] if len(made) == 1 else None
        if not isinstance(only, cst.Call) or self.script.name_of(only.func) not in _CURVED or not only.args:
            return None
        function = self.script.function_of(only)
        ends = isinstance(self.script.parents[only], cst.Return) and function is not self.script.function_of(value)
        inner = only.args[0].value
        return inner if ends and self.all_ranks(only) and self.trained(inner) else None

    def _is_averaged(self, node: cst.BaseExpression) -> bool:
        function, order = self.script.function_of(node), self.script.order
        since = self.averaged.get((function, self.script.code(node)))
        if since is not None and order[node] > since:
            return True
        bindings = self.script.scopes[node].lookup(node.value)[0] if isinstance(node, cst.Name) else []
        kept = [b.value for b in bindings if b.value is not None and self.local(b.value)]  # best = accuracy
        known = [self.averaged.get((function, self.script.code(value)), order[value]) for value in kept]
        return bool(kept) and all(at < order[value] for at, value in zip(known, kept, strict=True))


def _is_place(node: cst.BaseExpression) -> bool:
    """Tell whether a value can be assigned to ``node``: a name, an attribute, an entry under a text."""
    if isinstance(node, cst.Subscript) and isinstance(node.value, cst.Name) and len(node.slice) == 1:
        index = node.slice[0].slice
        return isinstance(index, cst.Index) and isinstance(index.value, cst.SimpleString)
    return isinstance(node, (cst.Name, cst.Attribute))


def _parts(test: cst.BaseExpression) -> Iterator[cst.BaseExpression]:
    """Yield what ``test`` joins with ``and``, ``or`` and ``not``."""
    if isinstance(test, cst.BooleanOperation):
        yield from _parts(test.left)
        yield from _parts(test.right)
    else:
        yield test.expression if isinstance(test, cst.UnaryOperation) else test
