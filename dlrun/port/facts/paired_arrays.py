"""Which arrays are taken side by side, and so hold the same samples."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import libcst as cst

from dlrun.port.program.flow import Flow
from dlrun.port.program.script import Binding

_DEPTH = 6

Names = frozenset[str]
# What an expression is made of: arrays by name, and parameters of functions, which each call gives others.
_Parameter = tuple[cst.FunctionDef, str]


class Together:
    """Collects the arrays that one mean or one call takes; those behind a parameter follow from each call's own."""

    def __init__(self, flow: Flow, behind: Callable[[cst.CSTNode], Names]) -> None:
        """Take what tells the names ``behind`` an expression: arrays, and parameters as ``parameter()`` names them."""
        self.flow = flow
        self._behind = behind
        self._parameters: dict[str, _Parameter] = {}
        self._taken: list[Names] = []

    def parameter(self, binding: Binding) -> str:
        """Return the name of a parameter, for what it may stand for in the function that it belongs to."""
        function = self.flow.script.scopes[binding.node].node
        assert isinstance(function, cst.FunctionDef)
        text = f"{binding.name} of {self.flow.script.place(function)}"
        self._parameters[text] = (function, binding.name)
        return text

    def take(self, names: Names) -> None:
        """Note that ``names`` are taken side by side."""
        self._taken.append(names)

    def given(self, call: cst.Call, names: Names) -> Names:
        """Return ``names``, of what ``call`` returns, with what it gives for parameters of what it runs."""
        mine = self.flow.targets(call)
        return frozenset().union(*(self._of(call, name) if self._owner(name) in mine else {name} for name in names))

    def groups(self, names: Iterable[str]) -> list[tuple[str, ...]]:
        """Return ``names`` in groups: those that are taken side by side hold the same samples."""
        names = list(names)
        root = {name: name for name in names}
        for group in (g for taken in self._taken for g in self._by_calls(taken, _DEPTH)):
            mine = [n for n in names if n in group]
            for other in mine[1:]:
                old, new = root[other], root[mine[0]]
                root = {n: new if r == old else r for n, r in root.items()}
        return [tuple(n for n in names if root[n] == r) for r in dict.fromkeys(root.values())]

    def _by_calls(self, taken: Names, depth: int) -> list[Names]:
        """Return ``taken`` for each of the calls that give values for the parameters in it."""
        function = next((f for name in sorted(taken) if (f := self._owner(name)) is not None), None)
        if function is None or not depth:
            return [taken]
        return [
            names
            for call in self.flow.callers(function)
            for names in self._by_calls(self.given(call, taken), depth - 1)
        ]

    def _owner(self, name: str) -> cst.FunctionDef | None:
        return self._parameters[name][0] if name in self._parameters else None

    def _of(self, call: cst.Call, name: str) -> Names:
        value = self.flow.argument(call, *self._parameters[name])
        return self._behind(value) if value is not None else frozenset()
