"""Functions that make single samples, maybe in the worker processes of a loader: there the ranks never meet."""

from __future__ import annotations

import libcst as cst

from dlrun.port.facts import ScriptFacts
from dlrun.port.program.script import walk

_DEPTH = 4


def makers(facts: ScriptFacts) -> set[cst.FunctionDef]:
    """Return ``__getitem__`` of data sets, ``__call__`` of transforms, collate functions, and what these call."""
    flow, script = facts.flow, facts.script
    todo = [(f, _DEPTH) for f in flow.methods.get("__getitem__", [])]
    for function in flow.methods.get("__call__", []):
        if not flow.callers(function):  # handed to a data set, which calls it
            todo.append((function, _DEPTH))
    for call in script.calls:
        for arg in call.args:
            if arg.keyword is not None and arg.keyword.value in ("collate_fn", "transform", "target_transform"):
                given = flow.definition(arg.value)
                todo.extend([(given, _DEPTH)] if isinstance(given, cst.FunctionDef) else [])
    trained = {script.function_of(node) for node in (*(s.node for s in getattr(facts, "steps", ())), *facts.loops)}
    found: set[cst.FunctionDef] = set()
    while todo:
        function, depth = todo.pop()
        if function in found or function in trained:
            continue
        found.add(function)
        if depth:
            inner = [n for n in walk(function.body) if isinstance(n, cst.Call)]
            todo.extend((target, depth - 1) for call in inner for target in flow.targets(call))
    return found
