"""Data sets that a script makes in several lines under one name: ``data = data.shuffle(64); data = data.batch(4)``."""

from __future__ import annotations

from collections.abc import Collection

import libcst as cst

from dlrun.port.facts.numbers.computed import reaching
from dlrun.port.feeds.positions.positions import mentions
from dlrun.port.program.script import Script


def goes_on_in(script: Script, made: cst.CSTNode, others: Collection[cst.CSTNode]) -> bool:
    """Tell whether nothing uses the data set ``made`` but lines below that make ``others`` of it, under its name."""
    name = _name(script, made)
    if name is None:
        return False
    line, bindings = script.statement_of(made), script.bindings_of(name)
    anew = [b.node for b in bindings if b.value in others and b.value is not made]
    later = [n for n in anew if script.order[n] > script.order[line]]
    sure = any(script.inside(line, script.suite(script.statement_of(n))) for n in later)
    reads = [n for n in script.names_of(name.value, script.scope_of(name)) if not (n is name or script.is_part(n))]
    reads = [n for n in reads if script.function_of(n) is script.function_of(name)]
    reads = [n for n in reads if any(b.node is line for b in reaching(script, n, bindings))]
    return sure and all(any(script.inside(n, node) for node in anew) for n in reads)


def changes_at_times(script: Script, made: cst.CSTNode, others: Collection[cst.CSTNode]) -> bool:
    """Tell whether ``made`` and one of ``others``, which it is made of or goes into, may both come under one name."""
    name = _name(script, made)
    if name is None:
        return False
    named = [(n, known) for n in others if n is not made and (known := _name(script, n)) is not None]
    same = [n for n, known in named if known.value == name.value and script.scope_of(known) is script.scope_of(name)]
    return any(mentions(n, {name.value}) for n in (made, *same)) if same else False


def _name(script: Script, made: cst.CSTNode) -> cst.Name | None:
    """Return the name that a line gives to ``made``, if that is all that it does."""
    line = script.statement_of(made)
    target = line.targets[0].target if isinstance(line, cst.Assign) and line.value is made else None
    return target if isinstance(target, cst.Name) else None
