"""Entries of dicts and lists, each a variable of its own: ``sums["loss"] += loss``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cached_property

import libcst as cst

from dlrun.port.program.dicts import pairs
from dlrun.port.program.flow import Flow
from dlrun.port.program.script import Binding, Script, added, dotted

_ANY = "*"


class Entries:
    """What the entries of one script's dicts and lists are bound to."""

    def __init__(self, script: Script) -> None:
        self.script = script

    def all(self, name: cst.Name) -> list[Binding]:
        """Return what gives the entries of the dict ``name`` their values, beginning with the dict."""
        return self._bound(name, self._place(name), _ANY)

    def grow(self, name: cst.CSTNode, are: Callable[[cst.BaseExpression], bool]) -> bool:
        """Tell whether ``name`` is a dict that begins empty, to whose entries what ``are`` accepts is added."""
        bindings = self.all(name) if isinstance(name, cst.Name) else []
        adds = [b for b in bindings if added(b.node) is not None]
        begun = [b for b in bindings if added(b.node) is None]
        return (
            bool(adds and begun)
            and all(is_empty(b.value) and not b.path for b in begun)
            and all(b.value is not None and are(b.value) for b in adds)
        )

    def _bound(self, name: cst.Name | cst.Attribute, place: tuple[int, str] | None, key: str) -> list[Binding]:
        made = self.script.bindings_of(name) or self.script.kept_bindings(name)
        begun = [replace(b, value=_begun(b.value, key)) if b.how == "assign" and not b.path else b for b in made]
        there = self._set.get(place, {})
        return begun + [b for other, found in there.items() if key in (other, _ANY) or other == _ANY for b in found]

    @cached_property
    def _set(self) -> dict[tuple[int, str] | None, dict[str, list[Binding]]]:
        found: dict[tuple[int, str] | None, dict[str, list[Binding]]] = {}
        nodes: list[cst.AugAssign | cst.Assign] = [*self.script.of(cst.AugAssign), *self.script.of(cst.Assign)]
        for node in nodes:
            for target in [t.target for t in node.targets] if isinstance(node, cst.Assign) else [node.target]:
                key = _key(target)
                place = self._place(target.value) if isinstance(target, cst.Subscript) else None
                if place is not None and key is not None:
                    there = found.setdefault(place, {})
                    grown = added(node)
                    value, path = (node.value, ()) if grown is None else (grown[1], ("part",))
                    there.setdefault(key, []).append(Binding(place[1], "assign", node, value, path))
        return found

    def _place(self, box: cst.CSTNode) -> tuple[int, str] | None:
        """Return what stands for the variable ``box``, or for the attribute ``self.box`` of a class."""
        if isinstance(box, cst.Name):
            return id(self.script.scopes[box].lookup(box.value)[1]), box.value
        kept = isinstance(box, cst.Attribute) and bool(self.script.kept_bindings(box))
        return (id(self.script.class_of(box)), box.attr.value) if kept else None  # type: ignore[attr-defined]


def _key(node: cst.CSTNode) -> str | None:
    """Return the key of ``sums["loss"]`` or ``sums[0]``, as text; of ``sums[k]``, which may be each of them, ``*``."""
    match node:
        case cst.Subscript(slice=[cst.SubscriptElement(slice=cst.Index(value=cst.SimpleString() as key))]):
            return repr(key.evaluated_value)
        case cst.Subscript(slice=[cst.SubscriptElement(slice=cst.Index(value=cst.Integer(value=number)))]):
            return number
        case cst.Subscript(slice=[cst.SubscriptElement(slice=cst.Index(value=cst.Name()))]):
            return _ANY
    return None


def _begun(value: cst.BaseExpression | None, key: str) -> cst.BaseExpression | None:
    """Return what is under ``key`` in a dict or a list that is written out; else ``value``."""
    for known, held in pairs(value) if value is not None else ():
        if isinstance(known, cst.SimpleString) and repr(known.evaluated_value) == key:
            return held
    match value:
        case cst.List(elements=elements) if key.isdigit() and int(key) < len(elements):
            return elements[int(key)].value
        case cst.DictComp(value=each):
            return each
    return value


def is_empty(made: cst.CSTNode | None) -> bool:
    """Tell whether ``made`` is an empty dict, written out."""
    dict_of = isinstance(made, cst.Call) and dotted(made.func) == "dict" and not made.args
    return dict_of or (isinstance(made, cst.Dict) and not made.elements)


def of_zeros(script: Script, made: cst.CSTNode) -> bool:
    """Tell whether ``made`` is a dict in which every entry begins at zero: ``Counter()``, ``defaultdict(float)``."""
    if not isinstance(made, cst.Call):
        return False
    name, given = script.name_of(made.func), [dotted(a.value) for a in made.args]
    counter = name == "collections.Counter" and not given
    return counter or (name == "collections.defaultdict" and given in (["int"], ["float"]))


def written(flow: Flow, box: cst.CSTNode, are: Callable[[cst.BaseExpression], bool]) -> bool:
    """Tell whether ``box`` is a dict or a list of what ``are`` accepts, written out, be it ``[0.0] * 10``."""
    made = [o.node for o in flow.origins(box)]
    held = [list(_written(m)) or [v for _, v in flow.keyworded(m)] for m in made if not of_zeros(flow.script, m)]
    return bool(made) and all(each and all(value is not None and are(value) for value in each) for each in held)


def _written(made: cst.CSTNode) -> Iterator[cst.BaseExpression | None]:
    """Yield the entries of ``made``; None for what is put in whole."""
    match made:
        case cst.BinaryOperation(left=cst.List() as box, operator=cst.Multiply()):
            yield from _written(box)
        case cst.List(elements=elements) | cst.Tuple(elements=elements):
            yield from (None if isinstance(e, cst.StarredElement) else e.value for e in elements)
        case cst.ListComp(elt=each) | cst.DictComp(value=each):
            yield each
        case _:
            yield from (None if key is None else value for key, value in pairs(made))
