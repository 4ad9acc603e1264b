"""``dlrun port --from``: a script that another library distributes comes to use dl_comm in its place.

What the script does stays as it is: its sampler, its scaled rate, its ``if rank() == 0``. Only calls are translated,
each by a rule of a table; a call without a rule is an error that names it, so that no half is left behind.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial

import libcst as cst

from dlrun.errors import DlrunError
from dlrun.port.edits import Doubt, Edit
from dlrun.port.insert import expression, statements
from dlrun.port.program.script import Script, dotted, walk
from dlrun.port.refusals import main_guard

Found = Iterator[Edit | Doubt]


@dataclass(frozen=True)
class Rule:
    """How one call is written with dl_comm: ``to`` is the template, or tells which.

    ``names`` are the keywords of the arguments that stay, by their place: the value and the root, "" for one that falls
    away. Of ``model.state_dict()`` an ``owner`` rule takes the model. ``more`` yields what the arguments that fall
    away give rise to.
    """

    to: str | Callable[[Translation, cst.Call], str]
    why: str
    names: tuple[str, ...] = ()
    step: str = "start"
    more: Callable[[Translation, cst.Call], Found] | None = None
    owner: bool = False


@dataclass(frozen=True)
class Library:
    """Another library: how people call it, its modules with the faces of dl_comm that replace them, its rules."""

    name: str
    modules: Mapping[str, str]
    rules: Mapping[str, Rule]
    constants: Mapping[str, str]
    averages: tuple[str, ...]  # the calls of which one must be there, or nothing is averaged
    implied: Callable[[Translation], Found] | None = None
    face: Callable[[Script], str] | None = None  # where its modules do not tell the face of dl_comm


class Translation:
    """One script on its way from a library to dl_comm."""

    def __init__(self, script: Script, library: Library) -> None:
        """Find out which faces of dl_comm the script needs."""
        self.script = script
        self.library = library
        used = [f for m, f in library.modules.items() if any(self._is_in(t, m) for t in self._imported())]
        if not used:
            raise DlrunError(f"{script.name}: nothing here is {library.name}'s.", "Port it without --from.")
        self.framework: str = next(f for f in ("keras", "tensorflow", "torch") if f in used)
        if library.face is not None:
            self.framework = library.face(script)
        self.alias = script.alias
        self.done: list[cst.CSTNode] = []  # what no longer stands in the text
        self.averaged = False

    def _imported(self) -> list[str]:
        return [b.target for b in self.script.imports()] + self.script.root.stars

    @staticmethod
    def _is_in(target: str, module: str) -> bool:
        return target == module or target.startswith(module + ".")

    def foreign(self, node: cst.CSTNode) -> str:
        """Return the name that ``node`` has inside the library, or an empty string."""
        full = self.script.name_of(node)
        for module in sorted(self.library.modules, key=len, reverse=True):
            if full.startswith(module + "."):
                return full[len(module) + 1 :]
        return ""

    def argument(self, call: cst.Call, name: str, position: int = -1) -> cst.Arg | None:
        """Return the argument that ``call`` gives by name, or else at ``position``."""
        plain = [a for a in call.args if a.keyword is None and not a.star]
        named = next((a for a in call.args if a.keyword is not None and a.keyword.value == name), None)
        return named or (plain[position] if 0 <= position < len(plain) else None)

    # -- what is done -------------------------------------------------------------------------------------------

    def found(self) -> Iterator[Edit | Doubt]:
        """Yield all edits and doubts; raises DlrunError where something of the library would be left."""
        for call in self.script.calls:
            rule = self.library.rules.get(name := self.foreign(call.func))
            if rule is not None:
                self.averaged = self.averaged or name in self.library.averages
                yield from self._call(call, rule)
        if self.library.implied is not None:
            yield from self.library.implied(self)
        yield from self._constants()
        yield from self._imports()
        yield from self._leave()
        if not self.averaged:
            yield Doubt(
                self.script.module.body[0],
                f"none of {', '.join(self.library.averages)} is here: what averages the gradients?",
                "high",
                f"{self.alias}.gradients(optimizer)",
                name="not-averaged",
            )

    def _call(self, call: cst.Call, rule: Rule) -> Found:
        kept = {}
        for i, name in enumerate(rule.names):
            arg = self.argument(call, name, i) if name else None
            if arg is not None and not (name == "root_rank" and self.script.code(arg.value) == "0"):
                kept["root" if name == "root_rank" else "value"] = call.args.index(arg)
        self.done.extend([call.func, *(a for i, a in enumerate(call.args) if i not in kept.values())])
        if rule.more is not None:
            yield from rule.more(self, call)
        template = rule.to if isinstance(rule.to, str) else rule.to(self, call)

        def write(node: cst.Call) -> cst.BaseExpression:
            values = {name: node.args[i].value for name, i in kept.items()}
            if rule.owner and "value" in values:
                values["value"] = _owner(values["value"])
            return expression(f"from/{template}", values, dl=self.alias)

        yield Edit(call, rule.why, write, step=rule.step)

    def _constants(self) -> Found:
        for node in self.script.nodes:
            if isinstance(node, (cst.Attribute, cst.Name)) and self._is_spelt(node) and not self._gone(node):
                value = self.library.constants.get(self.foreign(node))
                called = isinstance(up := self.script.parents.get(node), cst.Call) and up.func is node
                if value is not None:
                    self.done.append(node)
                    yield Edit(
                        up if called and up is not None else node,
                        f"{self.foreign(node)} means nothing here",
                        partial(_named, value),
                        step="start",
                    )

    def _is_spelt(self, node: cst.CSTNode) -> bool:
        """Tell whether ``node`` names the library itself, not a variable that holds something of it."""
        while isinstance(node, cst.Attribute):
            node = node.value
        if not isinstance(node, cst.Name):
            return False
        bindings = self.script.bindings_of(node)
        return any(b.how == "import" for b in bindings) or not bindings

    def _gone(self, node: cst.CSTNode) -> bool:
        return any(self.script.inside(node, d) for d in self.done)

    def _imports(self) -> Found:
        left: list[cst.CSTNode] = []
        for node in self.script.nodes:
            if isinstance(node, (cst.Name, cst.Attribute)) and not isinstance(self.script.parents[node], cst.Attribute):
                inside = any(isinstance(up, (cst.Import, cst.ImportFrom)) for up in self.script.above(node))
                full = self.script.name_of(node)
                mine = any(self._is_in(full, m) for m in self.library.modules)
                if mine and self._is_spelt(node) and not inside and not self._gone(node):
                    left.append(node)
        if left:
            lines = "\n".join(f"  {self.script.place(n)}: {self.script.code(n)}" for n in left[:8])
            raise DlrunError(
                f"{self.script.name}: dl_comm has nothing that stands for this of {self.library.name}:\n{lines}\n"
                "Nothing was written.",
                "Take it out or write it another way, and port again.",
            )
        why = f"dl_comm in the place of {self.library.name}"
        lines_ = statements("from/import", dl=self.alias, framework=self.framework)
        first = True
        for node in self.script.nodes:
            if isinstance(node, (cst.Import, cst.ImportFrom)) and self._is_mine(node):
                line = self.script.line_of(node)
                yield Edit(line, why, self._without(node), after=lines_ if first else (), step="start")
                first = False

    def _is_mine(self, node: cst.Import | cst.ImportFrom) -> bool:
        if isinstance(node, cst.ImportFrom):
            return node.module is not None and any(
                self._is_in(dotted(node.module), m.split(".")[0]) for m in self.library.modules
            )
        return any(self._is_in(dotted(a.name), m.split(".")[0]) for a in node.names for m in self.library.modules)

    def _without(self, node: cst.Import | cst.ImportFrom) -> Callable[[cst.CSTNode], cst.CSTNode]:
        heads = {m.split(".")[0] for m in self.library.modules}
        names = (
            ()
            if isinstance(node, cst.ImportFrom)
            else tuple(a for a in node.names if dotted(a.name).split(".")[0] not in heads)
        )

        def write(line: cst.CSTNode) -> cst.CSTNode:
            if not names:
                return cst.RemoveFromParent()  # type: ignore[return-value]
            rest = cst.Import([*names[:-1], names[-1].with_changes(comma=cst.MaybeSentinel.DEFAULT)])
            return line.with_changes(body=[rest]) if isinstance(line, cst.SimpleStatementLine) else rest

        return write

    def _leave(self) -> Found:
        """Yield finalize() at the end, where the script does not leave the ranks itself."""
        if any(self.foreign(c.func) == "shutdown" for c in self.script.calls):
            return
        guard = main_guard(self.script)
        last = guard.body.body[-1] if guard is not None else self.script.module.body[-1]
        exits = isinstance(last, cst.SimpleStatementLine) and any(
            isinstance(n, cst.Call) and self.script.name_of(n.func) in ("sys.exit", "builtins.exit") for n in walk(last)
        )
        if not exits:
            yield Edit(
                last,
                "ranks leave only when all have finished",
                after=statements("from/leave", dl=self.alias),
                step="finish",
            )


def _named(name: str, _: cst.CSTNode) -> cst.Name:
    return cst.Name(name)


def _owner(value: cst.BaseExpression) -> cst.BaseExpression:
    """Return the module of ``model.state_dict()`` and the like."""
    named = ("state_dict", "parameters", "named_parameters")
    if isinstance(value, cst.Call) and isinstance(value.func, cst.Attribute) and value.func.attr.value in named:
        return value.func.value
    return value


def translated(script: Script, library: Library) -> tuple[Translation, list[Edit | Doubt]]:
    """Return what brings ``script`` from ``library`` to dl_comm; raises DlrunError where there is no equivalent."""
    translation = Translation(script, library)
    return translation, [replace(f, step=f.step or "start") for f in translation.found()]
