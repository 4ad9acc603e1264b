"""Step "start": import dl_comm and join the other ranks, once, in the main process only."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from dlrun.port.edits import Doubt, Edit
from dlrun.port.facts import Facts
from dlrun.port.insert import statements
from dlrun.port.passes import devices
from dlrun.port.script import walk


def torch(facts: Facts) -> Iterator[Edit | Doubt]:
    """Put the import beside the others, and init() after it, or first under the main guard.

    Before:
        import torch
        train()

    After:
        import torch
        import dl_comm.torch as dl  # averages gradients over the ranks; without a launcher: one rank

        dl.init()  # join the other ranks; this rank's GPU becomes the current one
        train()
    """
    script, dl = facts.script, facts.alias
    after = list(statements("torch/import", dl=dl))
    block: list[cst.CSTNode] = []
    if facts.guard is None:
        block.extend(statements("torch/init", dl=dl))
    else:
        first = facts.guard.body.body[0]
        yield Edit(first, "the ranks meet in the main process only, not in a DataLoader's workers",
                   before=statements("torch/init", dl=dl))  # fmt: skip
    if prints(facts):
        block.extend(statements("torch/print", dl=dl))
    if block:
        head = block[0]
        block[0] = head.with_changes(leading_lines=[cst.EmptyLine(indent=False)])
    anchor = last_import(script.module)
    why = "the ranks meet before anything else happens" if facts.guard is None else "dl_comm beside the other imports"
    yield from devices.torch(facts)
    if anchor is None:
        # A script without imports at the top cannot reach torch; a docstring or the first statement is the place.
        yield Edit(script.module.body[0], why, before=(*after, *block))
    else:
        yield Edit(anchor, why, after=(*after, *block))


def prints(facts: Facts) -> bool:
    """Tell whether the script prints, and has not given ``print`` a meaning of its own."""
    script = facts.script
    return "print" not in script.root.names and any(
        isinstance(c.func, cst.Name) and script.name_of(c.func) == "builtins.print" for c in script.calls
    )


def last_import(module: cst.Module) -> cst.CSTNode | None:
    """Return the last statement of the run of imports in which torch is imported (else of the first run)."""
    last: cst.CSTNode | None = None
    torch_seen = False
    for statement in module.body:
        if _imports(statement):
            last = statement
            torch_seen = torch_seen or _mentions_torch(statement)
        elif torch_seen or (
            last is not None
            and not _light(statement)
            and not any(_mentions_torch(s) for s in module.body if _imports(s))
        ):
            return last
    return last


def _imports(statement: cst.CSTNode) -> bool:
    if isinstance(statement, cst.SimpleStatementLine):
        return any(isinstance(s, (cst.Import, cst.ImportFrom)) for s in statement.body)
    if isinstance(statement, (cst.Try, cst.If)):
        return (
            any(isinstance(n, (cst.Import, cst.ImportFrom)) for n in walk(statement))
            and not any(isinstance(n, (cst.For, cst.While, cst.FunctionDef, cst.ClassDef)) for n in walk(statement))
            and sum(isinstance(n, cst.BaseSmallStatement) for n in walk(statement)) <= 8
        )
    return False


def _light(statement: cst.CSTNode) -> bool:
    return isinstance(statement, cst.SimpleStatementLine)


def _mentions_torch(statement: cst.CSTNode) -> bool:
    for n in walk(statement):
        if isinstance(n, (cst.Import, cst.ImportFrom)):
            names: list[cst.CSTNode | None] = [n.module] if isinstance(n, cst.ImportFrom) else [a.name for a in n.names]
            for name in names:
                while isinstance(name, cst.Attribute):
                    name = name.value
                if isinstance(name, cst.Name) and name.value == "torch":
                    return True
    return False
