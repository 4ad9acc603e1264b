"""What the run of a session fetches, and which part of it an entry of the result is the value of."""

from __future__ import annotations

from collections.abc import Collection, Iterator

import libcst as cst

from dlrun.port.program.flow import Flow
from dlrun.port.program.script import calls_method


def fetched(run: cst.Call) -> cst.BaseExpression | None:
    """Return what ``run`` of a session, or of one tensor, returns the value of."""
    if calls_method(run, "eval"):
        return run.func.value
    named = (a.value for a in run.args if a.keyword is not None and a.keyword.value == "fetches")
    return next(named, run.args[0].value if run.args else None)


def parts(value: cst.BaseExpression | None) -> list[cst.BaseExpression]:
    """Return the entries of a list, tuple or dict of what is fetched; else ``value`` alone."""
    if isinstance(value, cst.Dict):
        return [e.value for e in value.elements if isinstance(e, cst.DictElement)]
    if isinstance(value, (cst.List, cst.Tuple)):
        return [e.value for e in value.elements]
    return [value] if value is not None else []


def entry(flow: Flow, run: cst.Call, key: int | cst.BaseExpression) -> list[cst.BaseExpression]:
    """Return what the entry ``key`` of the result of ``run`` is the value of, one for each box it may fetch.

    ``run(fetches)["loss"]`` after ``fetches = {"loss": loss, "train": train}``; none if one of the boxes has no such.
    """
    boxes = [o.node for value in (fetched(run),) if value is not None for o in flow.origins(value)]
    found = [list(_held(box, key))[:1] for box in boxes]
    return [value for values in found for value in values] if all(found) else []


def taken(flow: Flow, runs: Collection[cst.CSTNode], node: cst.Subscript) -> list[cst.BaseExpression] | None:
    """Return what ``node`` takes of the results of ``runs``, ``result["loss"]``; None where it is no entry of one."""
    index, made = node.slice[0].slice, [o.node for o in flow.origins(node.value)]
    of = [m for m in made if isinstance(m, cst.Call) and m in runs]
    if not of or len(of) < len(made) or not isinstance(index, cst.Index):
        return None
    found = [entry(flow, run, index.value) for run in of]
    return [value for values in found for value in values] if all(found) else []


def _held(box: cst.CSTNode, key: int | cst.BaseExpression) -> Iterator[cst.BaseExpression]:
    at = key.evaluated_value if isinstance(key, (cst.Integer, cst.SimpleString)) else key
    match box:
        case cst.Dict(elements=elements):
            yield from (
                e.value
                for e in elements
                if isinstance(e, cst.DictElement)
                and isinstance(e.key, cst.SimpleString)
                and e.key.evaluated_value == at
            )
        case cst.List(elements=elements) | cst.Tuple(elements=elements):
            yield from (e.value for e in elements[at : at + 1]) if isinstance(at, int) else ()
