"""Entries of dicts and lists, each a variable of its own: ``sums["loss"] += loss``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cached_property

import libcst as cst

from dlrun.port.facts.numbers.computed import in_turn
from dlrun.port.program.dicts import pairs
from dlrun.port.program.flow import Flow
from dlrun.port.program.script import Binding, Script, added, dotted

_ANY = "*"


class Entries:
    """What the entries of one script's dicts and lists are bound to."""

    def __init__(self, script: Script) -> None:
        self.script = script

    def around(self, name: cst.Name | cst.Attribute) -> cst.Subscript | None:
        """Return the entry of which ``name`` is the dict or list: ``sums["loss"]`` around ``sums``, ``self.sums``."""
        up = self.script.parents.get(name)
        return up if isinstance(up, cst.Subscript) and up.value is name and _key(up) is not None else None

    def bindings(self, name: cst.Name | cst.Attribute) -> list[Binding] | None:
        """Return what gives the entry around ``name`` its value, beginning with the dict; None where there is none."""
        entry = self.around(name)
        key = _key(entry) if entry is not None else None
        if key is None and isinstance(name, cst.Name) and (table := self._table(name)) is not None:
            name, key = table, _ANY
        place = self._place(name)
        if key is None or place is None:
            return None
        return self._bound(name, place, key)

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

    def numbers(self, name: cst.CSTNode, are: Callable[[cst.BaseExpression], bool]) -> bool:
        """Tell whether ``name`` is a dict filled with what ``are`` accepts, and not with sums that nothing divides."""
        made = self.script.bindings_of(name) if isinstance(name, cst.Name) else []
        there = self._set.get(self._place(name), {}) if made else {}
        begun = [
            value
            for b in made
            if b.value is not None and b.how == "assign" and not b.path
            for value in _all_begun(b.value)
        ]
        given = [b for found in there.values() for b in found]
        grown = {key for key, found in there.items() if any(added(b.node) for b in found)}
        means = {key for key, found in there.items() if any(_divides(b.node) for b in found)}
        return (
            bool(made and given)
            and len(begun) >= len(made)
            and all(map(are, begun))
            and all(b.value is not None and are(b.value) for b in given)
            and (grown <= means or _ANY in means)
        )

    def grown(self, name: cst.CSTNode) -> list[cst.CSTNode]:
        """Return what adds to the entries of the dict ``name``, of those that nothing divides."""
        known = isinstance(name, (cst.Name, cst.Attribute)) and (
            self.script.bindings_of(name) or self.script.kept_bindings(name)
        )
        there = self._set.get(self._place(name), {}) if known else {}
        means = {key for key, found in there.items() if any(_divides(b.node) for b in found)}
        sums = (found for key, found in there.items() if not {key, _ANY} & means)
        return [b.node for found in sums for b in found if added(b.node) is not None]

    def _table(self, name: cst.Name) -> cst.Name | None:
        """Return the dict of whose entries ``name`` is each in turn: ``for key, value in sums.items()``."""
        made = in_turn(self.script, name, self.script.bindings_of(name))
        match made[0].value if len(made) == 1 else None:
            case cst.Call(func=cst.Attribute(value=cst.Name() as table, attr=cst.Name("items" | "values" as part))):
                return table if made[0].path == (("each", 1) if part == "items" else ("each",)) else None
        return None

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


def _all_begun(value: cst.BaseExpression) -> list[cst.BaseExpression]:
    """Return the values with which a dict that is written out, or made by a comprehension, begins."""
    return [value.value] if isinstance(value, cst.DictComp) else [held for key, held in pairs(value) if key is not None]


def _divides(node: cst.CSTNode) -> bool:
    """Tell whether an entry is divided here: ``sums[k] /= n``, ``sums[k] = sums[k] / n``."""
    if isinstance(node, cst.AugAssign):
        return isinstance(node.operator, cst.DivideAssign)
    divides = isinstance(node, cst.Assign) and isinstance(node.value, cst.BinaryOperation)
    return divides and isinstance(node.value.operator, cst.Divide)  # type: ignore[attr-defined]


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


def holds_zeros(script: Script, made: cst.BaseExpression) -> bool:
    """Tell whether ``made`` is a list or dict of zeros: ``[0] * 10``, ``{"cat": 0, "dog": 0}``, ``Counter()``."""
    match made:
        case cst.List(elements=elements) | cst.Tuple(elements=elements):
            return bool(elements) and all(_is_zero(e.value) for e in elements)
        case cst.BinaryOperation(left=cst.List() as left, operator=cst.Multiply()):
            return holds_zeros(script, left)
        case cst.ListComp(elt=each) | cst.GeneratorExp(elt=each) | cst.DictComp(value=each):
            return _is_zero(each)
        case cst.Dict():
            return bool(made.elements) and all(_is_zero(e.value) for e in made.elements)
        case cst.Call(func=func, args=args):
            name, given = script.name_of(func), [a.value for a in args]
            if dotted(func) == "dict.fromkeys":
                return len(given) == 2 and _is_zero(given[1])
            made_of = name in ("builtins.list", "builtins.dict") and len(given) == 1
            return of_zeros(script, made) or (made_of and holds_zeros(script, given[0]))
    return False


def _is_zero(node: cst.BaseExpression) -> bool:
    return isinstance(node, (cst.Integer, cst.Float)) and node.evaluated_value == 0
