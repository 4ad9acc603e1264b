"""The local modules of a script: what it imports of its own project, and which of their definitions it can reach."""

from __future__ import annotations

import ast
import importlib.util
import re
import sys
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from dlrun.package import Home
from dlrun.port.program import paths
from dlrun.port.program.scopes import absolute
from dlrun.port.program.script import Local

IMPORTERS = ("import_module", "__import__", "run_module")  # by a text
_MOST_FILES = 300
_MOST_BYTES = 1_000_000  # of one file: what is larger holds tables, not code
_ASYNC = re.compile(rb"\basync(\s*=)(?!=)")  # an argument's name once: see ``reading``
_ROOT = ("setup.py", "pyproject.toml", ".git")  # one of these marks the root of a project
# What a script calls by these names is the library, also in an example that lies in the library's own project.
LIBRARIES = {
    "torch",
    "torchvision",
    "tensorflow",
    "keras",
    "jax",
    "flax",
    "numpy",
    "horovod",
    "accelerate",
    "ray",
    "lightning",
    "pytorch_lightning",
    "lightning_fabric",
    "deepspeed",
    "fairscale",
    "ignite",
    "byteps",
    "colossalai",
    "torch_xla",
    "transformers",
    "fastai",
    "catalyst",
    "skorch",
    "dl_comm",
}


@dataclass
class _File:
    """A module's name, its file (below the port's folder, and where it lies), its text."""

    name: str
    file: str
    path: Path
    source: bytes
    tree: ast.Module

    @property
    def package(self) -> str:
        """Where its relative imports begin."""
        return self.name if self.path.name == "__init__.py" else self.name.rpartition(".")[0]

    def definitions(self) -> Iterator[tuple[str, ast.stmt]]:
        for statement in self.tree.body:
            if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                yield statement.name, statement


def modules(script: Path, source: bytes, home: Home) -> list[Local]:
    """Return the modules of the project of ``script`` that it imports, directly or through others.

    They lie below its home (the folder first on its path), in folders that it puts on its path, or at the root of the
    project around it. A file that is no Python 3, or is larger than a million bytes, is left out: it stays a foreign
    module.
    """
    tree = _parsed(source)
    if tree is None:
        return []
    search = _Search(home)
    search.extend(tree, source, script.absolute())
    found: dict[str, _File] = {}
    todo: list[tuple[ast.Module, str]] = [(tree, home.package)]
    while todo and len(found) < _MOST_FILES:
        tree_, package = todo.pop()
        for target in (package, *_targets(tree_, package)):
            for name, folder, path in search.files(target):
                if name in found or path == script.absolute():
                    continue
                read = _read(name, path, folder)
                if read is not None:
                    found[name] = read
                    if search.extend(read.tree, read.source, path):  # what was not found before may be there
                        todo.extend([(tree, home.package), *((f.tree, f.package) for f in found.values())])
                    todo.append((read.tree, read.package))
                    if path.name == "__init__.py":
                        todo.append((_imports(_listed(read.tree), name), name))
    live = _live(tree, list(found.values()))
    return [Local(f.name, f.file, f.source, live, f.path) for f in sorted(found.values(), key=lambda f: f.name)]


class _Search:
    """The folders in which a script's local modules may lie: its home, its path, then the project around it."""

    def __init__(self, home: Home) -> None:
        self.home = home.folder
        around = () if _is_root(home.folder) else home.folder.parents
        root = next((folder for folder in around if _is_root(folder)), None)
        self.project = (root, root / "src") if root is not None else ()
        self.starts = (self.home,) if root is None else (self.home, root)  # where the program may be started
        self.first: list[Path] = []  # what it puts on its path before its home, and after it
        self.last: list[Path] = []
        self._known: dict[str, Path | None] = {}  # the folders of modules that were looked for

    def extend(self, tree: ast.Module, source: bytes, file: Path) -> bool:
        """Add the folders that the module ``tree`` in ``file`` puts on the path; tell whether there are new ones."""
        if b"sys.path" not in source:
            return False
        found = [f for here in self.starts for f in paths.folders(tree, file, here) if f[0] != self.home]
        new = [f for f in dict.fromkeys(found) if f[0] not in self.first + self.last]
        self.first[:0] = reversed([folder for folder, first in new if first])
        self.last += [folder for folder, first in new if not first]
        self._known.clear()
        return bool(new)

    def files(self, target: str) -> Iterator[tuple[str, Path, Path]]:
        """Yield name, folder and file of each module that importing ``target`` runs: packages around it, itself."""
        parts = target.split(".") if target else []
        if parts and parts[0] not in self._known:
            self._known[parts[0]] = self._folder(parts[0])
        folder = self._known[parts[0]] if parts else None
        if folder is None:
            return
        for length in range(1, len(parts) + 1):
            at = folder.joinpath(*parts[:length])
            name = ".".join(parts[:length])
            if (at / "__init__.py").is_file():
                yield name, folder, at / "__init__.py"
            elif at.with_name(at.name + ".py").is_file():
                yield name, folder, at.with_name(at.name + ".py")
                return
            elif not at.is_dir():
                return

    def _folder(self, top: str) -> Path | None:
        """Return the folder whose module or package ``top`` is; None where it is foreign, or may be.

        The project's own modules are meant where the name is found at one place of the project, and nothing else is
        installed under it.
        """
        if top in sys.builtin_module_names:
            return None
        own = top not in LIBRARIES | sys.stdlib_module_names
        for folder in (*self.first, self.home, *self.last) if own else (self.home,):
            if _holds(folder, top) and (folder not in self.last or _is_installed_from(folder, top)):
                return folder
        beside = next((f for f in (*self.first, self.home, *self.last) if own and _has_modules(f / top)), None)
        if own:
            within = [f.parent for f in (self.home, *self.home.parents) if f.name == top]  # of the package itself
            within = [f for f in within if not self.project or f.is_relative_to(self.project[0])][:1]
            places: list[Path] = list(dict.fromkeys([*self.project, *within]))
            found = [f for f in places if _holds(f, top) or (beside is None and _has_modules(f / top))]
            if len(found) == 1 and _is_installed_from(found[0], top):
                return found[0]
        return beside or self.home


def _is_root(folder: Path) -> bool:
    return any((folder / mark).exists() for mark in _ROOT)


def _holds(folder: Path, name: str) -> bool:
    return (folder / name / "__init__.py").is_file() or (folder / f"{name}.py").is_file()


def _has_modules(folder: Path) -> bool:
    """Tell whether ``folder`` may be a package without ``__init__.py``."""
    return any(folder.glob("*.py")) or any(folder.glob("*/*.py"))


def _is_installed_from(folder: Path, name: str) -> bool:
    """Tell whether the module ``name`` comes from ``folder`` if it is installed here at all."""
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        return True
    return spec is None or spec.origin is None or folder.resolve() in Path(spec.origin).resolve().parents


def _parsed(source: bytes) -> ast.Module | None:
    for text in (source, _ASYNC.sub(rb"non_blocking\1", source)):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return ast.parse(text)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            continue
    return None


def _read(name: str, file: Path, folder: Path) -> _File | None:
    try:
        source = file.read_bytes()
    except OSError:
        return None
    tree = _parsed(source) if len(source) <= _MOST_BYTES else None
    return _File(name, file.relative_to(folder).as_posix(), file, source, tree) if tree is not None else None


def _targets(tree: ast.Module, package: str) -> Iterator[str]:
    """Yield the dotted names that a module imports, in which the last part may be a name inside a module."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = absolute("." * node.level + (node.module or ""), package)
            yield module
            yield from (f"{module}.{alias.name}".lstrip(".") for alias in node.names if alias.name != "*")
        elif isinstance(node, ast.Call) and (named := _named(node)):
            yield absolute(named, package)


def _named(call: ast.Call) -> str:
    """Return the module that ``call`` imports by a text: ``importlib.import_module("nets.small")``."""
    last = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    texts = [a.value for a in call.args if isinstance(a, ast.Constant) and isinstance(a.value, str)]
    if last not in IMPORTERS or not texts:
        return ""
    within = texts[1] if len(texts) > 1 and texts[0].startswith(".") else ""
    return within + texts[0]


def _listed(tree: ast.Module) -> list[str]:
    """Return the names that ``__all__`` lists: in a package they may be modules, which ``import *`` brings."""
    for node in tree.body:
        if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == "__all__" for t in node.targets):
            texts = node.value.elts if isinstance(node.value, (ast.List, ast.Tuple)) else []
            return [t.value for t in texts if isinstance(t, ast.Constant) and isinstance(t.value, str)]
    return []


def _imports(names: list[str], package: str) -> ast.Module:
    """Return a module that imports ``names`` from ``package``, as ``import *`` does with what ``__all__`` lists."""
    aliases = [ast.alias(name) for name in names]
    return ast.Module([ast.ImportFrom(package, aliases, 0)] if names else [], [])


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
