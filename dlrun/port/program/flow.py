"""Where a value comes from, and who calls whom: through names, arguments, returns, tuples, dicts and ``self``."""

from __future__ import annotations

import re

import libcst as cst

from dlrun.port.program.calls import fits
from dlrun.port.program.onward import Origin, State
from dlrun.port.program.runs import Runs
from dlrun.port.program.script import Path, Script

_FAR = 1000  # deeper than any question
_MANY = 100  # questions on the way to one answer, from which on what was found before is taken as it is


class Flow(Runs):
    """Answers questions about values over one Script; every answer is a set of possibilities, in source order."""

    def __init__(self, script: Script) -> None:
        """Index the functions and the call sites of ``script``."""
        super().__init__(script)
        self._known: dict[State, tuple[Origin, ...]] = {}
        self._ways: dict[cst.CSTNode, tuple[State, ...]] = {}
        self._whole: dict[cst.CSTNode, tuple[cst.CSTNode, ...]] = {}
        self._busy: dict[object, int] = {}  # the variables that are being followed, each with its depth
        self._lowest = _FAR  # the depth of the outermost of them that an answer was cut short at
        self._targets: dict[cst.Call, list[cst.FunctionDef]] = {}
        self._partial: dict[State, tuple[Origin, ...]] = {}  # what was found on the way, and may lack what is busy
        self._asked = 0
        self.note_attributes()

    # -- calls --------------------------------------------------------------------------------------------------

    def targets(self, call: cst.Call) -> list[cst.FunctionDef]:
        """Return the functions of this module that ``call`` may run."""
        if self._callers is None or self._busy:  # what is known then may grow
            return self._found_targets(call)
        if call not in self._targets:
            self._targets[call] = self._found_targets(call)
        return self._targets[call]

    def _found_targets(self, call: cst.Call) -> list[cst.FunctionDef]:
        func = call.func
        local = self.definitions(func)
        found = [self.method(f, "__init__") if isinstance(f, cst.ClassDef) else f for f in local]
        if local:
            return list(dict.fromkeys(f for f in found if f is not None))
        if (above := self.inherited(func)) is not None:
            return [above]
        if named := self._by_name(func):
            return named
        if isinstance(func, cst.Attribute) and func.attr.value in self.methods:
            found = [self.method(cls, func.attr.value) for cls in self.classes(func.value)]
            if any(found):
                return [f for f in found if f is not None]
        if run := [f for arg in call.args if (f := self._closure(call, arg.value)) is not None]:
            return run
        if isinstance(func, cst.Attribute) and func.attr.value == "step" and call.args and "step" in self.methods:
            held = self.classes(call.args[0].value)  # scaler.step(noam) runs noam.step()
            if run := [f for cls in held if (f := self.method(cls, "step")) is not None]:
                return run
        callable_ones = "__call__" in self.methods and isinstance(func, (cst.Name, cst.Attribute, cst.Subscript))
        called = self.classes(func) if callable_ones else ()
        if run := [f for cls in called if (f := self.method(cls, "__call__")) is not None]:
            return run
        table = [f for f in self._in_table(func) if isinstance(f, cst.FunctionDef)]
        return [f for f in table if fits(call, f)] or table

    def _by_name(self, func: cst.BaseExpression) -> list[cst.FunctionDef]:
        """Return the methods of this module that ``getattr(callback, name)`` may be, also by a name."""
        found: dict[cst.FunctionDef, None] = {}
        for made in (func, *(b.value for b in self.script.bindings_of(func) if not b.path)):
            if (
                not isinstance(made, cst.Call)
                or self.script.name_of(made.func) != "builtins.getattr"
                or not made.args[1:]
            ):
                continue
            texts = [_text(o.node) for o in self.origins(made.args[1].value)]
            known = [name for name in self.methods if any(text is not None and text.fullmatch(name) for text in texts)]
            owners = self.classes(made.args[0].value) if known else ()
            found |= {f: None for cls in owners for name in known if (f := self.method(cls, name)) is not None}
        return list(found)

    def _closure(self, call: cst.Call, given: cst.BaseExpression) -> cst.FunctionDef | None:
        """Return the function of this module that ``call`` hands to an optimizer, which runs it: ``opt.step(loss)``."""
        if not isinstance(call.func, cst.Attribute) or call.func.attr.value != "step":
            return None
        local = self.definition(given)
        if local is None and isinstance(given, cst.Attribute) and given.attr.value in self.methods:
            local = next((m for c in self.classes(given.value) if (m := self.method(c, given.attr.value))), None)
        own = isinstance(local, cst.FunctionDef) and isinstance(self.script.scopes[local].node, cst.ClassDef)
        return local if isinstance(local, cst.FunctionDef) and len(local.params.params) <= own else None

    def frames(self, node: cst.CSTNode) -> list[cst.CSTNode]:
        """Return ``node``, and the calls that run the functions which hold it, directly or through others; each once.

        They are what a traceback from ``node`` may show.
        """
        found = {node: None}
        todo = [node]
        while todo:
            function = self.script.function_of(todo.pop())
            new = [c for c in self.callers(function) if c not in found] if isinstance(function, cst.FunctionDef) else []
            found.update(dict.fromkeys(new))
            todo.extend(new)
        return list(found)

    def callers(self, function: cst.CSTNode) -> list[cst.Call]:
        """Return the calls of this module that may run ``function``, in source order."""
        if self._callers is None:
            run = {call: self._found_targets(call) for call in self.script.calls}
            self._know(run)
            left = [call for call, targets in run.items() if not targets and self._may_be_own(call.func)]
            for _ in range(2):  # what arguments tell only where it is known who calls whom
                if not (more := {call: found for call in left if (found := self._found_targets(call))}):
                    break
                left = [call for call in left if call not in more]
                self._know(run | more)
                run |= more
            assert self._callers is not None
        return self._callers.get(function, [])

    def _know(self, run: dict[cst.Call, list[cst.FunctionDef]]) -> None:
        """Note that the calls ``run`` these functions; what was told before is asked anew."""
        self._callers = {}
        for call, targets in run.items():
            for target in targets:
                self._callers.setdefault(target, []).append(call)
        for known in (self._known, self._targets, self._bodies, self._ways, self._whole):
            known.clear()

    def _may_be_own(self, func: cst.BaseExpression) -> bool:
        """Tell whether ``func`` may be a function of this module for all that is told of it by its name."""
        name = self.script.name_of(func)
        if isinstance(func, cst.Attribute):
            return func.attr.value in self.methods
        named = isinstance(func, cst.Call) and self.script.name_of(func.func) == "builtins.getattr"
        return named or not name or name.startswith(".")

    # -- values -------------------------------------------------------------------------------------------------

    def origins(self, node: cst.CSTNode, path: Path = ()) -> tuple[Origin, ...]:
        """Return the expressions that the value of ``node`` (or its part ``path``) may come from.

        A walk over the states (expression, part) that values pass through, each visited once; the states from which
        nothing leads on are the origins. Where nothing is found the expression is its own origin.
        """
        key = (node, path)
        if key in self._known:
            return self._known[key]
        variable, depth = self._variable(node), len(self._busy)
        if variable in self._busy or depth > 40:
            self._lowest = min(self._lowest, self._busy.get(variable, 0))
            return ()
        if not depth:
            self._asked = 0
            self._partial.clear()
        self._asked += 1
        if self._asked > _MANY and key in self._partial:
            self._lowest = 0
            return self._partial[key]
        self._busy[variable] = depth
        before, self._lowest = self._lowest, _FAR
        found: dict[Origin, None] = {}
        seen: set[State] = {key}
        todo: list[State] = [key]
        while todo and len(seen) < 2000:
            at, part = todo.pop()
            onward = self._onward(at, part) if len(part) < 6 else [(at, ())]
            if onward is None:
                found.setdefault(Origin(self._end(at), whole=not part))
                continue
            for state in reversed(onward):
                if state not in seen:
                    seen.add(state)
                    todo.append(state)
        del self._busy[variable]
        result = tuple(found) or (Origin(self._end(node), whole=not path),)
        if self._lowest >= depth:  # it was cut short at itself only, or not at all
            self._known[key] = result
            self._lowest = _FAR
        self._lowest = min(before, self._lowest)
        self._partial[key] = result
        return result

    def through(self, node: cst.CSTNode) -> tuple[cst.CSTNode, ...]:
        """Return the expressions that the value of ``node`` passes whole, from itself back to where it is made."""
        if node not in self._whole:
            self._whole[node] = tuple(at for at, part in self.ways(node) if not part)
        return self._whole[node]

    def ways(self, node: cst.CSTNode) -> tuple[State, ...]:
        """Return the expressions, and the parts of them, that the value of ``node`` passes from itself back."""
        if node not in self._ways:
            seen: dict[State, None] = {(node, ()): None}
            todo: list[State] = [(node, ())]
            while todo and len(seen) < 2000:
                at, part = todo.pop()
                new = [s for s in (self._onward(at, part) or ()) if s not in seen] if len(part) < 6 else []
                seen.update(dict.fromkeys(new))
                todo.extend(reversed(new))
            self._ways[node] = tuple(seen)
        return self._ways[node]

    def _variable(self, node: cst.CSTNode) -> object:
        """Return what is the same wherever the variable ``node`` is named: each iteration of ``net = net(n)``."""
        scope = self.script.scope_of(node) if isinstance(node, cst.Name) else None
        return (id(scope), node.value) if isinstance(node, cst.Name) and scope is not None else node

    def _end(self, node: cst.CSTNode) -> cst.CSTNode:
        """Return what stands for a value that comes from out of sight: for a name, the place that binds it."""
        if isinstance(node, cst.Name):
            bindings = self.script.bindings_of(node)
            if bindings and bindings[0].how == "param":
                return bindings[0].node
        return node


def _text(node: cst.CSTNode) -> re.Pattern[str] | None:
    """Return what matches the text that ``node`` is: ``"on_epoch_end"``, ``f"on_{event}"``; None of anything else."""
    if isinstance(node, cst.SimpleString):
        return re.compile(re.escape(str(node.evaluated_value)))
    if isinstance(node, cst.FormattedString):
        parts = [re.escape(p.value) if isinstance(p, cst.FormattedStringText) else r"\w+" for p in node.parts]
        return re.compile("".join(parts))
    return None
