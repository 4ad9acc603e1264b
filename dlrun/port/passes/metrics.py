"""Step "metrics": what is shown is the mean over the ranks, and what decides is the same on all of them."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from dlrun.port.edits import Doubt, Edit
from dlrun.port.facts import Facts
from dlrun.port.insert import expression, statements
from dlrun.port.script import dotted, walk
from dlrun.port.taint import contains

_ACTS = (cst.Break, cst.Continue, cst.Return, cst.Raise, cst.Assign, cst.AugAssign, cst.Expr)
_LOGS = ("set_postfix", "set_description", "set_postfix_str", "add_scalar", "add_scalars", "log", "info", "log_value",
         "scalar_summary", "write", "track")  # fmt: skip
_NUMBERS = (cst.Integer, cst.Float)


def torch(facts: Facts) -> Iterator[Edit | Doubt]:
    """Average a metric before a plateau scheduler, an early stop or a best checkpoint reads it, and what is printed.

    Before:
        model, best = torch.nn.Linear(2, 1), 0
        for epoch in range(9):
            accuracy = model(x).mean().item()
            if accuracy > best:
                best = accuracy
                break

    After:
        model, best = torch.nn.Linear(2, 1), 0
        for epoch in range(9):
            accuracy = model(x).mean().item()
            accuracy = dl.average(accuracy)  # mean over the ranks: all ranks decide alike
            if accuracy > best:
                best = accuracy
                break
    """
    yield from _Metrics(facts).all()


class _Metrics:
    def __init__(self, facts: Facts) -> None:
        self.facts = facts
        self.script = facts.script
        self.local = facts.local  # differs between ranks
        self.trained = facts.trained  # comes from a rank's own training batches
        self.averaged: set[tuple[cst.CSTNode, str]] = set()

    def all(self) -> Iterator[Edit | Doubt]:
        yield from self._plateaus()
        yield from self._decisions()
        yield from self._shown()

    def _wrapped(self, node: cst.BaseExpression) -> cst.BaseExpression:
        return expression("torch/average", {"value": node}, dl=self.facts.alias)

    # -- decisions ----------------------------------------------------------------------------------------------

    def _plateaus(self) -> Iterator[Edit | Doubt]:
        for call in self.script.calls:
            func = call.func
            if not (isinstance(func, cst.Attribute) and func.attr.value == "step" and call.args):
                continue
            value = call.args[0].value
            if self.facts.kinds.of(func.value) == "scheduler" and self.local(value):
                yield Edit(value, "the ranks' schedulers must see one value, or their rates drift apart", self._wrapped)

    def _decisions(self) -> Iterator[Edit | Doubt]:
        for node in self.script.nodes:
            if isinstance(node, (cst.If, cst.While)):
                test: cst.BaseExpression = node.test
                if not self._acts(node):
                    continue
            elif isinstance(node, cst.Assign) and contains(node.value, cst.Comparison):
                test = node.value
            else:
                continue
            comparisons = [n for n in walk(test) if isinstance(n, cst.Comparison)]
            for comparison in comparisons:
                if not any(isinstance(n, cst.Subscript) or self.local(n) for n in self._sides(comparison)):
                    continue
                yield from self._decide(node, comparison)

    def _sides(self, comparison: cst.Comparison) -> list[cst.BaseExpression]:
        return [comparison.left, *(c.comparator for c in comparison.comparisons)]

    def _acts(self, node: cst.If | cst.While) -> bool:
        """Tell whether the outcome changes what is trained, kept or run, and not only what is printed."""
        if isinstance(node, cst.While):
            return True
        for n in walk(node.body):
            if isinstance(n, (cst.Break, cst.Continue, cst.Return, cst.Raise, cst.Assign, cst.AugAssign)):
                return True
            if isinstance(n, cst.Call) and self.script.name_of(n.func) not in ("builtins.print", "builtins.len"):
                return True
        return False

    def _decide(self, node: cst.CSTNode, comparison: cst.Comparison) -> Iterator[Edit | Doubt]:
        anchor = node
        while (
            isinstance(anchor, cst.If)
            and isinstance(self.script.parents[anchor], cst.If)
            and (
                self.script.parents[anchor].orelse is anchor  # type: ignore[attr-defined]
            )
        ):
            anchor = self.script.parents[anchor]
        if self._under_local_test(anchor) or not self._every_rank_comes(anchor):
            return
        for side in self._sides(comparison):
            if not self.local(side) or self._is_record(side, node):
                continue
            names = [side] if isinstance(side, (cst.Name, cst.Attribute)) else []
            if not names or isinstance(node, cst.While):
                yield Edit(side, "all ranks must decide alike", self._wrapped)
                continue
            text = self.script.code(side)
            key = (self.script.function_of(anchor), text)
            if key not in self.averaged:
                self.averaged.add(key)
                yield Edit(self.script.line_of(anchor), f"{text}: all ranks must decide alike",
                           before=statements("torch/average_statement", dl=self.facts.alias, name=text))  # fmt: skip

    def _is_record(self, side: cst.BaseExpression, node: cst.CSTNode) -> bool:
        """Tell whether ``side`` is a best-so-far: it is only ever given a constant or the value it is compared with."""
        name = dotted(side)
        if any(w in name.lower() for w in ("best", "min_", "max_", "lowest", "highest", "prev", "last_")):
            return True
        body = node.body if isinstance(node, cst.If) else None
        return (
            body is not None
            and any(isinstance(n, cst.Assign) and any(dotted(t.target) == name for t in n.targets) for n in walk(body))
            and bool(name)
        )

    def _under_local_test(self, node: cst.CSTNode) -> bool:
        return any(
            isinstance(up, (cst.If, cst.While)) and any(
                isinstance(n, cst.Comparison) and any(self.local(s) for s in self._sides(n)) for n in walk(up.test)
            )
            and not any((self.script.function_of(up), self.script.code(s)) in self.averaged
                        for n in walk(up.test) if isinstance(n, cst.Comparison) for s in self._sides(n))
            for up in self.script.above(node)
        )  # fmt: skip

    def _every_rank_comes(self, node: cst.CSTNode) -> bool:
        """Tell whether ``node`` runs equally often on every rank: not per sample of a loop of unequal length."""
        return not any(isinstance(up, (cst.Lambda, cst.ListComp, cst.GeneratorExp)) for up in self.script.above(node))

    # -- what is shown ------------------------------------------------------------------------------------------

    def _shown(self) -> Iterator[Edit | Doubt]:
        for call in self.script.calls:
            last = call.func.attr.value if isinstance(call.func, cst.Attribute) else dotted(call.func)
            if not (
                self.script.name_of(call.func) == "builtins.print"
                or (isinstance(call.func, cst.Attribute) and last in _LOGS)
            ):
                continue
            if not self._in_training_loop(call) or self._under_local_test(call):
                continue
            for arg in call.args:
                for value in self._values(arg.value):
                    yield Edit(value, "the mean over the ranks, not rank 0's own", self._wrapped)

    def _in_training_loop(self, call: cst.Call) -> bool:
        return any(up in self.facts.loops for up in self.script.above(call)) and not any(
            isinstance(up, (cst.Lambda, cst.ListComp, cst.GeneratorExp)) for up in self.script.above(call)
        )

    def _values(self, node: cst.CSTNode) -> list[cst.BaseExpression]:
        """Return the largest scalar expressions within ``node`` that come from a rank's own training batches."""
        if isinstance(node, cst.BaseExpression) and self.trained(node) and self._scalar(node):
            return [node]
        if isinstance(node, (cst.Comparison, cst.Lambda, cst.IfExp)):
            return []
        from dlrun.port.script import children

        return [v for child in children(node) for v in self._values(child)]

    def _scalar(self, node: cst.CSTNode, depth: int = 0) -> bool:
        """Tell whether ``node`` is surely one number."""
        if depth > 6:
            return False
        match node:
            case cst.Integer() | cst.Float():
                return True
            case cst.Call():
                if isinstance(node.func, cst.Attribute) and node.func.attr.value == "item":
                    return True
                return self.script.name_of(node.func) in (
                    "builtins.float",
                    "builtins.len",
                    "builtins.sum",
                    "numpy.mean",
                )
            case cst.BinaryOperation():
                if isinstance(node.operator, cst.Modulo):
                    return False
                return self._scalar(node.left, depth + 1) and self._scalar(node.right, depth + 1)
            case cst.UnaryOperation():
                return self._scalar(node.expression, depth + 1)
            case cst.Attribute():
                return node.attr.value in ("avg", "val", "global_avg")
            case cst.Name():
                bindings, _ = self.script.scopes[node].lookup(node.value)
                # A name in a chain of numbers: a counter, a sum of `.item()`s, a constant.
                return bool(bindings) and all(self._scalar_binding(b, depth) for b in bindings)
        return False

    def _scalar_binding(self, binding, depth: int) -> bool:  # type: ignore[no-untyped-def]
        if isinstance(binding.node, (cst.For, cst.CompFor)):
            call = binding.value
            return (
                isinstance(call, cst.Call)
                and self.script.name_of(call.func) in ("builtins.range", "builtins.enumerate")
                and (binding.path in (("each",), ("each", 0)))
            )
        if binding.how != "assign" or binding.value is None:
            return False
        return binding.path in ((), ("part",)) and self._scalar(binding.value, depth + 1)
