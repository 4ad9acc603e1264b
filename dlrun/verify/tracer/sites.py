"""Where a script trains: its calls that compute gradients, so that those which the runs did not reach can be named.

So are those that read a checkpoint where there is one: what goes on from it is not seen without.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable
from typing import Any

LOAD = "load"
FIT = {"epochs", "batch_size", "validation_data", "callbacks", "steps_per_epoch", "verbose"}  # not a scaler's fit(x)


def sites(source: str) -> list[dict[str, Any]]:
    """Return the first line, the last line and the name of each such call: backward(), gradient() of a tape, fit()."""
    calls = [n for n in ast.walk(ast.parse(source)) if isinstance(n, ast.Call) and isinstance(n.func, ast.Attribute)]
    found = [(n.lineno, n.end_lineno, n.func.attr) for n in calls if isinstance(n.func, ast.Attribute) and _trains(n)]
    found += [(n.lineno, n.end_lineno, LOAD) for n in _loads(ast.parse(source))]
    return [{"first": first, "last": last, "call": name} for first, last, name in sorted(found)]


def _loads(tree: ast.Module) -> list[ast.Call]:
    """Return the calls of load(), of torch or of dl_comm, that are made where there is a file.

    Under a condition, after one that returns, where a missing file is caught, or in a function that is called there.
    """
    faces = {"torch"} | {
        a.asname or a.name
        for n in ast.walk(tree)
        if isinstance(n, (ast.Import, ast.ImportFrom))
        for a in n.names
        if a.name.startswith("dl_comm")
    }
    parts = [part for n in ast.walk(tree) if isinstance(n, (ast.If, ast.Try)) for part in n.body]
    under = {id(n): n for part in parts for n in ast.walk(part)}
    for function in (n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)):
        leaves = [n.lineno for n in function.body if isinstance(n, ast.If) and isinstance(n.body[-1], ast.Return)]
        later = (n for part in function.body if leaves and part.lineno > leaves[0] for n in ast.walk(part))
        under |= {id(n): n for n in later}
    functions = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)]
    while called := [f for f in functions if id(f) not in under and f.name in _called(under.values())]:
        under |= {id(n): n for function in called for n in ast.walk(function)}
    calls = [n for n in under.values() if isinstance(n, ast.Call) and isinstance(n.func, ast.Attribute)]
    return [
        n for n in calls if ast.unparse(n.func).rpartition(".")[0] in faces and ast.unparse(n.func).endswith(".load")
    ]


def _called(nodes: Iterable[ast.AST]) -> set[str]:
    names = [ast.unparse(n.func).rpartition(".")[2] for n in nodes if isinstance(n, ast.Call)]
    return set(names)


def _trains(call: ast.Call) -> bool:
    name = call.func.attr if isinstance(call.func, ast.Attribute) else ""
    named = {keyword.arg for keyword in call.keywords}
    return (
        name == "backward"
        or (name == "gradient" and len(call.args) + len(named) > 1)
        or (name == "fit" and bool(named & FIT))
    )
