"""The local modules of a script: what it imports from beside itself, and which of their definitions it can reach."""

from __future__ import annotations

import ast
import sys
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from dlrun.port.scopes import absolute
from dlrun.port.script import Local

_MOST_FILES = 300
_MOST_BYTES = 1_000_000  # of one file: what is larger holds tables, not code


@dataclass
class _File:
    """A module's name and place, the names that its top-level code mentions, and those of each of its definitions."""

    name: str
    file: str
    source: bytes
    tree: ast.Module

    def definitions(self) -> Iterator[tuple[str, ast.stmt]]:
        for statement in self.tree.body:
            if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                yield statement.name, statement


def modules(script: Path, source: bytes) -> list[Local]:
    """Return the modules below the folder of ``script`` that it imports, directly or through others.

    A file that is no Python 3, or is larger than a million bytes, is left out: it stays a foreign module.
    """
    tree = _parsed(source)
    if tree is None:
        return []
    found: dict[str, _File] = {}
    todo: list[tuple[ast.Module, str]] = [(tree, "")]
    while todo and len(found) < _MOST_FILES:
        tree_, package = todo.pop()
        for target in _targets(tree_, package):
            for name, file in _files(script.parent, target):
                if name in found or file == script:
                    continue
                read = _read(name, file, script.parent)
                if read is not None:
                    found[name] = read
                    inside = name if file.name == "__init__.py" else name.rpartition(".")[0]
                    todo.append((read.tree, inside))
    live = _live(tree, list(found.values()))
    return [Local(f.name, f.file, f.source, live) for f in sorted(found.values(), key=lambda f: f.name)]


def _parsed(source: bytes) -> ast.Module | None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _read(name: str, file: Path, folder: Path) -> _File | None:
    try:
        source = file.read_bytes()
    except OSError:
        return None
    tree = _parsed(source) if len(source) <= _MOST_BYTES else None
    return _File(name, file.relative_to(folder).as_posix(), source, tree) if tree is not None else None


def _targets(tree: ast.Module, package: str) -> Iterator[str]:
    """Yield the dotted names that a module imports, in which the last part may be a name inside a module."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = absolute("." * node.level + (node.module or ""), package)
            yield module
            yield from (f"{module}.{alias.name}".lstrip(".") for alias in node.names)


def _files(folder: Path, target: str) -> Iterator[tuple[str, Path]]:
    """Yield name and file of each module that importing ``target`` runs: the packages around it, and itself."""
    parts = target.split(".") if target else []
    if not parts or (parts[0] in sys.builtin_module_names):
        return
    for length in range(1, len(parts) + 1):
        at = folder.joinpath(*parts[:length])
        name = ".".join(parts[:length])
        if (at / "__init__.py").is_file():
            yield name, at / "__init__.py"
        elif at.with_name(at.name + ".py").is_file():
            yield name, at.with_name(at.name + ".py")
            return
        elif not at.is_dir():
            return


def _mentioned(node: ast.AST) -> set[str]:
    """Return the names and attributes that ``node`` mentions, and those that it imports under another name."""
    names: set[str] = set()
    for n in ast.walk(node):
        if isinstance(n, ast.Name):
            names.add(n.id)
        elif isinstance(n, ast.Attribute):
            names.add(n.attr)
        elif isinstance(n, ast.alias) and n.asname:
            names.add(n.name)
        elif isinstance(n, ast.Constant) and isinstance(n.value, str) and n.value.isidentifier():
            names.add(n.value)  # getattr(models, "Net"), a table of names
    return names


def _live(script: ast.Module, files: list[_File]) -> frozenset[str]:
    """Return the names of the definitions that running ``script`` may reach, by name: rather one too many."""
    names = _mentioned(script)
    waiting: dict[str, list[ast.stmt]] = {}
    for file in files:
        definitions = dict(file.definitions())
        for statement in file.tree.body:
            if statement not in definitions.values() and not _is_guard(statement):
                names |= _mentioned(statement)
        for name, definition in file.definitions():
            waiting.setdefault(name, []).append(definition)
    live: set[str] = set()
    todo = [n for n in names if n in waiting]
    while todo:
        name = todo.pop()
        if name not in live:
            live.add(name)
            more = {m for d in waiting[name] for m in _mentioned(d)}
            todo.extend(m for m in more if m in waiting and m not in live)
    return frozenset(live)


def _is_guard(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.If) and "__name__" in _mentioned(statement.test)
