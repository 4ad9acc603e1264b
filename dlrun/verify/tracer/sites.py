"""Where a script trains: its calls that compute gradients, so that those which the runs did not reach can be named."""

from __future__ import annotations

import ast
from typing import Any

FIT = {"epochs", "batch_size", "validation_data", "callbacks", "steps_per_epoch", "verbose"}  # not a scaler's fit(x)


def sites(source: str) -> list[dict[str, Any]]:
    """Return the first line, the last line and the name of each such call: backward(), gradient() of a tape, fit()."""
    calls = [n for n in ast.walk(ast.parse(source)) if isinstance(n, ast.Call) and isinstance(n.func, ast.Attribute)]
    found = [(n.lineno, n.end_lineno, n.func.attr) for n in calls if isinstance(n.func, ast.Attribute) and _trains(n)]
    return [{"first": first, "last": last, "call": name} for first, last, name in sorted(found)]


def _trains(call: ast.Call) -> bool:
    name = call.func.attr if isinstance(call.func, ast.Attribute) else ""
    named = {keyword.arg for keyword in call.keywords}
    return (
        name == "backward"
        or (name == "gradient" and len(call.args) + len(named) > 1)
        or (name == "fit" and bool(named & FIT))
    )
