"""What passes in and out of functions beside parameters and returns: ``**options``, and what generators yield."""

from __future__ import annotations

from functools import cached_property

import libcst as cst

from dlrun.port.program.filling import Filling
from dlrun.port.program.script import Path


class Handed(Filling):
    """Answers what calls give by names that no parameter has, and what is handed on value by value."""

    _callers: dict[cst.CSTNode, list[cst.Call]] | None = None  # the calls that may run a function, once all are known

    @cached_property
    def _yields(self) -> dict[cst.CSTNode, list[cst.Yield]]:
        """Where each function yields."""
        found: dict[cst.CSTNode, list[cst.Yield]] = {}
        for node in self.script.of(cst.Yield):
            found.setdefault(self.script.function_of(node), []).append(node)
        return found

    def yields(self, function: cst.CSTNode) -> list[cst.Yield]:
        """Return where ``function`` yields; nothing of what is no generator."""
        return self._yields.get(function, [])

    def yielded(self, function: cst.CSTNode, path: Path) -> list[tuple[cst.CSTNode, Path]]:
        """Return what ``function`` yields, each with its part in the entry ``path``, and what it hands on, with all."""
        values = [node.value for node in self.yields(function)]
        return [(v.item, path) if isinstance(v, cst.From) else (v, path[1:]) for v in values if v is not None]

    def keyworded(self, options: cst.CSTNode) -> list[tuple[str, cst.BaseExpression]]:
        """Return what calls give a function's ``**options`` by name, if the parameter ``options`` is one."""
        function = self.script.scopes[options].node if isinstance(options, cst.Param) else None
        if not isinstance(function, cst.FunctionDef) or function.params.star_kwarg is not options:
            return []
        known = self._callers.get(function, []) if self._callers is not None else self.named_calls(function)
        return [(a.keyword.value, a.value) for call in known for a in self._into_options(call, function)]  # type: ignore[union-attr]

    def _into_options(self, call: cst.Call, function: cst.FunctionDef) -> list[cst.Arg]:
        named = {p.name.value for p in (*function.params.params, *function.params.kwonly_params)}
        return [a for a in call.args if a.keyword is not None and a.keyword.value not in named]

    def _of_keyword(self, options: cst.BaseExpression, key: cst.BaseExpression | None) -> list[cst.BaseExpression]:
        """Return what ``options[key]`` may be where ``options`` are a function's ``**kwargs``."""
        found: list[cst.BaseExpression] = []
        name = key.evaluated_value if isinstance(key, cst.SimpleString) else None
        for binding in self.script.bindings_of(options) if name is not None else ():
            found += [value for keyword, value in self.keyworded(binding.node) if keyword == name]
        return found
