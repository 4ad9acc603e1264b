"""Runs of a session: what each returns is placed as what it fetches of the graph."""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from dlrun.port.facts.numbers.fetches import fetched
from dlrun.port.placement.store import CONTENT, Obj, key_of
from dlrun.port.placement.values import ANY, COUNT, ENTRY, SAME, Kind, Value, unknown
from dlrun.port.program.script import argument, dotted

if TYPE_CHECKING:
    from dlrun.port.placement.interpret.libraries import Libraries

_UPDATE = "update"
_UPDATES = ("assign", "assign_add", "assign_sub")
_SETS_BACK = ("local_variables_initializer", ".variables_initializer")


def ran(run: Libraries, node: cst.Call) -> Value:
    """Return what a run of a session returns that computes with this rank's samples: ``sess.run([train, loss], feed)``.

    What is fetched was built of placeholders and of pipelines, which stand for an iteration's samples.
    """
    wanted = fetched(node)
    if (held := kept(run, node)) is not None:
        return held
    for ref, place in run.updates_of_graph.items():
        run.write((ref, CONTENT), Value(place, scalar=True))
    return _of(run, node, wanted, run.eval(wanted)) if wanted is not None else ANY


def streaming(run: Libraries, node: cst.Call, name: str) -> Value:
    """Return the value and the update of a metric that keeps sums in variables of its own: ``tf.metrics.accuracy``."""
    made = run.new("foreign", node, name=name)
    run.write((made, CONTENT), Value(zero=True))
    return Value(items=(Value(refs=frozenset([made])), Value(refs=frozenset([made]), name=_UPDATE)))


def updated(run: Libraries, name: str, given: list[Value], node: cst.Call) -> Value | None:
    """Return what an update in the graph is that keeps what it computes of samples: ``tf.assign_add(n, tf.size(x))``.

    None of an update by what all ranks have, and of a variable that may be a parameter.
    """
    if not run.shards.runs or name not in _UPDATES or not given:
        return None
    variable, *computed = given
    refs = [r for r in variable.refs if isinstance(r, Obj) and r.kind == "foreign" and takes_no_gradient(r)]
    if not refs or all(run.content(value).kind is not Kind.ENTRY for value in computed):
        return None
    place = unknown(node, "the graph keeps it of this rank's samples, in a variable of its own")
    run.updates_of_graph.update(dict.fromkeys(refs, place))
    return Value(place, scalar=variable.scalar)


def takes_no_gradient(ref: Obj) -> bool:
    """Tell whether a variable takes no gradient: ``tf.Variable(0, trainable=False)``, or one of whole numbers."""
    call = ref.site if isinstance(ref.site, cst.Call) else None
    fixed = argument(call, "trainable") if call is not None else None
    kind = argument(call, "dtype") if call is not None else None
    begins = call.args[0].value if call is not None and call.args else None
    words = kind.raw_value if isinstance(kind, cst.SimpleString) else dotted(kind) if kind is not None else ""
    whole = words.rsplit(".", 1)[-1].startswith(("int", "uint")) or (kind is None and isinstance(begins, cst.Integer))
    return whole or (fixed is not None and dotted(fixed) == "False")


def kept(run: Libraries, node: cst.Call) -> Value | None:
    """Return what a run fetches that sets streaming metrics back, or is the value of one; None of any other."""
    wanted = fetched(node)
    value = run.eval(wanted) if wanted is not None else ANY
    refs = [r for r in value.refs if isinstance(r, Obj)]
    if any(r.name.endswith(_SETS_BACK) for r in refs):
        for at in [at for at in run.state or {} if isinstance(at[0], Obj) and _streams(at[0]) and at[1] == CONTENT]:
            run.write(at, Value(zero=True))
        return ANY
    if refs and all(_streams(r) or r in run.updates_of_graph for r in refs) and value.name != _UPDATE:
        return Value(run.content(value), scalar=True)
    return None


def of_all_ranks(run: Libraries, node: cst.Call) -> Value:
    """Return what a run returns of samples that all ranks have: the serial numbers, but for the updates so far."""
    wanted = fetched(node)

    def one(part: cst.BaseExpression) -> Value:
        if run.shards.counts_steps(part):
            return Value(run.updates, scalar=True)
        place = run.content(run.eval(part))
        return Value(place if place.kind is Kind.UNKNOWN else SAME, scalar=run.shards.number(part) or None)

    if isinstance(wanted, (cst.Tuple, cst.List)):
        return Value(items=tuple(one(e.value) for e in wanted.elements))
    if isinstance(wanted, cst.Dict) and (named := _entries(wanted)):
        made = run.new("dict", node, "fetched")
        for key, part in named.items():
            run.write((made, key), one(part))
        return Value(refs=frozenset([made]))
    counts = wanted is not None and run.shards.counts_steps(wanted)
    return Value(run.updates, scalar=True) if counts else Value(scalar=run.shards.number(node) or None)


def _streams(ref: Obj) -> bool:
    return ref.name.startswith("tensorflow.metrics.")


def _of(run: Libraries, node: cst.Call, wanted: cst.BaseExpression, value: Value) -> Value:
    if isinstance(wanted, cst.BinaryOperation) and isinstance(wanted.operator, cst.Add):  # [train_op] + losses
        sides = [_of(run, node, side, run.eval(side)) for side in (wanted.left, wanted.right)]
        if all(side.items is not None for side in sides):
            return Value(items=tuple(item for side in sides for item in side.items or ()))
        return Value(unknown(node, "which part of it is the value of what is not seen"))
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
    named = _entries(wanted)
    for key, held in fields:
        run.write((made, key), _number(run, named.get(key, wanted), held))
    return Value(refs=frozenset([made]))


def _entries(wanted: cst.BaseExpression) -> dict[str, cst.BaseExpression]:
    """Return what a run fetches in a dict, under the keys that are written there."""
    pairs = [e for e in wanted.elements if isinstance(e, cst.DictElement)] if isinstance(wanted, cst.Dict) else []
    named = ((key_of(e.key.evaluated_value), e.value) for e in pairs if isinstance(e.key, cst.SimpleString))
    return {key: value for key, value in named if key is not None}


def _number(run: Libraries, wanted: cst.BaseExpression, value: Value) -> Value:
    if run.shards.counts_steps(wanted):
        return Value(SAME if run.shards.parts else COUNT, scalar=True)
    place = run.content(value)
    streams = [r for r in value.refs if isinstance(r, Obj) and _streams(r)]
    if streams and value.name == _UPDATE and run.loop is not None:
        place = unknown(wanted, "it keeps sums over this rank's samples in variables of its own")
        for ref in streams:
            run.write((ref, CONTENT), Value(place))
    if streams:
        return Value(place, scalar=True)
    if place.kind is Kind.UNKNOWN:
        return Value(place, scalar=value.scalar)
    local = place.kind is Kind.ENTRY or run.shards.local(wanted)
    scalar = value.scalar or run.shards.number(wanted) or None
    return Value((place if place.kind is Kind.ENTRY else ENTRY) if local else SAME, scalar=scalar)
