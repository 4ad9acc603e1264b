"""What is put into lists, dicts and objects after they are made: ``hooks.append(show)``, ``loaders[name] = loader``."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property

import libcst as cst

from dlrun.port.program.calls import Calls
from dlrun.port.program.dicts import pairs
from dlrun.port.program.script import Script, calls_method, names_in

_ADDS = {"append": 0, "add": 0, "insert": 1}  # each with the place of what it puts in


class Filling(Calls):
    """Answers what a box holds that gets it later, from names alone, without following values."""

    def __init__(self, script: Script) -> None:
        """Index nothing yet of ``script``."""
        super().__init__(script)
        self._appended: dict[cst.CSTNode, list[cst.CSTNode]] | None = None
        self._later: dict[cst.CSTNode, list[tuple[str, cst.BaseExpression]]] | None = None
        self._stored: dict[cst.CSTNode, list[tuple[cst.BaseExpression | None, cst.BaseExpression]]] | None = None

    def filled(self, box: cst.CSTNode) -> list[cst.CSTNode]:
        """Return the functions, and objects of the program's own classes, that ``append`` puts into the list ``box``.

        Also into the lists of a dict, ``HOOKS[event].append(show)``, and what a decorator puts there.
        """
        if self._appended is None:
            self._appended = {}
            for call in self.script.calls:
                if not calls_method(call, *_ADDS) or len(call.args) != _ADDS[call.func.attr.value] + 1:
                    continue
                held = self._acting(call.args[-1].value)
                for made in self._lists(call.func.value) if held else ():
                    self._appended.setdefault(made, []).extend(held)
        return self._appended.get(box, [])

    def _acting(self, given: cst.BaseExpression) -> list[cst.CSTNode]:
        """Return ``given`` where it is an object of an own class or a lambda, or else the functions that it names."""
        if isinstance(given, cst.Lambda):
            return [given]
        if isinstance(given, cst.Call):
            return [given] if isinstance(self.definition(given.func), cst.ClassDef) else []
        named: list[cst.CSTNode] = [d for d in self.definitions(given) if isinstance(d, cst.FunctionDef)]
        handed = not named and self._calls_each and any(b.how == "param" for b in self.script.bindings_of(given))
        return [given] if handed else named  # def on(event, handler): handlers[event].append(handler)

    @cached_property
    def _calls_each(self) -> bool:
        """Whether a loop of the program calls what it goes through: ``for hook in hooks: hook(step)``."""
        called = {call.func.value for call in self.script.calls if isinstance(call.func, cst.Name)}
        return any(called & names_in(loop.target) for loop in self.script.of(cst.For))

    def _lists(self, box: cst.BaseExpression) -> Iterator[cst.CSTNode]:
        """Yield where the lists are made that ``box`` is: ``hooks``, ``HOOKS[event]``, ``HOOKS.setdefault(k, [])``."""
        within = box.value if isinstance(box, cst.Subscript) else None
        if calls_method(box, "setdefault"):
            within = box.func.value
        named = within if within is not None else box
        for binding in self.script.bindings_of(named) or self.script.kept_bindings(named):
            if within is None:
                yield from [binding.value] if isinstance(binding.value, cst.List) else []
            elif isinstance(binding.value, (cst.Dict, cst.Call)) and not binding.path:
                lists: list[cst.CSTNode] = [value for _, value in pairs(binding.value) if isinstance(value, cst.List)]
                yield from lists or [binding.value]

    def stored(self, box: cst.CSTNode) -> list[tuple[cst.BaseExpression | None, cst.BaseExpression]]:
        """Return what is put into the new dict ``box`` by ``loaders[name] = loader``, with its keys."""
        if self._stored is None:
            self._stored = {}
            for node in self.script.of(cst.Assign):
                for target in (t.target for t in node.targets if isinstance(t.target, cst.Subscript)):
                    index = target.slice[0].slice
                    pair = (index.value if isinstance(index, cst.Index) else None, node.value)
                    for binding in self.script.bindings_of(target.value):
                        if isinstance(binding.value, (cst.Dict, cst.Call)) and not binding.path:
                            self._stored.setdefault(binding.value, []).append(pair)
        return self._stored.get(box, [])

    def given_later(self, made: cst.CSTNode) -> list[tuple[str, cst.BaseExpression]]:
        """Return the attributes that the new object ``made`` gets from outside: ``sets.train = DataSet(rows)``."""
        if self._later is None:
            self._later = {}
            for node in self.script.of(cst.Assign):
                for target in (t.target for t in node.targets if isinstance(t.target, cst.Attribute)):
                    for binding in self.script.bindings_of(target.value) if isinstance(target.value, cst.Name) else ():
                        if isinstance(binding.value, cst.Call) and not binding.path:
                            self._later.setdefault(binding.value, []).append((target.attr.value, node.value))
        return self._later.get(made, [])
