"""Step "finish": leave together, after the last line that runs."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from dlrun.port.edits import Doubt, Edit
from dlrun.port.facts import ScriptFacts
from dlrun.port.insert import statements
from dlrun.port.program.script import walk
from dlrun.port.untrained import rather

EXITS = ("sys.exit", "builtins.exit", "builtins.quit", "os._exit")  # what ends a program where it is called


def torch(facts: ScriptFacts) -> Iterator[Edit | Doubt]:
    """Put finalize() at the end of the main guard, or of the script.

    Before:
        import torch
        if __name__ == "__main__":
            main()

    After:
        import torch
        if __name__ == "__main__":
            main()
            dl.finalize()  # leave together
    """
    if facts.uncalled is not None:
        name = facts.uncalled.name.value
        yield Edit(facts.uncalled, "leaving is the part of the script that calls this, or of dl_comm's exit hook")
        yield Doubt(
            facts.uncalled,
            f"nothing in this file calls {name}(), which trains: this is a module of another "
            f"script, which must call {facts.alias}.init() first, and scale the rate if it sets one",
            "high",
            rather(facts.script),
            name="no-caller",
        )
        return
    body = facts.guard.body.body if facts.guard is not None else facts.script.module.body
    last = body[-1]
    why = "ranks leave only when all have finished"
    if _exits(facts, last):
        yield (
            Edit(last, why, before=statements(f"{facts.framework}/finalize", dl=facts.alias))
            if not _runs_main(last)
            else Edit(last, f"{why}; the exit here is dl_comm's own exit hook's to handle")
        )
    else:
        lines = statements(f"{facts.framework}/finalize", dl=facts.alias)
        if isinstance(last, cst.BaseCompoundStatement) and facts.guard is None:
            lines = (lines[0].with_changes(leading_lines=[cst.EmptyLine(indent=False)]),)
        yield Edit(last, why, after=lines)


def _exits(facts: ScriptFacts, statement: cst.CSTNode) -> bool:
    return any(
        isinstance(n, cst.Call) and facts.script.name_of(n.func) in EXITS for n in walk(statement)
    ) and isinstance(statement, cst.SimpleStatementLine)


def _runs_main(statement: cst.CSTNode) -> bool:
    calls = [n for n in walk(statement) if isinstance(n, cst.Call)]
    return len(calls) > 1
