"""Part of step "output": files that a script writes into and reads from through one connection."""

from __future__ import annotations

import re

import libcst as cst

from dlrun.port.edits import Doubt
from dlrun.port.facts import ScriptFacts
from dlrun.port.program.script import argument

_OPENS = re.compile(r"^(sqlite3\.connect|shelve\.open|dbm\.(\w+\.)?open|lmdb\.open|tinydb\.TinyDB)$")
_CHANGES = re.compile(r"\b(insert|update|delete|replace|create|drop|alter)\b", re.IGNORECASE)


def is_shared(facts: ScriptFacts, call: cst.Call, name: str) -> bool:
    """Tell whether ``call``, of what is called ``name``, opens a file that every rank would write into."""
    if not _OPENS.search(name) or not call.args:
        return False
    path = facts.script.code(call.args[0].value).strip("'\"")
    if path == ":memory:" or path.startswith("file:") or _reads_alone(call):
        return False
    texts = (str(t.evaluated_value) for t in facts.script.of(cst.SimpleString))
    return name != "sqlite3.connect" or any(map(_CHANGES.search, texts))


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
