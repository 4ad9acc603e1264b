"""Objects that hand out the batches of a stream one after the other: ``x, y = reader.next_batch()``."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from dlrun.port.facts import Feed
from dlrun.port.feeds.positions.positions import mentions
from dlrun.port.feeds.streams.cursors import axes_of, reshapes, root
from dlrun.port.feeds.streams.streams import LENGTHS, UncutError
from dlrun.port.program.flow import Flow
from dlrun.port.program.script import dotted, walk


def read(flow: Flow, loop: cst.For | cst.While) -> tuple[dict[cst.CSTNode, Feed], set[str]]:
    """Return the arrays that the readers called in ``loop`` cut into batches, and the names of the readers.

    Raises UncutError where a reader is not the only one of its class, or uses its data for more than batches.
    """
    found: dict[cst.CSTNode, Feed] = {}
    readers: set[str] = set()
    for call in (n for n in walk(loop.body) if isinstance(n, cst.Call) and isinstance(n.func, cst.Attribute)):
        for method in flow.targets(call):
            owner = flow.script.class_of(method)
            for array in _handed(method) if owner is not None else ():
                assert owner is not None and isinstance(call.func, cst.Attribute)
                if sum(flow.definition(c.func) is owner for c in flow.script.calls) != 1:
                    raise UncutError(call, f"there are several objects of the class {owner.name.value}")
                feed = _cut(flow, owner, array)
                readers.add(dotted(call.func.value))
                same = [f for f in found.values() if (f.node, f.names) == (feed.node, feed.names)]
                found.update({} if same else {array: feed})
    return found, readers


def _handed(method: cst.FunctionDef) -> Iterator[cst.Subscript]:
    """Yield what ``method`` picks, at a position that it moves on in an attribute: ``self.batches[self.at]``."""
    moved = {
        n.target.attr.value
        for n in walk(method.body)
        if isinstance(n, cst.AugAssign) and isinstance(n.target, cst.Attribute) and _own(n.target)
    }
    for n in walk(method.body):
        if isinstance(n, cst.Subscript) and _own(n.value) and any(mentions(e, moved) for e in n.slice):
            yield n


def _own(node: cst.CSTNode) -> bool:
    return isinstance(node, cst.Attribute) and dotted(node) == f"self.{node.attr.value}"


def _cut(flow: Flow, owner: cst.ClassDef, pick: cst.Subscript) -> Feed:
    """Return where the array behind ``pick`` is cut: where the method begins that makes batches of it."""
    script, name = flow.script, dotted(pick.value).removeprefix("self.")
    bindings = script.attributes.get((owner, name), [])
    methods = {script.function_of(b.node) for b in bindings}
    values = [b.written for b in bindings]
    if len(methods) != 1 or values[-1] is None:
        raise UncutError(pick, f"self.{name} is made in several places")
    (method,) = methods
    data = root(flow, values[-1])
    text, axis = dotted(data), 0
    place: cst.CSTNode = script.line_of(script.statement_of(bindings[-1].node))
    before = False
    if _own(data):
        inside = [
            b
            for b in script.attributes.get((owner, text.removeprefix("self.")), [])
            if script.function_of(b.node) is method and not _mentions(b.value, text)
        ]
        if inside:
            place = script.line_of(script.statement_of(inside[-1].node))
        else:
            place, before = method.body.body[0], True  # type: ignore[union-attr]
    elif isinstance(data, cst.Name):
        bound = [b for b in script.bindings_of(data) if not _mentions(b.value, text)]
        if any(b.how == "param" for b in bound):
            place, before = method.body.body[0], True  # type: ignore[union-attr]
        elif len(bound) == 1 and script.function_of(bound[0].node) is method:
            place = script.line_of(script.statement_of(bound[0].node))
        else:
            raise UncutError(data, f"nothing shows where {text} is made")
    else:
        text = f"self.{name}"
        axis = next((k for k, e in enumerate(axes_of(pick)) if isinstance(e.slice, cst.Slice)), 0)
    _check(flow, method, text, script.order[place] if before else script.order[place] + 1)
    return Feed(place, "stretches", (text,), axis=axis, before=before)


def _mentions(value: cst.CSTNode | None, text: str) -> bool:
    names = (n for n in walk(value) if isinstance(n, (cst.Name, cst.Attribute))) if value is not None else ()
    return any(dotted(n) == text for n in names)


def _check(flow: Flow, method: cst.CSTNode, text: str, since: int) -> None:
    """Raise UncutError where ``method`` uses the data for anything but batches: a vocabulary needs all of them."""
    script = flow.script
    for n in walk(method):
        up = script.parents.get(n)
        if not isinstance(n, (cst.Name, cst.Attribute)) or dotted(n) != text or script.order[n] < since:
            continue
        if isinstance(up, cst.Attribute) and up.value is n:
            call = script.parents[up]
            fine = up.attr.value in LENGTHS or (isinstance(call, cst.Call) and reshapes(call))
        elif isinstance(up, cst.Arg):
            call = script.parents[up]
            fine = reshapes(call) or (isinstance(call, cst.Call) and script.name_of(call.func) == "builtins.len")
        else:
            fine = isinstance(up, (cst.Assign, cst.AssignTarget, cst.Element, cst.Subscript))
        if not fine:
            raise UncutError(n, f"{text} is used for more than batches, which needs all of it")
