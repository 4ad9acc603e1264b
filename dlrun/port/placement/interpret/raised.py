"""Exceptions that a test which diverges raises, and which handlers they reach."""

from __future__ import annotations

import builtins
from dataclasses import dataclass

import libcst as cst

from dlrun.port.program.script import Script

_BUILT_IN = "builtins."


@dataclass(frozen=True)
class Raised:
    """An exception: by which test, and of what class; the class is "" where that is not known."""

    test: cst.CSTNode
    name: str


def by_assert(test: cst.CSTNode) -> Raised:
    """Return what an assertion of ``test`` raises."""
    return Raised(test, f"{_BUILT_IN}AssertionError")


def by_raise(script: Script, node: cst.Raise, test: cst.CSTNode) -> Raised:
    """Return what ``node`` raises where ``test`` lets it."""
    made = node.exc.func if isinstance(node.exc, cst.Call) else node.exc
    return Raised(test, script.name_of(made) if made is not None else "")


def is_caught(script: Script, handler: cst.ExceptHandler, raised: Raised) -> bool:
    """Tell whether ``handler`` may catch it: one for ``RuntimeError`` lets an ``AssertionError`` pass."""
    match handler.type:
        case None:
            return True
        case cst.Tuple(elements=elements):
            classes = [e.value for e in elements]
        case one:
            classes = [one]
    thrown = _built_in(raised.name)
    for each in classes:
        name = script.name_of(each)
        caught = _built_in(name)
        if thrown is None or not name or (caught is None and name.startswith(".")):
            return True  # a class of the script's own may be made of any other
        if caught is not None and issubclass(thrown, caught):
            return True
    return False


def _built_in(name: str) -> type | None:
    """Return Python's own exception class that is called so."""
    found = getattr(builtins, name.removeprefix(_BUILT_IN), None) if name.startswith(_BUILT_IN) else None
    return found if isinstance(found, type) else None
