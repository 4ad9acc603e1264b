"""Part of step "output": files that a script writes into and reads from through one connection."""

from __future__ import annotations

import re
from collections.abc import Iterator

import libcst as cst

from dlrun.port.edits import Doubt
from dlrun.port.facts import ScriptFacts
from dlrun.port.program.script import argument, calls_method, walk

_OPENS = re.compile(r"^(sqlite3\.connect|shelve\.open|dbm\.(\w+\.)?open|lmdb\.open|tinydb\.TinyDB)$")
_EXECUTES = ("execute", "executemany", "executescript")
_APART = re.compile(r"\bmode=(ro|memory)\b|\bimmutable=1\b")  # in a URI
_CHANGES = re.compile(r"\b(insert|update|delete|replace|create|drop|alter)\b", re.IGNORECASE)


def is_shared(facts: ScriptFacts, call: cst.Call, name: str) -> bool:
    """Tell whether ``call``, of what is called ``name``, opens a file that every rank would write into."""
    if not _OPENS.search(name) or not call.args:
        return False
    path = facts.script.code(call.args[0].value)
    if ":memory:" in path or _APART.search(path) or _reads_alone(call):
        return False
    return name != "sqlite3.connect" or any(map(_CHANGES.search, _statements(facts, call)))


def _statements(facts: ScriptFacts, opened: cst.Call) -> Iterator[str]:
    """Yield the texts that are executed by the connection ``opened``, or by one that is not known.

    All texts of the script, where one of these is not known.
    """
    for call in facts.script.calls:
        if calls_method(call, *_EXECUTES) and call.args and isinstance(call.func, cst.Attribute):
            by = _connections(facts, call.func.value)
            if opened in by or not by:
                found = [n for o in facts.flow.origins(call.args[0].value) for n in walk(o.node)]
                texts = [n for n in found if isinstance(n, (cst.SimpleString, cst.FormattedStringText))]
                for text in texts or facts.script.of(cst.SimpleString):
                    yield text.value if isinstance(text, cst.FormattedStringText) else str(text.evaluated_value)


def _connections(facts: ScriptFacts, node: cst.BaseExpression) -> list[cst.CSTNode]:
    """Return the calls that open what ``node`` executes by: itself, or what its cursor is of."""
    made = [o.node for o in facts.flow.origins(node)]
    opened: list[cst.CSTNode] = [
        n for n in made if isinstance(n, cst.Call) and facts.script.name_of(n.func) == "sqlite3.connect"
    ]
    for n in made:
        if isinstance(n, cst.Call) and calls_method(n, "cursor", *_EXECUTES) and isinstance(n.func, cst.Attribute):
            opened += _connections(facts, n.func.value)
    return opened


def _reads_alone(call: cst.Call) -> bool:
    """Tell whether ``call`` says that it only reads: ``shelve.open(path, "r")``, ``lmdb.open(path, readonly=True)``."""
    flag, only = argument(call, "flag", 1), argument(call, "readonly")
    reads = isinstance(flag, cst.SimpleString) and flag.evaluated_value == "r"
    return reads or (isinstance(only, cst.Name) and only.value == "True")


def doubt(facts: ScriptFacts, call: cst.Call) -> Doubt:
    """Return what is told of ``call``."""
    dl = facts.alias
    return Doubt(
        call,
        "every rank writes into this file, so that what is written once is there n times, or half of it",
        "high",
        f"write under `if {dl}.get_rank() == 0:`, then {dl}.barrier() before another rank reads; or let the others "
        "open a file of their own",
        name="several-writers",
    )
