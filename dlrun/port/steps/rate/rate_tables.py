"""Entries that the number of steps so far picks from a table of rates or weights: ``betas[step]``."""

from __future__ import annotations

from collections.abc import Collection, Iterator

import libcst as cst

from dlrun.port.edits import Edit
from dlrun.port.facts import ScriptFacts
from dlrun.port.insert import expression
from dlrun.port.program.script import Script

_TABLES = ("numpy.", "torch.", "builtins.list", "builtins.sorted")
_BOUND = ("builtins.min", "numpy.minimum", "numpy.clip")


def picks(script: Script, read: cst.CSTNode) -> bool:
    """Tell whether the count ``read`` picks one entry of a table: not in turn, ``heads[step % 3]``, nor several."""
    return _entry(script, read) is not None


def _entry(script: Script, read: cst.CSTNode) -> cst.Subscript | None:
    for up in script.above(read):
        match up:
            case cst.BinaryOperation(operator=cst.Modulo()) | cst.Slice() | cst.Comparison():
                return None
            case cst.Subscript(slice=[cst.SubscriptElement(slice=cst.Index())]) if not script.inside(read, up.value):
                return up
            case cst.BaseCompoundStatement() | cst.SimpleStatementLine():
                return None
    return None


def kept_inside(facts: ScriptFacts, reads: Collection[cst.CSTNode]) -> Iterator[Edit]:
    """Yield what takes the last entry of a table where n times local steps, ``reads``, lie beyond it.

    Where n does not divide an epoch's batches, n ranks take a few more.
    """
    for entry in dict.fromkeys(e for read in reads if (e := _entry(facts.script, read)) is not None):
        at = entry.slice[0].slice
        bound = isinstance(at, cst.Index) and isinstance(at.value, cst.Call)
        bound = bound and facts.script.name_of(at.value.func) in _BOUND  # type: ignore[attr-defined]
        if not bound and _is_table(facts, entry.value):
            yield Edit(entry, "n ranks may take a few steps more than there are entries", _bounded)


def _bounded(node: cst.BaseExpression) -> cst.BaseExpression:
    """Return an entry that is there, also where another step has put a call around it."""
    if isinstance(node, cst.Call):
        first = node.args[0].with_changes(value=_bounded(node.args[0].value))
        return node.with_changes(args=[first, *node.args[1:]])
    at = node.slice[0].slice.value  # type: ignore[attr-defined]
    return expression("torch/entry", {"table": node.value, "at": at})  # type: ignore[attr-defined]


def _is_table(facts: ScriptFacts, node: cst.BaseExpression) -> bool:
    """Tell whether ``node`` is a list or an array, which has no keys."""
    made = [o.node for o in facts.flow.origins(node)]
    return bool(made) and all(
        isinstance(n, (cst.List, cst.ListComp, cst.BinaryOperation))
        or (isinstance(n, cst.Call) and (facts.script.name_of(n.func).startswith(_TABLES)))
        for n in made
    )
