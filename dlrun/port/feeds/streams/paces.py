"""Numbers that training takes one a step, from what moves on with each: rates and weights of a schedule, no samples."""

from __future__ import annotations

import libcst as cst

from dlrun.port.facts.loops import Loops
from dlrun.port.facts.updates.rates import text_of
from dlrun.port.program.script import dotted

_SHOWN = ("builtins.print", "builtins.float", "builtins.str", "builtins.format")
_ARITHMETIC = ("builtins.min", "builtins.max", "builtins.abs", "builtins.round", "math.", "numpy.clip", "numpy.exp")
_RATES = ("lr", "learning_rate", "momentum", "weight_decay", "betas", "eps")
_AS_IT_IS = ("item", "float", "double", "to", "numpy")


class Paces:
    """Tells numbers of a schedule from samples, where both come one a step: ``rates.next()``, ``next(betas)``."""

    def __init__(self, loops: Loops, losses: list[cst.BaseExpression]) -> None:
        """``losses`` are what gradients are computed of."""
        self._script = loops.script
        self._losses = {dotted(loss) for loss in losses} - {""}

    def hands_itself_on(self, call: cst.Call) -> bool:
        """Tell whether ``call`` makes a state of the one before: ``self.state = self.step(self.state)``."""
        up = self._script.parents.get(call)
        made = {dotted(t.target) for t in up.targets} if isinstance(up, cst.Assign) else set()
        return not made.isdisjoint(dotted(arg.value) for arg in call.args if dotted(arg.value))

    def is_number(self, value: cst.CSTNode) -> bool:
        """Tell whether ``value`` becomes a rate, a weight in a loss or a line shown, and nothing else."""
        todo, seen = list[cst.CSTNode]([value]), set[cst.CSTNode]()
        while todo:
            node = todo.pop()
            if node in seen:
                continue
            seen.add(node)
            following = self._becomes(node)
            if following is None:
                return False
            todo.extend(following)
        return True

    def _becomes(self, node: cst.CSTNode) -> list[cst.CSTNode] | None:
        """Return what is made of the number ``node`` where it stands; None where that may be samples."""
        up = self._script.parents[node]
        match up:
            case cst.BinaryOperation() | cst.UnaryOperation() | cst.IfExp():
                return [up]
            case cst.Comparison() | cst.ComparisonTarget() | cst.FormattedStringExpression() | cst.Expr():
                return []
            case cst.Attribute(attr=cst.Name(how)) if how in _AS_IT_IS:
                call = self._script.parents[up]
                return [call] if isinstance(call, cst.Call) else None
            case cst.Arg():
                return self._given(up)
            case cst.Assign(targets=[cst.AssignTarget(target=target)]) | cst.AugAssign(target=target):
                return self._named(target)
        return None

    def _given(self, arg: cst.Arg) -> list[cst.CSTNode] | None:
        call = self._script.parents[arg]
        name = self._script.name_of(call.func) if isinstance(call, cst.Call) else ""
        if name.startswith(_ARITHMETIC):
            return [call]
        return [] if name in _SHOWN else None

    def _named(self, target: cst.BaseExpression) -> list[cst.CSTNode] | None:
        if dotted(target) in self._losses or self._is_rate(target):
            return []
        if not isinstance(target, cst.Name):
            return None
        same = self._script.names_of(target.value, self._script.scope_of(target))
        ups = ((n, self._script.parents[n]) for n in same if n is not target)
        return [
            n
            for n, up in ups
            if not isinstance(up, (cst.AssignTarget, cst.Param)) and getattr(up, "attr", None) is not n
        ]

    def _is_rate(self, target: cst.BaseExpression) -> bool:
        """Tell whether ``target`` is ``group["lr"]``, or an attribute of such a name."""
        if isinstance(target, cst.Attribute):
            return target.attr.value in _RATES
        index = target.slice[0].slice if isinstance(target, cst.Subscript) else None
        return isinstance(index, cst.Index) and text_of(index.value) in _RATES
