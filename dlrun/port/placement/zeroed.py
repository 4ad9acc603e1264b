"""Arrays that begin with whatever the memory holds: each rank fills its samples' entries, and all are added up."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from dlrun.port.edits import Doubt, Edit
from dlrun.port.facts import ScriptFacts
from dlrun.port.placement.interpret import Interpreter

_ZEROS = {"empty": "zeros", "empty_like": "zeros_like"}
_WHY = "each rank fills its samples' entries, and adds up all: the others begin at zero"


def zeroed(facts: ScriptFacts, run: Interpreter) -> Iterator[Edit | Doubt]:
    """Let arrays that are added up over the ranks begin at zero.

    Before:
        pred = np.empty(len(data))

    After:
        pred = np.zeros(len(data))
    """
    for call in dict.fromkeys(call for made, call in run.uninitialised.items() if made in run.used):
        if isinstance(call.func, cst.Attribute):
            yield Edit(call.func, _WHY, _of_zeros)
        else:
            why = f"{facts.script.code(call)}: ranks add up what the memory holds where they do not fill it"
            yield Doubt(call, why, "medium", "make it with zeros", name="local-number")


def _of_zeros(func: cst.CSTNode) -> cst.CSTNode:
    assert isinstance(func, cst.Attribute)
    return func.with_changes(attr=cst.Name(_ZEROS[func.attr.value]))
