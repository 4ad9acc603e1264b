"""A script as a tree with its names: who is whose parent, which scope binds a name, and to what."""

from __future__ import annotations

import builtins
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache

import libcst as cst
from libcst.metadata import CodeRange, MetadataWrapper, PositionProvider

# How a value gets from the right-hand side of a binding to the name: an int picks from a tuple, "each" takes an
# element of an iterable, "part" is anything this module does not follow.
Path = tuple["int | str", ...]

# What `from module import *` brings, as far as a porter needs to know.
STARS = {
    "torch": ("nn", "optim", "utils", "save", "load", "device", "no_grad", "cuda", "manual_seed"),
    "torch.nn": ("Module", "DataParallel", "Sequential", "Linear", "Conv2d", "CrossEntropyLoss", "MSELoss", "NLLLoss"),
    "torch.optim": (
        "SGD",
        "Adam",
        "AdamW",
        "Adadelta",
        "Adagrad",
        "Adamax",
        "RMSprop",
        "LBFGS",
        "ASGD",
        "NAdam",
        "RAdam",
    ),
    "torch.optim.lr_scheduler": (
        "StepLR",
        "MultiStepLR",
        "ReduceLROnPlateau",
        "CosineAnnealingLR",
        "LambdaLR",
        "OneCycleLR",
    ),
    "torch.utils.data": ("DataLoader", "Dataset", "TensorDataset", "random_split", "IterableDataset", "Subset"),
    "tqdm": ("tqdm", "trange"),
    "matplotlib.pyplot": ("savefig", "show"),
    "os": ("makedirs", "mkdir"),
}


@dataclass(frozen=True, eq=False)
class Binding:
    """One place that gives a name its value: ``how`` is import, assign, param, def, class, or other."""

    name: str
    how: str
    node: cst.CSTNode
    value: cst.BaseExpression | None = None
    path: Path = ()
    target: str = ""  # for an import: the dotted name it stands for


@dataclass(eq=False)
class Scope:
    """The module, a class, a function or a comprehension, and the names that it binds."""

    node: cst.CSTNode
    parent: Scope | None
    names: dict[str, list[Binding]] = field(default_factory=dict)
    outer: set[str] = field(default_factory=set)  # declared global or nonlocal

    def lookup(self, name: str) -> tuple[list[Binding], Scope | None]:
        """Return the bindings of ``name`` that an expression in this scope sees, and the scope that holds them."""
        scope: Scope | None = self
        while scope is not None:
            skip = isinstance(scope.node, cst.ClassDef) and scope is not self
            if name in scope.names and not skip and name not in scope.outer:
                return scope.names[name], scope
            scope = scope.parent
        return [], None


@cache
def _fields(kind: type[cst.CSTNode]) -> tuple[str, ...]:
    dull = ("whitespace", "lpar", "rpar", "leading_lines", "trailing", "header", "footer", "comma", "equal", "colon")
    return tuple(f for f in kind.__dataclass_fields__ if not any(d in f for d in dull))


def children(node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    """Yield the child nodes in source order, without white space and commas."""
    for name in _fields(type(node)):
        value = getattr(node, name)
        if isinstance(value, cst.CSTNode):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from (v for v in value if isinstance(v, cst.CSTNode))


def walk(node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    """Yield ``node`` and everything below it, in source order."""
    stack = [node]
    while stack:
        top = stack.pop()
        yield top
        stack.extend(reversed(list(children(top))))


def dotted(node: cst.CSTNode) -> str:
    """Return ``a.b.c`` for a chain of names, else an empty string."""
    if isinstance(node, cst.Name):
        return node.value
    if isinstance(node, cst.Attribute):
        head = dotted(node.value)
        return f"{head}.{node.attr.value}" if head else ""
    return ""


Comprehension = (cst.ListComp, cst.SetComp, cst.DictComp, cst.GeneratorExp)


class Script:
    """A parsed module with positions, parents, scopes and bindings."""

    def __init__(self, source: str | bytes) -> None:
        """Parse ``source``; raises ``libcst.ParserSyntaxError`` where it is not Python 3."""
        wrapper = MetadataWrapper(cst.parse_module(source), unsafe_skip_copy=True)
        self.module = wrapper.module
        self._positions = wrapper.resolve(PositionProvider)
        self.parents: dict[cst.CSTNode, cst.CSTNode] = {}
        self.scopes: dict[cst.CSTNode, Scope] = {}
        self.nodes: list[cst.CSTNode] = []
        self.stars: list[str] = []
        self.attributes: dict[tuple[cst.ClassDef, str], list[Binding]] = {}
        self.root = Scope(self.module, None)
        self._enter(self.module, self.root)
        self.order = {node: i for i, node in enumerate(self.nodes)}
        self.calls = [n for n in self.nodes if isinstance(n, cst.Call)]

    # -- building -----------------------------------------------------------------------------------------------

    def _enter(self, node: cst.CSTNode, scope: Scope) -> None:
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
            outside = isinstance(node, (cst.FunctionDef, cst.ClassDef)) and isinstance(child, (cst.Decorator, cst.Arg))
            self._enter(child, scope if outside else inner)

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
                if isinstance(node.names, cst.ImportStar):
                    self.stars.append(module)
                    return
                for alias in node.names:
                    name = dotted(alias.asname.name) if alias.asname else dotted(alias.name)
                    self._bind(scope, Binding(name, "import", node, target=f"{module}.{dotted(alias.name)}"))
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
                scope.outer.update(item.name.value for item in node.names)
            case cst.ExceptHandler() if node.name is not None:
                self._assign(scope, node.name.name, None, ("part",), node)

    def _assign(
        self, scope: Scope, target: cst.CSTNode, value: cst.BaseExpression | None, path: Path, node: cst.CSTNode
    ) -> None:
        if isinstance(target, cst.Name):
            home = scope
            if target.value in scope.outer:
                home = self.root
            while isinstance(home.node, Comprehension) and isinstance(node, cst.NamedExpr) and home.parent:
                home = home.parent
            self._bind(home, Binding(target.value, "assign", node, value, path))
        elif isinstance(target, (cst.Tuple, cst.List)):
            for i, element in enumerate(target.elements):
                self._assign(scope, element.value, value, (*path, i), node)
        elif isinstance(target, cst.Attribute) and isinstance(target.value, cst.Name) and target.value.value == "self":
            owner = self._class_around(scope)
            if owner is not None:
                binding = Binding(target.attr.value, "assign", node, value, path)
                self.attributes.setdefault((owner, target.attr.value), []).append(binding)

    @staticmethod
    def _class_around(scope: Scope | None) -> cst.ClassDef | None:
        while scope is not None:
            if isinstance(scope.node, cst.ClassDef):
                return scope.node
            scope = scope.parent
        return None

    # -- asking -------------------------------------------------------------------------------------------------

    def where(self, node: cst.CSTNode) -> CodeRange:
        """Return the lines and columns of ``node``; lines count from 1, columns from 0."""
        return self._positions[node]

    def line(self, node: cst.CSTNode) -> int:
        """Return the line on which ``node`` starts, from 1."""
        return self.where(node).start.line

    def code(self, node: cst.CSTNode) -> str:
        """Return the text of ``node``."""
        return self.module.code_for_node(node)

    def class_of(self, node: cst.CSTNode) -> cst.ClassDef | None:
        """Return the class whose body holds ``node``."""
        return self._class_around(self.scopes[node])

    def name_of(self, node: cst.CSTNode) -> str:
        """Return the qualified name of an expression: ``optim.SGD`` is ``torch.optim.SGD`` however it was imported.

        A name that this module defines comes back as ``.name``; an unknown one as an empty string.
        """
        if isinstance(node, cst.Attribute):
            head = self.name_of(node.value)
            return f"{head}.{node.attr.value}" if head else ""
        if not isinstance(node, cst.Name):
            return ""
        bindings, _ = self.scopes[node].lookup(node.value)
        for binding in bindings:
            if binding.how == "import":
                return binding.target
        if bindings:
            # `save = torch.save` is an alias as good as an import.
            only = bindings[0]
            if len(bindings) == 1 and only.how == "assign" and not only.path and isinstance(only.value, cst.Attribute):
                return self.name_of(only.value) or f".{node.value}"
            return f".{node.value}"
        for star in self.stars:
            if node.value in STARS.get(star, ()):
                return f"{star}.{node.value}"
        return f"builtins.{node.value}" if hasattr(builtins, node.value) else ""

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
        for up in self.above(node):
            if isinstance(up, (cst.FunctionDef, cst.Module)):
                return up
        return self.module

    def outermost_loop(self, node: cst.CSTNode) -> cst.For | cst.While | None:
        """Return the outermost loop around ``node`` in its function."""
        loops = [u for u in self.above(node) if isinstance(u, (cst.For, cst.While))]
        loops = [u for u in loops if self.function_of(u) is self.function_of(node)]
        return loops[-1] if loops else None

    def block(self, statement: cst.CSTNode) -> list[cst.CSTNode]:
        """Return the small and compound statements of the block that holds ``statement``, in order."""
        parent = self.parents[statement]
        if isinstance(parent, cst.SimpleStatementLine):
            parent = self.parents[parent]
        return statements(parent)

    def inside(self, node: cst.CSTNode, outer: cst.CSTNode) -> bool:
        """Tell whether ``node`` is ``outer`` or lies in it."""
        return node is outer or any(up is outer for up in self.above(node))


def statements(block: cst.CSTNode) -> list[cst.CSTNode]:
    """Return the small and compound statements of a module, an indented block or a one-line suite."""
    body = getattr(block, "body", [])
    if isinstance(body, cst.BaseSuite):
        return statements(body)
    flat: list[cst.CSTNode] = []
    for statement in body:
        flat.extend(statement.body if isinstance(statement, cst.SimpleStatementLine) else [statement])
    return flat
