"""The folders that a program puts on its path: ``sys.path.append(os.path.join(os.path.dirname(__file__), "lib"))``."""

from __future__ import annotations

import ast
import os
from collections.abc import Iterator
from pathlib import Path

_SAME = {
    "abspath",
    "realpath",
    "normpath",
    "expanduser",
    "resolve",
    "absolute",
    "as_posix",
    "str",
    "Path",
    "PurePath",
    "fspath",
}
_DEEPEST = 12  # names and calls inside one another


def folders(tree: ast.Module, file: Path, here: Path) -> Iterator[tuple[Path, bool]]:
    """Yield the folders that ``tree``, the text of ``file``, adds to ``sys.path``, and whether it puts them first.

    ``here`` is the folder in which the program is started. What cannot be read from the text is left out.
    """
    texts = _Texts(tree, file, here)
    for node in ast.walk(tree):
        for value, first in _added(node):
            text = texts.of(value)
            if text and (folder := Path(os.path.normpath(here / text))).is_dir():
                yield folder, first


def _added(node: ast.AST) -> Iterator[tuple[ast.expr, bool]]:
    """Yield the expressions that ``node`` adds to ``sys.path``, and whether they come first."""
    match node:
        case ast.Call(func=ast.Attribute(value=path, attr="append"), args=[value]) if _is_path(path):
            yield value, False
        case ast.Call(func=ast.Attribute(value=path, attr="insert"), args=[at, value]) if _is_path(path):
            yield value, isinstance(at, ast.Constant) and at.value == 0
        case ast.Call(func=ast.Attribute(value=path, attr="extend"), args=[ast.List(elts=values)]) if _is_path(path):
            yield from ((value, False) for value in values)
        case ast.AugAssign(target=path, value=ast.List(elts=values)) if _is_path(path):
            yield from ((value, False) for value in values)


def _is_path(node: ast.expr) -> bool:
    return isinstance(node, ast.Attribute) and node.attr == "path" and ast.unparse(node.value) in ("sys", "os.sys")


class _Texts:
    """The texts that expressions of one module stand for, as far as they are names of files and folders."""

    def __init__(self, tree: ast.Module, file: Path, here: Path) -> None:
        self.file, self.here = str(file), str(here)
        self.named: dict[str, ast.expr] = {}
        for node in ast.walk(tree):
            if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
                self.named.setdefault(node.targets[0].id, node.value)

    def of(self, node: ast.expr, depth: int = 0) -> str | None:
        """Return the text of ``node``; None where it cannot be told."""
        if depth > _DEEPEST:
            return None
        match node:
            case ast.Constant(value=str(text)):
                return text
            case ast.Name(id="__file__"):
                return self.file
            case ast.Name(id=name) if name in self.named:
                return self.of(self.named[name], depth + 1)
            case ast.JoinedStr(values=parts):
                return self._joined("", parts, depth)
            case ast.FormattedValue(value=value):
                return self.of(value, depth + 1)
            case ast.BinOp(left=left, op=(ast.Add() | ast.Div()) as way, right=right):
                return self._joined("" if isinstance(way, ast.Add) else "/", [left, right], depth)
            case ast.Attribute(attr="pardir"):
                return os.pardir
            case ast.Attribute(value=inner, attr="parent"):
                return self._above(inner, 1, depth)
            case ast.Subscript(value=ast.Attribute(value=inner, attr="parents"), slice=ast.Constant(value=int(n))):
                return self._above(inner, n + 1, depth)
            case ast.Subscript(value=ast.Call(func=ast.Attribute(attr="split"), args=[inner]), slice=ast.Constant(0)):
                return self._above(inner, 1, depth)
            case ast.Subscript(value=path, slice=ast.Constant(value=0)) if _is_path(path):
                return self.here
            case ast.Call():
                return self._called(node, depth)
        return None

    def _called(self, call: ast.Call, depth: int) -> str | None:
        name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
        inner = call.func.value if isinstance(call.func, ast.Attribute) else None
        if name in ("getcwd", "cwd"):
            return self.here
        if name in ("getfile", "getsourcefile"):
            return self.file
        if name == "join":
            return self._joined("/", call.args, depth)
        if name == "joinpath" and inner is not None:
            return self._joined("/", [inner, *call.args], depth)
        given = call.args[0] if call.args else inner
        if name == "dirname" and given is not None:
            return self._above(given, 1, depth)
        text = self.of(given, depth + 1) if name in _SAME and given is not None else None
        absolute = name in ("abspath", "realpath", "resolve", "absolute")
        return os.path.normpath(Path(self.here, text)) if absolute and text is not None else text

    def _above(self, node: ast.expr, steps: int, depth: int) -> str | None:
        text = self.of(node, depth + 1)
        for _ in range(steps if text is not None else 0):
            text = str(Path(text or "").parent)
        return text

    def _joined(self, between: str, parts: list[ast.expr], depth: int) -> str | None:
        texts = [self.of(part, depth + 1) for part in parts]
        known = [text for text in texts if text is not None]
        if len(known) < len(texts) or not known:
            return None
        return str(Path(*known)) if between else "".join(known)
