"""One function for training and evaluation: which of its calls let it train, told from the arguments they pass."""

from __future__ import annotations

import libcst as cst

from dlrun.port.facts.torch import Gradients
from dlrun.port.program.script import calls_method

_UNKNOWN = object()
_SOMETHING = object()  # a value that is no None, no False and no empty text


class Sites:
    """Tells the calls of a function that lead to an update from those that a test in it keeps from updating."""

    def __init__(self, gradients: Gradients, ends: list[cst.CSTNode]) -> None:
        """Answer for the script of ``gradients``, whose updates are at ``ends``."""
        self.gradients, self.ends = gradients, ends
        self.script = gradients.script
        self.flow = gradients.flow

    def split(self, loop: cst.For | cst.While, name: cst.BaseExpression) -> tuple[list[cst.BaseExpression], ...]:
        """Return what ``name`` stands for in the calls that train, and in those that only evaluate.

        That is what they pass for a parameter, or what the function chooses by a test of its parameters. Both are empty
        where ``name`` is neither in the function that holds ``loop``, or where all calls train.
        """
        function = self.script.function_of(loop)
        if not isinstance(function, cst.FunctionDef) or not isinstance(name, cst.Name):
            return [], []
        ends = [e for e in self.ends if self.script.inside(e, loop)]
        trains: list[cst.BaseExpression] = []
        evaluates: list[cst.BaseExpression] = []
        for call in self.flow.callers(function):
            reached = not ends or any(self.reaches(call, function, end) for end in ends)
            (trains if reached else evaluates).extend(self._given(name, function, call))
        apart = trains and evaluates and not any(given in trains for given in evaluates)
        return (trains, evaluates) if apart else ([], [])

    def evaluates(self, function: cst.FunctionDef, call: cst.Call, node: cst.CSTNode) -> bool | None:
        """Tell whether ``call`` puts a model into evaluation mode before ``node``; None where it leaves it as it is."""
        order, found = self.script.order, None
        for mode in (c for c in self.script.calls if calls_method(c, "eval", "train")):
            near = self.script.function_of(mode) is function and order[mode] < order[node]
            if near and self._reached(mode, function, call):
                given = mode.args[0].value if mode.args else None
                off = given is not None and self._value(given, function, call) is False
                found = off or calls_method(mode, "eval")
        return found

    def _given(self, name: cst.Name, function: cst.FunctionDef, call: cst.Call) -> list[cst.BaseExpression]:
        """Return what ``name`` is in ``function`` when ``call`` runs it: its own parameter, or chosen by a test."""
        bindings = self.script.bindings_of(name)
        if any(b.how == "param" and self.script.scopes[b.node].node is function for b in bindings):
            given = self.flow.argument(call, function, name.value)
            return [given] if given is not None else []
        found: list[cst.BaseExpression] = []
        for binding in bindings:
            if binding.how == "assign" and not binding.path and self.script.function_of(binding.node) is function:
                value = binding.value if self._reached(binding.node, function, call) else None
                test = self._value(value.test, function, call) if isinstance(value, cst.IfExp) else _UNKNOWN
                if isinstance(value, cst.IfExp) and test is not _UNKNOWN:
                    value = value.body if test else value.orelse
                found.extend([value] if isinstance(value, cst.BaseExpression) else [])
        return found

    def reaches(self, call: cst.Call, function: cst.FunctionDef, node: cst.CSTNode) -> bool:
        """Tell whether ``call`` of ``function`` may come to ``node`` in it, and train there if that is an update."""
        trains = node not in self.ends or self.gradients.trains_by(node, function, call)
        return trains and self._reached(node, function, call)

    def _reached(self, end: cst.CSTNode, function: cst.FunctionDef, call: cst.Call) -> bool:
        """Tell whether ``call`` of ``function`` may come to ``end``: no test around it fails for sure.

        And none before it leaves the function for sure: ``if evaluate: return loss``.
        """
        inner: cst.CSTNode = end
        for up in self.script.above(end):
            if up is function:
                return True
            if isinstance(up, cst.If):
                value = self._value(up.test, function, call)
                if value is not _UNKNOWN and bool(value) is not (inner is up.body):
                    return False
            elif isinstance(up, cst.IndentedBlock):
                before = up.body[: up.body.index(inner)] if inner in up.body else ()
                tests = [n for n in before if isinstance(n, cst.If) and _leaves(n.body)]
                if any((value := self._value(n.test, function, call)) is not _UNKNOWN and value for n in tests):
                    return False
            inner = up
        return True

    def _value(self, node: cst.BaseExpression, function: cst.FunctionDef, call: cst.Call, depth: int = 0) -> object:
        """Return what ``node`` is in ``function`` when ``call`` runs it; ``_UNKNOWN`` where nothing tells."""
        if depth > 5:
            return _UNKNOWN
        match node:
            case cst.Name(value="True" | "False" | "None"):
                return {"True": True, "False": False, "None": None}[node.value]
            case cst.SimpleString() | cst.Integer():
                return node.evaluated_value
            case cst.Name():
                return self._of_name(node, function, call, depth + 1)
            case cst.UnaryOperation(operator=cst.Not()):
                value = self._value(node.expression, function, call, depth + 1)
                return _UNKNOWN if value is _UNKNOWN else not value
            case cst.BooleanOperation():
                both = [self._value(n, function, call, depth + 1) for n in (node.left, node.right)]
                decisive = isinstance(node.operator, cst.Or)
                if any(v is not _UNKNOWN and bool(v) is decisive for v in both):
                    return decisive
                return _UNKNOWN if _UNKNOWN in both else not decisive
            case cst.Comparison() if len(node.comparisons) == 1:
                return self._compared(node, function, call, depth + 1)
        return _UNKNOWN

    def _compared(self, node: cst.Comparison, function: cst.FunctionDef, call: cst.Call, depth: int) -> object:
        test = node.comparisons[0]
        left, right = (self._value(n, function, call, depth) for n in (node.left, test.comparator))
        if left is _UNKNOWN or right is _UNKNOWN:
            return _UNKNOWN
        if isinstance(test.operator, (cst.Is, cst.IsNot)):
            return (left is right) is isinstance(test.operator, cst.Is)
        if isinstance(test.operator, (cst.Equal, cst.NotEqual)) and _SOMETHING not in (left, right):
            return (left == right) is isinstance(test.operator, cst.Equal)
        return _UNKNOWN

    def _of_name(self, node: cst.Name, function: cst.FunctionDef, call: cst.Call, depth: int) -> object:
        bindings = self.script.bindings_of(node)
        if len(bindings) != 1:
            return _UNKNOWN
        (only,) = bindings
        if only.how == "assign" and not only.path and only.value is not None:
            return self._value(only.value, function, call, depth)
        if only.how != "param" or self.script.scopes[only.node].node is not function:
            return _UNKNOWN
        given = self.flow.argument(call, function, node.value)
        if given is None:
            starred = any(a.star for a in call.args)
            return _UNKNOWN if starred or only.value is None else self._value(only.value, function, call, depth)
        if isinstance(given, (cst.Name, cst.SimpleString, cst.Integer)) and not (
            isinstance(given, cst.Name) and given.value not in ("True", "False", "None")
        ):
            return self._value(given, function, call, depth)
        made = [o.node for o in self.flow.origins(given)]
        return _SOMETHING if made and all(isinstance(m, cst.Call) for m in made) else _UNKNOWN


def _leaves(body: cst.BaseSuite) -> bool:
    """Tell whether ``body`` ends by leaving the function."""
    last = body.body[-1] if body.body else None
    end = last.body[-1] if isinstance(last, cst.SimpleStatementLine) else last
    return isinstance(end, (cst.Return, cst.Raise))
