"""What runs when a part of the program does: the functions that it calls, and the generators that it draws from."""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import cached_property

import libcst as cst

from dlrun.port.program.attributes import Attributes
from dlrun.port.program.onward import State
from dlrun.port.program.scopes import Path
from dlrun.port.program.script import walk

_NEXT = ("send", "__next__")


class Runs(Attributes, ABC):
    """Answers what a node of the program runs: bodies of functions, and iterations of generators."""

    _busy: dict[object, int]  # the variables that are being followed

    @cached_property
    def _bodies(self) -> dict[tuple[cst.CSTNode, int, bool], tuple[cst.CSTNode, ...]]:
        """The answers of ``bodies``."""
        return {}

    @cached_property
    def _drawing(self) -> set[cst.CSTNode]:
        """The nodes of which is being asked what they draw from."""
        return set()

    @cached_property
    def _each(self) -> dict[cst.For, bool]:
        """The answers of ``runs_each``."""
        return {}

    def runs_each(self, loop: cst.For) -> bool:
        """Tell whether ``loop`` goes through what it calls: ``for hook in hooks: hook(step)``, or own methods of it.

        Also by their names, ``getattr(hook, event)(step)``.
        """
        if loop not in self._each:
            calls = (n for n in walk(loop.body) if isinstance(n, cst.Call))
            self._each[loop] = any(self._is_of(call, _bound(loop.target)) for call in calls)
        return self._each[loop]

    def _is_of(self, call: cst.Call, names: set[str]) -> bool:
        """Tell whether ``call`` runs one of ``names``, or an own method of it."""
        match call.func, call.args:
            case cst.Name("getattr"), [cst.Arg(value=cst.Name(name)), _, *_]:
                return name in names
            case cst.Attribute(value=cst.Name(name), attr=cst.Name(method)), _:
                return name in names and method in self.methods
            case func, _:
                return isinstance(func, cst.Name) and func.value in names
        return False

    @abstractmethod
    def targets(self, call: cst.Call) -> list[cst.FunctionDef]:
        """Return the functions of this program that ``call`` may run."""

    @abstractmethod
    def through(self, node: cst.CSTNode) -> tuple[cst.CSTNode, ...]:
        """Return the expressions that the value of ``node`` passes whole."""

    def bodies(self, node: cst.CSTNode, depth: int = 4, drawn: bool = False) -> tuple[cst.CSTNode, ...]:
        """Return ``node``, and the body, once, of each function that running it may call, through ``depth`` calls.

        With ``drawn`` also what goes on in the generators that loops, and that whose body ``node`` is, draw from.
        """
        known = self._bodies.get((node, depth, drawn))
        if known is not None:
            return known
        loop = self.script.parents.get(node) if drawn and isinstance(node, cst.BaseSuite) else None
        last = [node, *(self._goes_on(loop) if loop is not None else ())]
        found = dict.fromkeys(last)
        for _ in range(depth):  # each function at its least depth
            calls = [n for body in last for n in walk(body) if isinstance(n, cst.Call)]
            run = [body for c in calls for body in self._run_by(c)]
            run += [body for n in last for m in walk(n) for body in self._goes_on(m)] if drawn else []
            last = list(dict.fromkeys(body for body in run if body not in found))
            found |= dict.fromkeys(last)
        if self._callers is not None and not self._busy:  # else targets may grow
            self._bodies[node, depth, drawn] = tuple(found)
        return tuple(found)

    def _run_by(self, call: cst.Call) -> list[cst.CSTNode]:
        """Return the bodies of the functions of this module, or of the lambdas, that ``call`` may run."""
        bodies: list[cst.CSTNode] = [t.body for t in self.targets(call)]
        return bodies or [f.body for f in self._in_table(call.func) if isinstance(f, cst.Lambda)]

    def _goes_on(self, node: cst.CSTNode) -> list[cst.CSTNode]:
        """Return what of the generators that ``node`` draws from runs until it has the next value."""
        return [body for function in self.drawn(node) for body in self.iterations(function)]

    # -- generators ---------------------------------------------------------------------------------------------

    def drawn(self, node: cst.CSTNode) -> list[cst.FunctionDef]:
        """Return the generators that ``node`` draws from: ``for loss in train(model):``, ``loss = next(losses)``."""
        match node:
            case cst.For(iter=over):
                pass
            case cst.Call(func=cst.Name("next"), args=[cst.Arg(value=over), *_]):
                pass
            case cst.Call(func=cst.Attribute(value=over, attr=cst.Name(name))) if name in _NEXT:
                pass
            case _:
                return []
        if node in self._drawing:  # batch = next(batch)
            return []
        self._drawing.add(node)
        found = self._generated(over)
        self._drawing.discard(node)
        return found

    def _generated(self, over: cst.BaseExpression) -> list[cst.FunctionDef]:
        """Return the generators that give ``over`` its entries, also beside others: ``zip(range(9), train(model))``."""
        made = self.through(over)
        beside = [
            a.value
            for n in made
            if isinstance(n, cst.Call) and self.script.name_of(n.func) == "builtins.zip"
            for a in n.args
        ]
        run = [f for n in made if isinstance(n, cst.Call) for f in self.targets(n) if self.yields(f)]
        return list(dict.fromkeys([*run, *(f for n in beside for f in self._generated(n))]))

    def iterations(self, function: cst.FunctionDef, depth: int = 4) -> list[cst.CSTNode]:
        """Return what ``function`` runs from one value that it yields to the next: the loop around it, or all."""
        found: dict[cst.CSTNode, None] = {}
        for node in self.yields(function):
            handed = self._generated(node.value.item) if isinstance(node.value, cst.From) and depth else []
            loop = self._around(node, function)
            found |= dict.fromkeys(body for f in handed for body in self.iterations(f, depth - 1)) or {loop.body: None}
        return list(found)

    def _around(self, node: cst.CSTNode, function: cst.FunctionDef) -> cst.For | cst.While | cst.FunctionDef:
        """Return the innermost loop around ``node`` in ``function``; that itself where there is none."""
        loops = (up for up in self.script.above(node) if isinstance(up, (cst.For, cst.While)))
        return next((up for up in loops if self.script.inside(up, function)), function)

    def entries(self, node: cst.BaseExpression, path: Path) -> list[cst.BaseExpression]:
        """Return what generators yield in the place ``path`` of ``node``, which draws from them; else nothing.

        ``loss.item()`` in ``for i, (step, loss) in enumerate(train(model)):`` after ``yield step, loss.item()``.
        """
        found: list[cst.BaseExpression] = []
        seen: set[State] = {(node, path)}
        todo: list[State] = [(node, path)] if self._yields else []
        while todo and len(seen) < 2000:
            at, part = todo.pop(0)
            run = [f for f in self.targets(at) if self.yields(f)] if isinstance(at, cst.Call) and part else []
            given = [s for f in run for s in self.yielded(f, part)]
            found += [_at(*s) for s in given if len(s[1]) < len(part)]
            handed = [s for s in given if len(s[1]) == len(part)]  # yield from another
            new = [s for s in (handed if run else self._onward(at, part) or ()) if s not in seen and len(s[1]) < 6]
            seen.update(new)
            todo += new
        return found


def _at(value: cst.CSTNode, path: Path) -> cst.BaseExpression:
    """Return what of ``value`` is at ``path``, as far as this is written out."""
    while path and isinstance(value, cst.Tuple) and isinstance(at := path[0], int) and at < len(value.elements):
        value, path = value.elements[at].value, path[1:]
    return value  # type: ignore[return-value]


def _bound(target: cst.BaseExpression) -> set[str]:
    """Return the names that ``target`` binds: none of ``self.x, self.y``."""
    if isinstance(target, (cst.Tuple, cst.List)):
        return {name for element in target.elements for name in _bound(element.value)}
    return {target.value} if isinstance(target, cst.Name) else set()
