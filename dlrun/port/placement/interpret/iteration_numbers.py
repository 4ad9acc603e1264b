"""Numbers of iterations that a loop over a shard keeps: made those of the serial iterations that have their batches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

import libcst as cst

from dlrun.port.placement.interpret.operators import Operators
from dlrun.port.placement.store import Frame, Location, Obj
from dlrun.port.placement.values import BY, ENTRY, FROM, INDEX, SAME, Kind, Value, combine, unknown
from dlrun.port.program.script import added, walk

_FORMS = ("int", "float", "round")
_TUPLES = ("collections.namedtuple", "typing.NamedTuple")
Numbers = dict[cst.BaseExpression, tuple[int, int | str] | None]  # from what each counts, and by; None of a length


class IterationNumbers(Operators):
    """Finds the counts of which a number is made that an iteration keeps: ``epoch * len(loader) + i``."""

    def as_entry(self, node: cst.BaseExpression, value: Value, lengths: bool = True) -> Value:
        """Return a number that an iteration keeps as that of its serial iteration, which ``node`` is made to be.

        Likewise the numbers in a text, or in a named tuple.
        """
        if (fields := list(self._written_in(node))) and not value.refs:
            held = [self.as_entry(each, self.looked_at(each)) for each in fields]
            return replace(value, place=combine(map(self.content, held)))
        if value.refs or value.items or self.content(value).kind is Kind.UNKNOWN:
            return value
        with self.unrecorded():
            found = self._numbers_in(node)
        alone = found is not None and all(first is None for first in found.values())
        if not found or (alone and not lengths):
            return value
        for each, first in found.items() if self.recording else ():
            known = self.iteration_numbers.setdefault(each, first)
            if known != first:
                return Value(unknown(each, "calls count from different numbers here"), scalar=value.scalar)
        alone = alone and self.content(value).uniform
        return Value(SAME if alone else ENTRY, scalar=value.scalar)

    def looked_at(self, node: cst.BaseExpression) -> Value:
        """Return what ``node`` is now, and record nothing of it."""
        with self.unrecorded():
            return self.eval(node)

    def _written_in(self, node: cst.BaseExpression) -> Iterator[cst.BaseExpression]:
        """Yield what a text, or a named tuple, is made of."""
        match node:
            case cst.FormattedString():
                yield from (p.expression for p in node.parts if isinstance(p, cst.FormattedStringExpression))
            case cst.BinaryOperation(left=cst.SimpleString(), operator=cst.Modulo(), right=cst.Tuple() as row):
                yield from (each.value for each in row.elements)
            case cst.BinaryOperation(left=cst.SimpleString(), operator=cst.Modulo()):
                yield node.right
            case cst.Call(func=cst.Attribute(value=cst.SimpleString(), attr=cst.Name("format"))):
                yield from (arg.value for arg in node.args)
            case cst.Call(func=cst.Name("str"), args=[only]):
                yield only.value
            case cst.Call(func=cst.Name()):
                made = [b.value for b in self.script.bindings_of(node.func)]
                if any(isinstance(m, cst.Call) and self.script.name_of(m.func) in _TUPLES for m in made):
                    yield from (arg.value for arg in node.args)

    def made_here(self, node: cst.BaseExpression, value: Value) -> cst.BaseExpression:
        """Return the literal that a name is bound to in this iteration, where it is a row that nothing reads.

        Behind loops over shards nothing else has had the row by then: it would have been made serial there.
        """
        ref = next(iter(value.refs), None)
        site = ref.site if isinstance(ref, Obj) and len(value.refs) == 1 else None
        around = self._around(node)
        if not isinstance(node, cst.Name) or not isinstance(site, (cst.Dict, cst.List)) or around is None:
            return node
        uses = [n for n in self.script.named(node.value) if self.script.inside(n, around)]
        read = [up for n in uses if isinstance(up := self.script.parents[n], cst.Subscript) and not self._is_target(up)]
        order = self.script.order
        had = [n for n in uses if order[site] < order[n] < order[node] and not self._gets(n)]
        return node if read or (had and self.loop is None) or not self.script.inside(site, around) else site

    def _gets(self, row: cst.Name) -> bool:
        """Tell whether a row is not read where it is named, but gets more: ``row["f1"] = f1``, ``row.update(m)``."""
        up = self.script.parents[row]
        call = self.script.parents.get(up) if isinstance(up, cst.Attribute) and up.attr.value == "update" else None
        return self._is_target(up) or (call is not None and isinstance(self.script.parents.get(call), cst.Expr))

    def as_key(self, target: cst.Subscript, owner: Value, index: Value) -> Value:
        """Return the number of an iteration under which a dict keeps something, as that of the serial iteration.

        Not where the loop reads of that dict: it would ask for numbers of its own.
        """
        loop, each = self.loop, [e.slice.value for e in target.slice if isinstance(e.slice, cst.Index)]
        dicts = all(isinstance(ref, Obj) and ref.kind == "dict" for ref in owner.refs)
        if not dicts or self.playing or loop is None or loop.inner:
            return index
        boxes = (n for n in self.script.of(cst.Subscript) if n.value.deep_equals(target.value))
        if any(not self._is_target(n) and self.script.inside(n, loop.node) for n in boxes):
            return index
        found = tuple(self.as_entry(part, self.looked_at(part)) for part in each)
        return replace(index, items=found, place=combine(map(self.content, found))) if len(found) > 1 else found[0]

    def _is_target(self, node: cst.CSTNode) -> bool:
        return isinstance(self.script.parents[node], cst.AssignTarget)

    def _numbers_in(self, node: cst.BaseExpression) -> Numbers | None:
        """Return the counts from which ``node`` is computed; None where one of them is no number of an iteration."""
        match node:
            case cst.BinaryOperation():
                return self._numbers_of((node.left, node.right))
            case cst.UnaryOperation():
                return self._numbers_in(node.expression)
            case cst.Call(func=cst.Name(name)) if name in _FORMS:
                return self._numbers_of(arg.value for arg in node.args)
            case cst.Call(func=cst.Attribute(value=number, attr=cst.Name("numpy" | "item")), args=[]):
                return self._numbers_in(number)
            case cst.BaseNumber():
                return {}
            case cst.Call(func=cst.Name("len")) | cst.Name() | cst.Attribute():
                value = self.eval(node)
                if value.place in (SAME, ENTRY):
                    return {}
                return self._number_in(node, value) if value.scalar else None
        names = [n for n in walk(node) if isinstance(n, (cst.Name, cst.Attribute)) and n in self.script.scopes]
        return {} if all(self.eval(n).place in (SAME, ENTRY) for n in names) else None

    def _numbers_of(self, nodes: Iterable[cst.BaseExpression]) -> Numbers | None:
        found: Numbers = {}
        for node in nodes:
            inner = self._numbers_in(node)
            if inner is None:
                return None
            found.update(inner)
        return found

    def _number_in(self, node: cst.BaseExpression, value: Value) -> Numbers | None:
        """Return what a count that is read counts from; None of what counts neither iterations nor a loop's."""
        place = value.place
        if place == INDEX:
            return {node: (0, 1)}
        if value.name.startswith(FROM):
            return {node: (int(value.name.removeprefix(FROM)), 1)}
        if value.name.startswith(BY):
            return {node: (0, value.name.removeprefix(BY))}
        if place.kind is Kind.COUNT and place.at is None and not self._is_set(node):
            return {node: None}
        begins = self.begins.get(place.at, {0}) if isinstance(place.at, tuple) else set()
        if place.kind is Kind.RUN and place.counts and place.adds <= {"same"} and len(begins) == 1:
            by = self._goes_up_by(place.at)
            return {node: (min(begins) + by * bool(place.adds), by)} if by else None
        return None

    def _sites(self, at: Location) -> list[cst.CSTNode]:
        """Return what adds to the name, or attribute, ``at`` in iterations of this loop."""
        loop = self.loop.node if self.loop is not None else None
        lines = (*self.script.of(cst.AugAssign), *self.script.of(cst.Assign))
        adding = [line for line in lines if (found := added(line)) is not None and self._is_at(found[0], at)]
        return [line for line in adding if self._around(line) in (loop, None)]

    def _is_at(self, target: cst.BaseExpression, at: Location) -> bool:
        """Tell whether ``target`` is the variable, or an attribute of the name, at ``at``."""
        if isinstance(target, cst.Name) and isinstance(at[0], Frame):
            scope = self.script.scope_of(target)
            return target.value == at[1] and scope is not None and scope.node is at[0].function
        return isinstance(target, cst.Attribute) and isinstance(at[0], Obj) and target.attr.value == at[1]

    def _around(self, node: cst.CSTNode) -> cst.CSTNode | None:
        """Return the innermost loop around ``node`` in its function."""
        for up in self.script.above(node):
            if isinstance(up, (cst.For, cst.While)):
                return up
            if isinstance(up, cst.FunctionDef):
                return up if self.loop is not None and up is self.loop.node else None
        return None

    def _goes_up_by(self, at: Location) -> int:
        """Return what an iteration adds to the count at ``at``; 0 where that is not written there."""
        sites = self._sites(at)
        by = added(sites[0]) if len(sites) == 1 else None
        return by[1].evaluated_value if by is not None and isinstance(by[1], cst.Integer) else 0

    def _is_set(self, node: cst.BaseExpression) -> bool:
        """Tell whether iterations of this loop set what ``node`` reads."""
        if isinstance(node, cst.Call):
            return False
        bound = [b.node for b in self.script.bindings_of(node) or self.script.kept_bindings(node)]
        inside = [n for n in bound if self.loop is not None and self.script.inside(n, self.loop.node)]
        return bool(inside) or not bound or any(added(n) is not None for n in bound)
