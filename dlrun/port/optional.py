"""What a script does only where an option is on that is off by default: ``if args.distributed: model = DDP(model)``."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from typing import Any

import libcst as cst

from dlrun.port.program.script import Script, argument, dotted

UNKNOWN = object()
_NAMES = {"True": True, "False": False, "None": None}
_COMPARES: dict[type[cst.BaseCompOp], Any] = {
    cst.Equal: operator.eq,
    cst.NotEqual: operator.ne,
    cst.LessThan: operator.lt,
    cst.GreaterThan: operator.gt,
    cst.LessThanEqual: operator.le,
    cst.GreaterThanEqual: operator.ge,
    cst.Is: operator.is_,
    cst.IsNot: operator.is_not,
}
_NOT_YET = ("torch.distributed.is_initialized", "torch.distributed.distributed_c10d.is_initialized")
_FLAGS = ("DEFINE_bool", "DEFINE_boolean", "DEFINE_integer", "DEFINE_string", "DEFINE_enum")
_DEEPEST = 8


class Defaults:
    """The values that the options of ``script`` have where the command line says nothing, and what follows."""

    def __init__(self, script: Script) -> None:
        """Note the options that the script declares, and the attributes that it sets."""
        self.script = script
        self.options: dict[str, list[Any]] = {}
        for call in script.calls:
            method = dotted(call.func).rpartition(".")[2]
            if method == "add_argument":
                for name in _option_names(call):
                    self.options.setdefault(name, []).append(_default(call))
            elif method in _FLAGS and len(call.args) > 1 and isinstance(call.args[0].value, cst.SimpleString):
                self.options.setdefault(str(call.args[0].value.evaluated_value), []).append(call.args[1].value)
        self.set: dict[str, list[cst.BaseExpression]] = {}
        for node in script.of(cst.Assign):
            for target in node.targets:
                if isinstance(target.target, cst.Attribute):
                    self.set.setdefault(dotted(target.target), []).append(node.value)
        self._off: dict[cst.CSTNode, bool] = {}

    def value(self, node: Any, depth: int = 0) -> Any:
        """Return the value of ``node`` with all options at their defaults, or UNKNOWN."""
        if depth > _DEEPEST or not isinstance(node, cst.CSTNode):
            return UNKNOWN if isinstance(node, cst.CSTNode) else node
        match node:
            case cst.Name(value=name) if name in _NAMES:
                return _NAMES[name]
            case cst.Integer() | cst.Float() | cst.SimpleString():
                return node.evaluated_value
            case cst.UnaryOperation(operator=cst.Minus(), expression=cst.Integer() as number):
                return -number.evaluated_value
            case cst.UnaryOperation(operator=cst.Not(), expression=inner):
                found = self.value(inner, depth + 1)
                return UNKNOWN if found is UNKNOWN else not found
            case cst.BooleanOperation():
                return self._joined(node, depth)
            case cst.Comparison(left=left, comparisons=[cst.ComparisonTarget(operator=how, comparator=right)]):
                return self._compared(self.value(left, depth + 1), how, self.value(right, depth + 1))
            case cst.Call(func=func):
                return False if self.script.name_of(func) in _NOT_YET else UNKNOWN
            case cst.Name() | cst.Attribute():
                return self._named(node, depth)
        return UNKNOWN

    def _joined(self, node: cst.BooleanOperation, depth: int) -> Any:
        left, right = self.value(node.left, depth + 1), self.value(node.right, depth + 1)
        ends = isinstance(node.operator, cst.Or)  # the truth that ends it
        for side in (left, right):
            if side is not UNKNOWN and bool(side) is ends:
                return ends
        return UNKNOWN if UNKNOWN in (left, right) else not ends

    def _compared(self, left: Any, how: cst.BaseCompOp, right: Any) -> Any:
        if UNKNOWN in (left, right) or type(how) not in _COMPARES:
            return UNKNOWN
        try:
            return _COMPARES[type(how)](left, right)
        except TypeError:
            return UNKNOWN

    def _named(self, node: cst.Name | cst.Attribute, depth: int) -> Any:
        """Return what all that ``node`` may be comes to; UNKNOWN where it is not one, or nothing tells."""
        if isinstance(node, cst.Attribute):
            given = [*self.options.get(node.attr.value, ()), *self.set.get(dotted(node), ())]
        else:
            bound = self.script.bindings_of(node)
            given = [b.value if b.how == "assign" and not b.path else UNKNOWN for b in bound]
        values = [self.value(each, depth + 1) for each in given]
        return values[0] if values and all(v is not UNKNOWN and v == values[0] for v in values) else UNKNOWN

    def is_off(self, node: cst.CSTNode) -> bool:
        """Tell whether ``node`` runs only where an option is on that is off by default, or in what nothing runs."""
        below, whole = node, None
        for up in self.script.above(node):
            if self._leaves_out(up, below):
                return True
            whole = up if isinstance(up, (cst.FunctionDef, cst.ClassDef)) else whole
            below = up
        if whole is None or whole.decorators:
            return False
        if whole not in self._off:
            self._off[whole] = True  # it may call itself
            uses = list(self._uses(whole))
            self._off[whole] = all(map(self.is_off, uses))
        return self._off[whole]

    def _uses(self, whole: cst.FunctionDef | cst.ClassDef) -> Iterator[cst.CSTNode]:
        """Yield where the name of ``whole`` stands, but for itself and imports."""
        for name in self.script.named(whole.name.value):
            imported = any(isinstance(up, (cst.Import, cst.ImportFrom)) for up in self.script.above(name))
            if not imported and not self.script.inside(name, whole):
                yield name

    def _leaves_out(self, up: cst.CSTNode, below: cst.CSTNode) -> bool:
        """Tell whether ``up`` does not come to ``below``, which is right in it."""
        match up:
            case cst.If(test=test) | cst.IfExp(test=test) if below is not test:
                found = self.value(test)
                return found is not UNKNOWN and bool(found) is (below is up.orelse)
            case cst.BooleanOperation(left=left, operator=how, right=right) if below is right:
                found = self.value(left)
                return found is not UNKNOWN and bool(found) is isinstance(how, cst.Or)
        return False


def _option_names(call: cst.Call) -> list[str]:
    texts = [a.value.evaluated_value for a in call.args if a.keyword is None and isinstance(a.value, cst.SimpleString)]
    destination = argument(call, "dest")
    if isinstance(destination, cst.SimpleString):
        return [str(destination.evaluated_value)]
    return [str(text).lstrip("-").replace("-", "_") for text in texts]


def _first_text(call: cst.Call) -> str:
    first = call.args[0].value if call.args else None
    return str(first.evaluated_value) if isinstance(first, cst.SimpleString) else ""


def _default(call: cst.Call) -> Any:
    """Return what an option is where it is not given, as an expression or as a value."""
    given, action = argument(call, "default"), argument(call, "action")
    if argument(call, "required") is not None or not _first_text(call).startswith("-"):
        return UNKNOWN
    if given is not None or action is None:
        return given
    return {"store_true": False, "store_false": True}.get(str(getattr(action, "evaluated_value", "")), UNKNOWN)


def unused(script: Script, statement: cst.CSTNode, defaults: Defaults) -> bool:
    """Tell whether nothing that ``statement`` imports is used, but where an option is on that is off by default."""
    bound = {
        name
        for s in set(script.scopes.values())
        for name, bs in s.names.items()
        if any(b.how == "import" and b.node is statement for b in bs)
    }
    uses = [
        n
        for name in bound
        for n in script.named(name)
        if not script.inside(n, statement) and any(b.node is statement for b in script.bindings_of(n))
    ]
    return bool(bound) and all(map(defaults.is_off, uses))
