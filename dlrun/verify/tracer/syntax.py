"""What the syntax of a script holds: its loops, what is inside them, and what is called."""

from __future__ import annotations

import ast

Loop = (ast.For, ast.While, ast.AsyncFor)


def inside(node: ast.AST) -> list[ast.AST]:
    """Return the nodes below a node, functions defined there left out."""
    found: list[ast.AST] = []
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)):
            found += [child, *inside(child)]
    return found


def callee(call: ast.Call) -> str:
    """Return the name of what is called, without what holds it."""
    return getattr(call.func, "attr", getattr(call.func, "id", ""))
