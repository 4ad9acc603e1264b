"""Reads a script and its local modules into trees, and notes who is whose parent and which scope binds which name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import libcst as cst
from libcst.metadata import MetadataWrapper

from dlrun.package import Home
from dlrun.port.program.nodes import children, dotted, walk
from dlrun.port.program.scopes import Binding, Scope
from dlrun.port.program.scopes import Path as Part
from dlrun.port.program.unfolding import Growth, drawn, trainers, unfolded

Node = TypeVar("Node", bound=cst.CSTNode)
Function = cst.FunctionDef | cst.Module
Comprehension = (cst.ListComp, cst.SetComp, cst.DictComp, cst.GeneratorExp)


@dataclass(frozen=True)
class Local:
    """A module of the script's project: its dotted name, its file as it lies beside the port, its text.

    ``live`` are the names of its functions and classes that the program uses; the others are not read. ``path`` is
    where the file is now.
    """

    name: str
    file: str
    source: bytes
    live: frozenset[str]
    path: Path

    @property
    def package(self) -> str:
        """Where its relative imports begin."""
        return self.name if self.file.endswith("__init__.py") else self.name.rpartition(".")[0]


class Trees:
    """The trees of a script and of the local modules that it imports, with parents, scopes and bindings."""

    def __init__(
        self, source: str | bytes, name: str = "script", modules: Sequence[Local] = (), home: Home | None = None
    ) -> None:
        """Parse ``source``; raises ``libcst.ParserSyntaxError`` where it is not Python 3."""
        self.name = name
        self.home = home or Home(Path())
        self.paths = {module.file: module.path for module in modules}  # where the files of the modules lie
        self.parents: dict[cst.CSTNode, cst.CSTNode] = {}
        self.scopes: dict[cst.CSTNode, Scope] = {}
        self.around: dict[cst.CSTNode, Function] = {}  # the function (or the module) around each node
        self.nodes: list[cst.CSTNode] = []
        self.last: dict[cst.CSTNode, int] = {}  # where in ``nodes`` the last one below each stands
        self.attributes: dict[tuple[cst.CSTNode, str], list[Binding]] = {}
        self.outside: list[tuple[cst.Attribute, Binding]] = []  # attributes of objects other than self
        self.files: dict[cst.Module, str] = {}  # the trees: first the script's own, then those of its modules
        self.seen: dict[cst.Call, set[str]] = {}  # what a run showed to happen at which call
        self.texts: dict[cst.Module, str] = {}  # of trees in which loops took the place of comprehensions: as it was
        self.grown: dict[cst.CSTNode, list[Growth]] = {}  # and where they are longer
        sources = [source, *(module.source for module in modules)]
        self._trainers = trainers(sources)
        self._generators = drawn(sources, self._trainers)
        self._wrappers: dict[cst.CSTNode, MetadataWrapper] = {}  # of each tree: what its nodes' places are asked of
        locals_: dict[str, Scope] = {}
        root = Scope(cst.Module([]), None, locals=locals_, package=self.home.package)
        self.module, self.root = self._read(source, name, root)
        for module in modules:
            scope = Scope(cst.Module([]), None, locals=locals_, package=module.package)
            try:
                _, locals_[module.name] = self._read(module.source, module.file, scope, module.live)
            except (cst.ParserSyntaxError, UnicodeDecodeError, LookupError):
                continue  # what cannot be read is a foreign module
        for module in modules:
            self._bind_listed(module.name, locals_)
        self.order = {node: i for i, node in enumerate(self.nodes)}
        self._by_kind: dict[type[cst.CSTNode], list[Any]] = {}
        for node in self.nodes:
            self._by_kind.setdefault(type(node), []).append(node)
        self.calls = self.of(cst.Call)

    def of(self, kind: type[Node]) -> list[Node]:
        """Return the nodes of a kind, in source order."""
        return self._by_kind.get(kind, [])

    def _read(
        self, source: str | bytes, file: str, root: Scope, live: frozenset[str] | None = None
    ) -> tuple[cst.Module, Scope]:
        loops, grown = unfolded(source, self._trainers, self._generators)
        wrapper = MetadataWrapper(cst.parse_module(loops), unsafe_skip_copy=True)
        if grown:
            self.texts[wrapper.module] = cst.parse_module(source).code
            self.grown[wrapper.module] = grown
        self._wrappers[wrapper.module] = wrapper
        self.files[wrapper.module] = file
        root.node = wrapper.module
        self.around[wrapper.module] = wrapper.module
        self._enter(wrapper.module, root, live)
        return wrapper.module, root

    def _bind_listed(self, name: str, locals_: dict[str, Scope]) -> None:
        """Bind the modules that ``__all__`` of the package ``name`` lists: ``import *`` brings them, too."""
        scope = locals_.get(name)
        for binding in scope.names.get("__all__", []) if scope is not None else ():
            entries = binding.value.elements if isinstance(binding.value, (cst.List, cst.Tuple)) else ()
            for text in (str(e.value.evaluated_value) for e in entries if isinstance(e.value, cst.SimpleString)):
                if f"{name}.{text}" in locals_ and scope is not None and text not in scope.names:
                    self._bind(scope, Binding(text, "import", binding.node, target=f"{name}.{text}"))

    def _enter(self, node: cst.CSTNode, scope: Scope, live: frozenset[str] | None = None) -> None:
        self.nodes.append(node)
        self.scopes[node] = scope
        inner = scope
        if isinstance(node, (cst.FunctionDef, cst.ClassDef)):
            self._bind(scope, Binding(node.name.value, "def" if isinstance(node, cst.FunctionDef) else "class", node))
            inner = Scope(node, scope)
        elif isinstance(node, (cst.Lambda, *Comprehension)):
            inner = Scope(node, scope)
        self._bindings(node, inner)
        for child in children(node):
            self.parents[child] = node
            self.around[child] = node if isinstance(node, cst.FunctionDef) else self.around[node]
            if live is not None and isinstance(node, cst.Module) and _is_dead(child, live):
                continue
            outside = isinstance(node, (cst.FunctionDef, cst.ClassDef)) and isinstance(child, (cst.Decorator, cst.Arg))
            self._enter(child, scope if outside else inner)
        self.last[node] = len(self.nodes) - 1

    def _bind(self, scope: Scope, binding: Binding) -> None:
        scope.names.setdefault(binding.name, []).append(binding)

    def _bindings(self, node: cst.CSTNode, scope: Scope) -> None:
        match node:
            case cst.Import():
                for alias in node.names:
                    full = dotted(alias.name)
                    name = dotted(alias.asname.name) if alias.asname else full.split(".")[0]
                    target = full if alias.asname else name
                    self._bind(scope, Binding(name, "import", node, target=target))
            case cst.ImportFrom():
                module = "." * len(node.relative) + (dotted(node.module) if node.module else "")
                inner = f"{module}." if node.module else module  # from . import x: ".x"
                if isinstance(node.names, cst.ImportStar):
                    scope.root.stars.append(module)
                    return
                for alias in node.names:
                    name = dotted(alias.asname.name) if alias.asname else dotted(alias.name)
                    self._bind(scope, Binding(name, "import", node, target=inner + dotted(alias.name)))
            case cst.Assign():
                for t in node.targets:
                    self._assign(scope, t.target, node.value, (), node)
            case cst.AnnAssign() if node.value is not None:
                self._assign(scope, node.target, node.value, (), node)
            case cst.AugAssign():
                self._assign(scope, node.target, node.value, ("part",), node)
            case cst.NamedExpr():
                self._assign(scope, node.target, node.value, (), node)
            case cst.For() | cst.CompFor():
                self._assign(scope, node.target, node.iter, ("each",), node)
            case cst.WithItem() if node.asname is not None:
                self._assign(scope, node.asname.name, node.item, (), node)
            case cst.Param() if isinstance(scope.node, (cst.FunctionDef, cst.Lambda)):
                self._bind(scope, Binding(node.name.value, "param", node, value=node.default))
            case cst.Global() | cst.Nonlocal():
                home = scope.root if isinstance(node, cst.Global) else scope.function_around or scope.root
                scope.outer.update({item.name.value: home for item in node.names})
            case cst.ExceptHandler() if node.name is not None:
                self._assign(scope, node.name.name, None, ("part",), node)

    def _assign(
        self, scope: Scope, target: cst.CSTNode, value: cst.BaseExpression | None, path: Part, node: cst.CSTNode
    ) -> None:
        if isinstance(target, cst.Name):
            home = scope.outer.get(target.value, scope)
            while isinstance(home.node, Comprehension) and isinstance(node, cst.NamedExpr) and home.parent:
                home = home.parent
            self._bind(home, Binding(target.value, "assign", node, value, path))
        elif isinstance(target, (cst.Tuple, cst.List)):
            for i, element in enumerate(target.elements):
                self._assign(scope, element.value, value, (*path, i), node)
        elif isinstance(target, cst.Attribute) and isinstance(target.value, (cst.Name, cst.Attribute)):
            binding = Binding(target.attr.value, "assign", node, value, path)
            mine = isinstance(target.value, cst.Name) and target.value.value == "self"
            owner = self._class_around(scope) if mine else None
            if not mine:
                self.outside.append((target, binding))
            elif owner is not None:
                self.attributes.setdefault((owner, target.attr.value), []).append(binding)

    @staticmethod
    def _class_around(scope: Scope | None) -> cst.ClassDef | None:
        while scope is not None:
            if isinstance(scope.node, cst.ClassDef):
                return scope.node
            scope = scope.parent
        return None


def _is_dead(statement: cst.CSTNode, live: frozenset[str]) -> bool:
    """Tell whether a statement at the top of a local module never runs: an unused definition, or the main guard."""
    if isinstance(statement, (cst.FunctionDef, cst.ClassDef)):
        return statement.name.value not in live
    if isinstance(statement, cst.If):
        return any(isinstance(n, cst.Name) and n.value == "__name__" for n in walk(statement.test))
    return False
