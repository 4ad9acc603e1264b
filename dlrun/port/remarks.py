"""What was done to a script before it was read: old spellings, and lines of notebooks that are no script's."""

from __future__ import annotations

import re
from collections.abc import Iterator

import libcst as cst

from dlrun.port.edits import Doubt, Edit
from dlrun.port.program import notebooks
from dlrun.port.program.script import Script

_BY_PATH = (
    "importlib.util.spec_from_file_location",
    "importlib.machinery.SourceFileLoader",
    "imp.load_source",
    "runpy.run_path",
)


def remarks(script: Script) -> Iterator[Edit | Doubt]:
    """Yield what a person should know of it, each at its line."""
    for number, line in notebooks.left_out(script.text):
        yield Doubt(
            _at(script, number),
            f"left out, since no script can do it: {line}",
            write="what does the same in a script, or nothing",
            step="start",
            name="notebook-line",
        )
    if re.search(r"\basync\s*=(?!=)", script.text_of(script.module)):
        for arg in script.of(cst.Arg):
            if arg.keyword is not None and arg.keyword.value == "non_blocking":
                yield Edit(arg, "`async` is a keyword since Python 3.7", step="start")
    for call in script.calls:
        if script.name_of(call.func) in _BY_PATH:
            yield Doubt(
                call,
                f"{script.code(call.func)}() loads a module by its path, which is not looked at: what is counted, kept "
                "or written there is each rank's own",
                "medium",
                "import it by its name, so that it is ported too",
                step="start",
                name="unseen-module",
            )


def _at(script: Script, number: int) -> cst.CSTNode:
    """Return the first statement at the line ``number``, or after it; the last one where there is none."""
    found = [s for s in script.nodes if isinstance(s, (cst.SimpleStatementLine, cst.BaseCompoundStatement))]
    mine = [s for s in found if script.tree_of(s) is script.module]
    return next((s for s in mine if script.where(s).start.line >= number), mine[-1])
