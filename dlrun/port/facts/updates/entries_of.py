"""What a loop or a sum goes over: the samples of a batch, or parts that each hold all of them, such as heads."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property

import libcst as cst

from dlrun.port.facts.models.kinds import Kinds
from dlrun.port.program.dicts import pairs
from dlrun.port.program.script import Binding, calls_method

_LIKE = {f"builtins.{name}" for name in ("enumerate", "zip", "list", "tuple", "reversed", "iter", "sorted", "map")}
_STACKS = {"torch.stack", "tensorflow.stack", "numpy.stack"}
_VIEWS = ("values", "items", "keys")
_FRAMEWORKS = ("torch.", "keras.", "tensorflow.")
_PARTS = ("split", "chunk", "unbind", "tensor_split", "pop", "get")
_DEPTH = 12


class EntriesOf:
    """Tells of arrays, lists and dicts whether their entries are samples, and what is put into them later."""

    def __init__(
        self,
        kinds: Kinds,
        is_data: Callable[[cst.CSTNode], bool],
        counts: Callable[[cst.CSTNode], bool],
        local: Callable[[cst.CSTNode], bool],
    ) -> None:
        """Take what tells arrays of samples, their number, and what depends on them."""
        self._kinds, self._flow, self._script = kinds, kinds.flow, kinds.script
        self._is_data, self._counts, self._local = is_data, counts, local

    def samples(self, node: cst.CSTNode, depth: int = 0) -> bool | None:
        """Tell whether the entries of ``node`` are samples; None where that is not known."""
        if self._is_data(node):
            return True
        if depth > _DEPTH:
            return None
        match node:
            case cst.Name():
                return _all(self._of_binding(b, depth + 1) for b in self._script.bindings_of(node))
            case cst.ListComp() | cst.GeneratorExp() | cst.DictComp() | cst.SetComp():
                return self.samples(node.for_in.iter, depth + 1)
            case cst.List() | cst.Tuple() if node.elements:
                return False
            case cst.List():
                loops = [self._loop_around(call) for call in self.appended(node)]
                return _all(loop is not None and self.samples(loop.iter, depth + 1) for loop in loops)
            case cst.Call():
                return self._of_call(node, depth)
            case cst.BinaryOperation():
                sides = [self.samples(side, depth + 1) for side in (node.left, node.right)]
                return True if True in sides else None if None in sides else False
            case cst.Dict() | cst.SimpleString():
                return False
        return None if self._local(node) else False

    def is_stack(self, node: cst.CSTNode) -> bool:
        """Tell whether ``node`` stacks what a list holds."""
        return isinstance(node, cst.Call) and self._script.name_of(node.func) in _STACKS

    def _of_call(self, call: cst.Call, depth: int) -> bool | None:
        name = self._script.name_of(call.func)
        if name == "builtins.range":
            return any(self._counts(arg.value) for arg in call.args)  # range(len(x))
        if calls_method(call, *_VIEWS) or name == "builtins.dict":
            return False
        if name in _LIKE | _STACKS:
            found = [self.samples(arg.value, depth + 1) for arg in call.args[name == "builtins.map" :]]
            return True if True in found else None if None in found else False
        returned = [r for t in self._run_by(call) for r in self._flow.returns(t)]
        if returned:
            return _all(self.samples(r, depth + 1) for r in returned)
        made = [
            self._script.name_of(o.node.func) for o in self._flow.origins(call.func) if isinstance(o.node, cst.Call)
        ]
        if made and all(m.startswith(_FRAMEWORKS) for m in made):
            return True  # a layer gives one array
        first = call.func.value if isinstance(call.func, cst.Attribute) and not name.startswith(_FRAMEWORKS) else None
        first = call.args[0].value if first is None and name and call.args else first
        plain = first is not None and not calls_method(call, *_PARTS)
        whole = plain and first is not None and self.samples(first, depth + 1)
        return True if whole else None if self._local(call) else False

    def _run_by(self, call: cst.Call) -> list[cst.FunctionDef]:
        """Return the functions that ``call`` runs, also the ``forward`` of a module."""
        forward = [self._flow.method(cls, "forward") for cls in self._flow.classes(call.func)]
        return [f for f in forward if f is not None] or self._flow.targets(call)

    def _of_binding(self, binding: Binding, depth: int) -> bool | None:
        if binding.how == "param":
            function = self._script.scopes[binding.node].node
            calls = self._flow.callers(function) if isinstance(function, cst.FunctionDef) else []
            given = [self._flow.argument(c, function, binding.name) for c in calls]  # type: ignore[arg-type]
            return _all(self.samples(v, depth) for v in given if v is not None)
        value = binding.value
        if value is None or binding.how != "assign":
            return None
        if not binding.path:
            return self.samples(value, depth)
        values: list[cst.BaseExpression] = [value]
        if isinstance(value, cst.Call):
            values = [r for t in self._run_by(value) for r in self._flow.returns(t)]
        at = binding.path[0]
        parts = [
            v.elements[at].value
            for v in values
            if isinstance(v, (cst.Tuple, cst.List)) and isinstance(at, int) and at < len(v.elements)
        ]
        return _all(self.samples(part, depth) for part in parts)

    def _loop_around(self, node: cst.CSTNode) -> cst.For | None:
        above = self._script.above(node)
        return next((up for up in above if isinstance(up, cst.For)), None)

    def appended(self, made: cst.CSTNode) -> list[cst.Call]:
        """Return the calls that append to the list ``made``."""
        return self._appends.get(made, [])

    @cached_property
    def _appends(self) -> dict[cst.CSTNode, list[cst.Call]]:
        found: dict[cst.CSTNode, list[cst.Call]] = {}
        for call in self._script.calls:
            if calls_method(call, "append") and call.args and isinstance(call.func, cst.Attribute):
                for binding in self._script.bindings_of(call.func.value):
                    if isinstance(binding.value, cst.List) and not binding.path:
                        found.setdefault(binding.value, []).append(call)
        return found

    def held(self, made: cst.CSTNode) -> list[cst.BaseExpression]:
        """Return what a list or a dict holds, or gets later."""
        if isinstance(made, (cst.List, cst.Tuple)):
            return [e.value for e in made.elements] + [call.args[0].value for call in self.appended(made)]
        return [value for _, value in (*pairs(made), *self._flow.stored(made))]


def each_of(binding: Binding) -> cst.BaseExpression | None:
    """Return that of which a loop or a comprehension gives the name an entry; None of the number of an entry."""
    over, path = binding.value, binding.path[1:]
    while isinstance(over, cst.Call) and path:
        named = over.func.value if isinstance(over.func, cst.Name) else ""
        if named == "enumerate" and over.args:
            if path[0] != 1:
                return None
            over, path = over.args[0].value, path[1:]
        elif named == "zip" and isinstance(path[0], int) and path[0] < len(over.args):
            over, path = over.args[path[0]].value, path[1:]
        else:
            return None if calls_method(over, "items") and path[0] == 0 else over
    return over


def _all(found: Iterator[bool | None]) -> bool | None:
    """Return what all of them say; None where they differ, or there are none."""
    said = set(found)
    return said.pop() if len(said) == 1 else None
