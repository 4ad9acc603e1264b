"""Runs of a session: what each returns is placed as what it fetches of the graph."""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from dlrun.port.facts.numbers.fetches import fetched
from dlrun.port.placement.store import Obj
from dlrun.port.placement.values import ANY, ENTRY, SAME, Kind, Value

if TYPE_CHECKING:
    from dlrun.port.placement.interpret.calls import Calls


def ran(run: Calls, node: cst.Call) -> Value:
    """Return what a run of a session returns that computes with this rank's samples: ``sess.run([train, loss], feed)``.

    What is fetched was built of placeholders and of pipelines, which stand for an iteration's samples.
    """
    wanted = fetched(node)
    return _of(run, node, wanted, run.eval(wanted)) if wanted is not None else ANY


def _of(run: Calls, node: cst.Call, wanted: cst.BaseExpression, value: Value) -> Value:
    if value.items is not None:
        parts = wanted.elements if isinstance(wanted, (cst.Tuple, cst.List)) else ()
        beside = [e.value for e in parts] if len(parts) == len(value.items) else [wanted] * len(value.items)
        return Value(items=tuple(_of(run, node, w, v) for w, v in zip(beside, value.items, strict=True)))
    box = next((r for r in value.refs if isinstance(r, Obj) and r.kind in ("list", "dict")), None)
    if box is None or len(value.refs) > 1:
        return _number(run, wanted, value)
    fields = [(k, v) for k, v in run.fields(box) if k.startswith("[") and v.name != "empty"]
    known = all(k[1:-1].isdigit() for k, _ in fields)
    if box.kind == "list" and known:
        beside = [e.value for e in wanted.elements] if isinstance(wanted, cst.List) else [wanted] * len(fields)
        return Value(items=tuple(_of(run, node, w, v) for w, (_, v) in zip(beside, fields, strict=False)))
    made = run.new(box.kind, node, "fetched")
    for key, held in fields:
        run.write((made, key), _number(run, wanted, held))
    return Value(refs=frozenset([made]))


def _number(run: Calls, wanted: cst.BaseExpression, value: Value) -> Value:
    place = run.content(value)
    local = place.kind is Kind.ENTRY or run.shards.local(wanted)
    scalar = value.scalar or run.shards.number(wanted) or None
    return Value((place if place.kind is Kind.ENTRY else ENTRY) if local else SAME, scalar=scalar)
