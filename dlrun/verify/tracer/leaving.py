"""The ways out of a training loop that a rank may take by its number: the others go on without it, and wait."""

from __future__ import annotations

import ast

from dlrun.verify.tracer.syntax import Loop, callee, inside

LEAVES = "leaves"  # a condition that leads out of a training loop
ASKS = {"get_rank", "get_localrank", "is_rank0", "Get_rank"}


def leaving(tree: ast.Module, stepping: set[int]) -> set[int]:
    """Return the lines of the conditions that lead out of a loop, of those at the lines ``stepping``."""
    found: set[int] = set()
    for loop in (n for n in ast.walk(tree) if isinstance(n, Loop) and n.lineno in stepping):
        deeper = {id(n) for inner in inside(loop) if isinstance(inner, Loop) for n in inside(inner)}
        tests = [n for n in inside(loop) if isinstance(n, ast.If)]
        found |= {n.lineno for n in tests if any(_leads_out(part, id(n) not in deeper) for part in inside(n))}
    return found


def asked(test: ast.AST) -> set[str]:
    """Return the calls in a condition that ask for the rank's number."""
    return {ast.unparse(n) for n in ast.walk(test) if isinstance(n, ast.Call) and callee(n) in ASKS}


def _leads_out(node: ast.AST, own: bool) -> bool:
    """Whether a line leaves a loop; ``own``: ``break`` is meant for it, and not for one inside."""
    if isinstance(node, ast.Call):
        return callee(node) in {"exit", "quit"}
    return isinstance(node, (ast.Return, ast.Raise)) or (own and isinstance(node, ast.Break))
