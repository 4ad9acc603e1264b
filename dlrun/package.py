"""Where a script's imports begin: beside the file, or above the package that its relative imports need."""

from __future__ import annotations

import ast
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Home:
    """The folder that is first on the path when a script runs, and the package in which the script then lies.

    A script without relative imports runs as a file: the folder is its own, the package empty. One with them can only
    run as ``python -m package.script`` from the folder above its outermost package.
    """

    folder: Path
    package: str = ""

    @property
    def inside(self) -> Path:
        """The script's folder below ``folder``."""
        return Path(*self.package.split(".")) if self.package else Path()

    def module(self, script: Path) -> str:
        """Return the name by which ``python -m`` starts ``script``."""
        return f"{self.package}.{script.stem}"


def home_of(script: Path, source: str | bytes) -> Home:
    """Return the home of the script at ``script`` with the text ``source``.

    The outermost package is the last folder upwards with an ``__init__.py``, and never lower than the relative imports
    reach. A relative import that the script tries and can do without says nothing.
    """
    folder = script.absolute().parent
    above = max((node.level for node in _needed(source)), default=0)
    parts: list[str] = []
    at = folder
    while above and at != at.parent and (len(parts) < above or (at / "__init__.py").is_file()):
        parts.insert(0, at.name)
        at = at.parent
    if len(parts) < above or not parts or any("." in part for part in parts):
        return Home(folder)
    return Home(at, ".".join(parts))


def _needed(source: str | bytes) -> Iterator[ast.ImportFrom]:
    """Yield the relative imports that are not tried in a ``try``."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return
    todo: list[ast.AST] = [tree]
    while todo:
        node = todo.pop()
        if isinstance(node, ast.ImportFrom) and node.level:
            yield node
        elif not isinstance(node, ast.Try):
            todo.extend(ast.iter_child_nodes(node))
