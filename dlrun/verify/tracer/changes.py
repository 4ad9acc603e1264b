"""Conditions under which a script changes how it trains: the rate, what is trained, whether a step is made.

They have no way out of a loop; but ranks that decide by numbers of their own go on with other rates, or weights.
"""

from __future__ import annotations

import ast
from collections.abc import Collection

from dlrun.verify.tracer.syntax import Loop, callee, inside

CHANGE = "change"
OPTIONS = {"lr", "learning_rate", "weight_decay", "momentum", "requires_grad"}
CALLS = {"load_state_dict", "requires_grad_", "add_param_group", "set_weights"}
SETS = {"assign", "set_value"}  # of an optimizer's rate


def changing(tree: ast.Module, training: set[int], functions: Collection[str] = ()) -> set[int]:
    """Return the lines of the conditions, in loops at the lines ``training``, under which training changes.

    In ``functions`` that train, such as an agent's method, those that come every so many steps.
    """
    tests = _conditions(tree, training, functions)
    return {
        node.lineno for node in tests if any(_changes(part) for line in node.body for part in [line, *inside(line)])
    }


def periodic(tree: ast.Module, training: set[int], functions: Collection[str] = ()) -> dict[int, str]:
    """Return the first lines of what is computed every so many iterations that train, each with its condition.

    As of an average of the weights: what is shown of it later is not told before it was made.
    """
    tests = [node for node in _conditions(tree, training, functions) if _counts(node.test)]
    first = {node: _first_computed(node) for node in tests}
    return {line: ast.unparse(node.test) for node, line in first.items() if line}


def _conditions(tree: ast.Module, training: set[int], functions: Collection[str]) -> set[ast.If]:
    loops = [node for node in ast.walk(tree) if isinstance(node, Loop) and node.lineno in training]
    tests = {node for loop in loops for node in inside(loop) if isinstance(node, ast.If)}
    trains = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name in functions]
    return tests | {node for f in trains for node in inside(f) if isinstance(node, ast.If) and _counts(node.test)}


def _first_computed(condition: ast.If) -> int:
    """Return the line of the first statement below a condition that assigns or calls; 0 of none."""
    kinds = (ast.Assign, ast.AugAssign, ast.AnnAssign, ast.Expr)
    below = (part for statement in condition.body for part in [statement, *inside(statement)])
    return min((part.lineno for part in below if isinstance(part, kinds)), default=0)


def _counts(test: ast.expr) -> bool:
    """Whether a condition has a remainder: a text's ``%`` is none."""
    found = (node for node in ast.walk(test) if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod))
    return any(not isinstance(node.left, (ast.JoinedStr, ast.Constant)) for node in found)


def _changes(node: ast.AST) -> bool:
    if isinstance(node, (ast.Assign, ast.AugAssign)):
        return any(_option(target) for target in (node.targets if isinstance(node, ast.Assign) else [node.target]))
    if isinstance(node, ast.Call) and callee(node) in SETS:
        return any(_option(part) for part in [getattr(node.func, "value", node), *node.args])
    return isinstance(node, ast.Call) and callee(node) in CALLS


def _option(node: ast.AST) -> bool:
    """Whether an expression is an option of an optimizer, or a parameter's: ``group["lr"]``, ``optimizer.lr``."""
    if isinstance(node, ast.Subscript):
        return isinstance(node.slice, ast.Constant) and node.slice.value in OPTIONS
    return isinstance(node, ast.Attribute) and node.attr in OPTIONS
