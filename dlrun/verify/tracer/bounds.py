"""What a condition compares its operands with: numbers, in whatever terms they are written."""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import Any

from dlrun.verify.tracer.syntax import callee

ORDERS = (ast.Lt, ast.LtE, ast.Gt, ast.GtE)
COMPARED = (*ORDERS, ast.Eq)  # as a patience is with what has waited
READ = (ast.Name, ast.Attribute, ast.Subscript)
PLAIN = (*READ, ast.Constant, ast.BinOp, ast.UnaryOp, ast.Load, ast.operator, ast.unaryop)
SAME = {"get_nranks", "lr_scale"}  # dl_comm's functions that are asked once more without any effect


def bounds_in(test: ast.expr) -> ast.Dict:
    """Return, as an expression, what names are compared with in a condition, by these names."""
    found: dict[str, str] = {}
    for node in ast.walk(test):
        if isinstance(node, ast.Compare) and len(node.ops) == 1 and isinstance(node.ops[0], COMPARED):
            one, other = node.left, node.comparators[0]
            for operand, bound in ((one, other), (other, one)):
                if isinstance(operand, READ) and _is_plain(operand) and _is_plain(bound):
                    found.setdefault(ast.unparse(operand), ast.unparse(bound))
    return ast.Dict(
        [ast.Constant(name) for name in found], [ast.parse(bound, mode="eval").body for bound in found.values()]
    )


def numbers(bounds: Callable[[], dict[str, Any]]) -> dict[str, float]:
    """Return those of the bounds that are numbers."""
    try:
        given = bounds()
    except Exception:  # a short circuit kept the script from reading it
        return {}
    return {name: float(value) for name, value in given.items() if isinstance(value, (int, float))}


def _is_plain(node: ast.expr) -> bool:
    if isinstance(node, ast.Call):
        return callee(node) in SAME and all(map(_is_plain, node.args)) and not node.keywords
    return isinstance(node, PLAIN) and all(
        _is_plain(child) if isinstance(child, ast.expr) else True for child in ast.iter_child_nodes(node)
    )
