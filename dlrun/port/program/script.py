"""A script as trees with their names: its own file and the local modules that it imports, read as one program."""

from __future__ import annotations

import builtins
from collections.abc import Iterator
from functools import cached_property

import libcst as cst
from libcst.metadata import CodeRange, PositionProvider

from dlrun.port.program.nodes import (
    added,
    argument,
    calls_method,
    children,
    dotted,
    names_in,
    numbered,
    only_adds,
    statements,
    table_of,
    walk,
)
from dlrun.port.program.scopes import STARS, Binding, Path, Scope
from dlrun.port.program.trees import Local, Trees
from dlrun.port.program.unfolding import before_growth

__all__ = [
    "Binding",
    "Local",
    "Path",
    "Scope",
    "Script",
    "added",
    "argument",
    "calls_method",
    "children",
    "dotted",
    "names_in",
    "numbered",
    "only_adds",
    "statements",
    "table_of",
    "walk",
]

# What modules that bridge Python 2 and 3 call what Python has by itself.
_PYTHON_2 = {
    f"{module}.{name}": f"builtins.{ours}"
    for module, names in {
        "six": {"next": "next"},
        "six.moves": {"range": "range", "xrange": "range", "zip": "zip", "map": "map", "filter": "filter"},
        "past.builtins": {"xrange": "range"},
    }.items()
    for name, ours in names.items()
}
_RUNS = ("app.run", "fire.Fire", "dispatch_commands")  # without the name of what they run
_STARTS = ("automain", "begin.start", "call_parse")  # decorators that do


class Script(Trees):
    """A parsed module with positions, parents, scopes and bindings; and with it the local modules that it imports."""

    def where(self, node: cst.CSTNode) -> CodeRange:
        """Return the lines and columns of ``node``; lines count from 1, columns from 0."""
        return self._wrappers[self.tree_of(node)].resolve(PositionProvider)[node]

    def line(self, node: cst.CSTNode) -> int:
        """Return the line on which ``node`` starts, from 1."""
        return before_growth(self.where(node).start.line, self.grown.get(self.tree_of(node), ()))

    def last_line(self, node: cst.CSTNode) -> int:
        """Return the line on which ``node`` ends, from 1."""
        end = self.where(node).end
        return before_growth(end.line if end.column else end.line - 1, self.grown.get(self.tree_of(node), ()))

    def text_of(self, tree: cst.Module) -> str:
        """Return the text of a file of the program as it was read."""
        known = self.texts.get(tree)
        if known is not None:
            return known
        return self.text if tree is self.module else tree.code

    @cached_property
    def text(self) -> str:
        """The text of the module as its tree has it."""
        return self.module.code

    def tree_of(self, node: cst.CSTNode) -> cst.Module:
        """Return the module in whose file ``node`` stands."""
        while node in self.parents:
            node = self.parents[node]
        return node if isinstance(node, cst.Module) else self.module

    def place(self, node: cst.CSTNode) -> str:
        """Return file and line of ``node``, as people write it: ``train.py:12``."""
        return f"{self.files[self.tree_of(node)]}:{self.line(node)}"

    def code(self, node: cst.CSTNode) -> str:
        """Return the text of ``node``."""
        if node not in self._codes:
            self._codes[node] = self.module.code_for_node(node)
        return self._codes[node]

    @cached_property
    def _codes(self) -> dict[cst.CSTNode, str]:
        return {}

    def class_of(self, node: cst.CSTNode) -> cst.ClassDef | None:
        """Return the class whose body holds ``node``."""
        return self._class_around(self.scopes[node])

    def name_of(self, node: cst.CSTNode) -> str:
        """Return the qualified name of an expression: ``optim.SGD`` is ``torch.optim.SGD`` however it was imported.

        A name that this module defines comes back as ``.name``; an unknown one as an empty string.
        """
        known = self._names.get(node)
        if known is None:
            name = self._name_of(node)
            known = self._names[node] = _PYTHON_2.get(name, name)
        return known

    @cached_property
    def _names(self) -> dict[cst.CSTNode, str]:
        return {}

    def _name_of(self, node: cst.CSTNode) -> str:
        if isinstance(node, cst.Attribute):
            if (there := self.member(node)) is not None:
                return self._name_by(there[0], node.attr.value)
            head = self.name_of(node.value)
            return f"{head}.{node.attr.value}" if head and dotted(node) not in self._kept else ""
        if not isinstance(node, cst.Name):
            return ""
        bindings = self.bindings_of(node)
        if bindings:
            return self._name_by(bindings, node.value)
        for star in self.scopes[node].root.all_stars():
            if node.value in STARS.get(star, ()):
                return f"{star}.{node.value}"
        return f"builtins.{node.value}" if hasattr(builtins, node.value) else ""

    def suppresses(self, node: cst.CSTNode) -> bool:
        """Tell whether ``node`` is a ``with contextlib.suppress(...)``: what is raised within ends there."""
        calls = [item.item for item in node.items] if isinstance(node, cst.With) else []
        return any(isinstance(c, cst.Call) and self.name_of(c.func) == "contextlib.suppress" for c in calls)

    @cached_property
    def acts(self) -> bool:
        """Whether the file runs what it defines: what is started has a statement, if only ``main()``."""
        return any(self._acts(s) for s in statements(self.module))

    def _acts(self, statement: cst.CSTNode) -> bool:
        match statement:
            case cst.Import() | cst.ImportFrom() | cst.ClassDef() | cst.Assign() | cst.AnnAssign() | cst.Pass():
                return False
            case cst.FunctionDef():
                return any(dotted(d.decorator).endswith(_STARTS) for d in statement.decorators)
            case cst.Expr(value=cst.SimpleString() | cst.ConcatenatedString()):
                return False
            case cst.Expr(value=cst.Call() as call):
                return self._runs(call)
            case cst.Try() | cst.If() | cst.Else() | cst.ExceptHandler() | cst.Finally():
                parts = (
                    *getattr(statement, "handlers", ()),
                    getattr(statement, "orelse", None),
                    getattr(statement, "finalbody", None),
                    *statements(statement),
                )
                return any(self._acts(part) for part in parts if part is not None)
        return True

    def _runs(self, call: cst.Call) -> bool:
        """Tell whether ``call``, on a line of its own, may run what the file defines: no ``random.seed(0)`` does."""
        name = self.name_of(call.func)
        own = {s.name.value for s in self.module.body if isinstance(s, (cst.FunctionDef, cst.ClassDef))}
        return not name or name.startswith(".") or name.endswith(_RUNS) or not own.isdisjoint(names_in(call))

    @cached_property
    def alias(self) -> str:
        """The name that a module to be imported may take here: ``dl``, or ``dl_comm`` where something is called so."""
        return "dl_comm" if any(n.value == "dl" for n in self.of(cst.Name)) else "dl"

    @cached_property
    def _kept(self) -> set[str]:
        """The attributes in which this script keeps objects of its own: ``tf.model = tf.keras.Sequential()``."""
        made = [n for n in self.of(cst.Assign) if isinstance(n.value, cst.Call)]
        return {dotted(t.target) for n in made for t in n.targets if isinstance(t.target, cst.Attribute)}

    def _name_by(self, bindings: list[Binding], name: str) -> str:
        for binding in bindings:
            if binding.how == "import":
                return binding.target
        # `save = torch.save` is an alias as good as an import.
        only = bindings[0]
        alias = len(bindings) == 1 and only.how == "assign" and not only.path and isinstance(only.value, cst.Attribute)
        if not alias or only.value is None or only in self._named_after:  # net = net.module
            return f".{name}"
        self._named_after.append(only)
        found = self.name_of(only.value)
        self._named_after.pop()
        return found or f".{name}"

    @cached_property
    def _named_after(self) -> list[Binding]:
        """The aliases whose names are being looked up."""
        return []

    def local_modules(self, node: cst.CSTNode) -> list[Scope]:
        """Return the local modules of which ``node`` names one, as their scopes: ``lab.net`` in ``lab.net.Net``."""
        root = self.scopes[node].root if node in self.scopes else self.root
        found: list[Scope | None] = []
        if root.locals and isinstance(node, cst.Attribute):
            outer = self.local_modules(node.value)
            names = [n for n, s in root.locals.items() if s in outer] if outer else []
            found = [root.locals.get(f"{name}.{node.attr.value}") for name in names]
        elif root.locals and isinstance(node, cst.Name):
            bindings = self.bindings_of(node)
            found = [root.module(b.target) for b in bindings if b.how == "import"]
            values = [b.value for b in bindings if b.how == "assign" and not b.path]
            found += [root.module(named) for value in values if (named := _imported_by_text(value))]
        elif root.locals and (named := _imported_by_text(node)):
            found = [root.module(named)]
        return list(dict.fromkeys(s for s in found if s is not None))

    def member(self, node: cst.Attribute) -> tuple[list[Binding], Scope] | None:
        """Return what ``node`` is bound to in the local modules before its dot, or None where that is no module."""
        if not self.root.locals:
            return None
        if node not in self._members:
            there = [m for s in self.local_modules(node.value) if (m := s.member(node.attr.value)) is not None]
            bindings = list(dict.fromkeys(b for found, _ in there for b in found))
            self._members[node] = (bindings, there[0][1]) if there else None
        return self._members[node]

    @cached_property
    def _members(self) -> dict[cst.Attribute, tuple[list[Binding], Scope] | None]:
        return {}

    def bindings_of(self, node: cst.CSTNode) -> list[Binding]:
        """Return the bindings of a name, or of a local module's name behind a dot."""
        if isinstance(node, cst.Name):
            return self.scopes[node].lookup(node.value)[0]
        there = self.member(node) if isinstance(node, cst.Attribute) else None
        return there[0] if there is not None else []

    def kept_bindings(self, node: cst.CSTNode) -> list[Binding]:
        """Return what the methods of a class set its attribute ``self.name`` to; nothing for what is no such."""
        owner = self.class_of(node) if isinstance(node, cst.Attribute) and dotted(node.value) == "self" else None
        return self.attributes.get((owner, node.attr.value), []) if owner is not None else []  # type: ignore[attr-defined]

    def scope_of(self, name: cst.Name) -> Scope | None:
        """Return the scope of the variable ``name``; None where none of the program binds it."""
        return self.scopes[name].lookup(name.value)[1]

    def named(self, text: str) -> list[cst.Name]:
        """Return the nodes that are the name ``text``, in source order."""
        return self._by_name.get(text, [])

    @cached_property
    def _by_name(self) -> dict[str, list[cst.Name]]:
        found: dict[str, list[cst.Name]] = {}
        for node in self.of(cst.Name):
            found.setdefault(node.value, []).append(node)
        return found

    def names_of(self, variable: str, scope: Scope | None) -> list[cst.Name]:
        """Return the nodes that name the ``variable`` of ``scope``, in source order."""
        return [n for n in self.named(variable) if self.scope_of(n) is scope]

    def is_part(self, name: cst.Name) -> bool:
        """Tell whether ``name`` stands for no variable: an attribute's behind its dot, a keyword's before its value."""
        up = self.parents.get(name)
        return (isinstance(up, cst.Attribute) and up.attr is name) or (isinstance(up, cst.Arg) and up.keyword is name)

    def imports(self) -> list[Binding]:
        """Return the bindings by import, of all scopes."""
        scopes = {id(s): s for s in self.scopes.values()}.values()
        return [b for s in scopes for bs in s.names.values() for b in bs if b.how == "import"]

    def statement_of(self, node: cst.CSTNode) -> cst.CSTNode:
        """Return the smallest statement that holds ``node``: a small statement, or a compound one."""
        while not isinstance(node, (cst.BaseSmallStatement, cst.BaseCompoundStatement, cst.Module)):
            node = self.parents[node]
        return node

    def line_of(self, statement: cst.CSTNode) -> cst.CSTNode:
        """Return what stands in a block for ``statement``: its line if it is alone there, else itself."""
        parent = self.parents.get(statement)
        if isinstance(parent, cst.SimpleStatementLine) and len(parent.body) == 1:
            return parent
        return statement

    def above(self, node: cst.CSTNode) -> Iterator[cst.CSTNode]:
        """Yield the ancestors of ``node``, innermost first."""
        while node in self.parents:
            node = self.parents[node]
            yield node

    def function_of(self, node: cst.CSTNode) -> cst.FunctionDef | cst.Module:
        """Return the function (or the module) in whose body ``node`` runs."""
        return self.around.get(node, self.module)

    def outermost_loop(self, node: cst.CSTNode) -> cst.For | cst.While | None:
        """Return the outermost loop around ``node`` in its function."""
        loops = [u for u in self.above(node) if isinstance(u, (cst.For, cst.While))]
        loops = [u for u in loops if self.function_of(u) is self.function_of(node)]
        return loops[-1] if loops else None

    def block(self, statement: cst.CSTNode) -> list[cst.CSTNode]:
        """Return the small and compound statements of the block that holds ``statement``, in order."""
        return statements(self.suite(statement))

    def suite(self, statement: cst.CSTNode) -> cst.CSTNode:
        """Return the block, or the module, that holds ``statement``, also of one beside others: x = 1; y = 2."""
        parent = self.parents[statement]
        return self.parents[parent] if isinstance(parent, cst.SimpleStatementLine) else parent

    @staticmethod
    def block_of(loop: cst.CSTNode) -> list[cst.CSTNode]:
        """Return the small and compound statements of the body of ``loop``; none where it is on one line."""
        body = getattr(loop, "body", None)
        return statements(body) if isinstance(body, cst.IndentedBlock) else []

    def inside(self, node: cst.CSTNode, outer: cst.CSTNode) -> bool:
        """Tell whether ``node`` is ``outer`` or lies in it."""
        at, first = self.order.get(node), self.order.get(outer)
        if at is None or first is None:
            return node is outer or any(up is outer for up in self.above(node))
        return first <= at <= self.last[outer]


def _imported_by_text(node: cst.CSTNode | None) -> str:
    """Return the module that ``importlib.import_module("nets.small")`` stands for; an empty string of other nodes."""
    match node:
        case cst.Call(func=func, args=[cst.Arg(value=cst.SimpleString() as text), *more]) if (
            dotted(func).rpartition(".")[2] == "import_module"
        ):
            name = str(text.evaluated_value)
            within = more[0].value if more and name.startswith(".") else None
            return f"{within.evaluated_value!s}{name}" if isinstance(within, cst.SimpleString) else name
    return ""
