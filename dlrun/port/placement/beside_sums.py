"""Counters that one expression reads beside sums: they are reduced behind their loop with these."""

from __future__ import annotations

from typing import Any

import libcst as cst

from dlrun.port.placement.interpret import Interpreter
from dlrun.port.placement.interpret.exits import Exit
from dlrun.port.placement.interpret.machine import CountInLiteral
from dlrun.port.placement.store import Bound, Class, Function, Obj
from dlrun.port.placement.values import MIXED, Kind, Value, is_serial
from dlrun.port.program.script import Script, walk

_SAVES = ("save", "dump", "save_checkpoint")
_LOADS = ("load", "restore", "safe_load")


def beside_sums(run: Interpreter) -> set[tuple[cst.CSTNode, Any]]:
    """Return the counters that one expression reads beside sums of all ranks: ``for k, x in sums.items(): print(x)``.

    These are reduced with the sums, behind their loop, where it reads none of them but to count on. Those in a
    checkpoint from which the script goes on stay local: so its loop counts on.
    """
    found: dict[tuple[cst.CSTNode, Any], None] = {}
    for node, values in run.seen.items():
        summed = any(
            v.place.kind is Kind.SAME and v.reduced and not run.counters.issuperset(keys_of(v)) for v in values
        )
        if summed or beside_counts(run, node) or any(v.place == MIXED for v in values):
            found.update(dict.fromkeys(key for v in values if v.place.kind is Kind.COUNT for key in keys_of(v)))
    asked = {run.counted_at[key] for key in found if key in run.counted_at}
    for node, values in run.seen.items() if asked else ():
        asked -= {v.place.at for v in values if v.place.at in asked and not _counts_on(run.script, node)}
    return {key for key in found if run.counted_at.get(key) in asked} - _in_checkpoints(run)


def entries_beside_sums(run: Interpreter) -> set[cst.CSTNode]:
    """Return the counts in literals that are shown beside sums: ``for k, v in {"loss": s, "batches": n}.items(): ...``.

    They are made serial where they are written, unless anything reads them but to be shown.
    """
    marked = {mark.node for values in run.seen.values() for v in values for mark in _marks(v)}
    if not marked:
        return set()
    shown = {n for sinks in run.sinks.values() for sink in sinks for part in sink.shows for n in walk(part)}
    mixed: set[cst.CSTNode] = set()
    read: set[cst.CSTNode] = set()
    for node, values in run.seen.items():
        for value in values:
            held = {mark.node for mark in _marks(value)}
            boxes = [n for ref in value.refs if isinstance(ref, Obj) for n in walk(ref.site) if n in marked]
            if node in shown or _in_text(run.script, node):
                mixed |= held if value.place == MIXED or value.items else set()
                mixed |= {n for n in boxes if run.content(value) == MIXED}
            elif not isinstance(node, cst.Tuple) and not _is_bound(run.script, node):
                read |= held - {node}
                read.update(boxes if _handed_out(run, node) else ())
    return mixed - read


def _marks(value: Value) -> list[CountInLiteral]:
    inner = [mark for item in value.items or () for mark in _marks(item)]
    return [*inner, *(mark for mark in value.pending if isinstance(mark, CountInLiteral))]


def _is_bound(script: Script, node: cst.CSTNode) -> bool:
    """Tell whether ``node`` is a name that a loop binds: ``v`` of ``for k, v in rows``."""
    inner = node
    for up in script.above(node):
        if isinstance(up, (cst.For, cst.CompFor)):
            return up.target is inner
        if not isinstance(up, (cst.Tuple, cst.List, cst.Element)):
            return False
        inner = up
    return False


def _in_text(script: Script, node: cst.CSTNode) -> bool:
    return any(isinstance(up, cst.FormattedStringExpression) for up in script.above(node))


def _handed_out(run: Interpreter, node: cst.CSTNode) -> bool:
    """Tell whether ``node`` is handed to a function out of sight, which may count by what it holds."""
    arg = run.script.parents.get(node)
    call = run.script.parents.get(arg) if isinstance(arg, cst.Arg) else None
    if not isinstance(call, cst.Call):
        return False
    within = any(isinstance(ref, (Function, Bound, Class)) for v in run.seen.get(call.func, ()) for ref in v.refs)
    return not within and not run.script.name_of(call.func).startswith("builtins.")


def beside_counts(run: Interpreter, node: cst.CSTNode) -> bool:
    """Tell whether an expression is a count at one time and a serial number at another: ``for v in (steps, best)``."""
    values = run.seen.get(node, ()) if node in run.in_unrolled else ()
    if not any(v.place.kind in (Kind.COUNT, Kind.INDEX) and v.scalar for v in values):
        return False
    others = [v for v in values if not v.refs and v.items is None and not (v.pending and run.counters >= {*keys_of(v)})]
    return any(is_serial(v, True) for v in others)


def _in_checkpoints(run: Interpreter) -> set[tuple[cst.CSTNode, Any]]:
    """Return the counters that a checkpoint keeps, where the script loads any."""
    names = {call: run.script.name_of(call.func).rpartition(".")[2] for call in run.script.of(cst.Call)}
    if not any(name.startswith(_LOADS) for name in names.values()):
        return set()
    saved = [sink for sinks in run.sinks.values() for sink in sinks if names.get(sink.call) in _SAVES]
    shown = [value for sink in saved for part in sink.shows for node in walk(part) for value in run.seen.get(node, ())]
    return {key for value in shown for key in keys_of(value)}


def keys_of(value: Value) -> list[tuple[cst.CSTNode, Any]]:
    """Return the reductions that make ``value`` serial: each by its loop and what it names."""
    return [(made.loop, made.path.key) for made in value.pending if isinstance(made, Exit)]


def _counts_on(script: Script, node: cst.CSTNode) -> bool:
    """Tell whether ``node`` is read to count on alone: ``n += 1``, ``n = n + 1``."""
    up = script.parents.get(node)
    if isinstance(up, cst.BinaryOperation):
        assigned = script.parents.get(up)
        targets = assigned.targets if isinstance(assigned, cst.Assign) else ()
        return any(target.target.deep_equals(node) for target in targets)
    return isinstance(up, cst.AugAssign) and up.target is node
