"""What containers keep, what goes through them, and what in-place methods make of them."""

from __future__ import annotations

from dataclasses import replace
from itertools import zip_longest
from typing import Any

import libcst as cst

from dlrun.port.placement import rules
from dlrun.port.placement.interpret import parts, samples, whole
from dlrun.port.placement.interpret.iteration_numbers import IterationNumbers
from dlrun.port.placement.interpret.machine import CountInLiteral
from dlrun.port.placement.rules import Row
from dlrun.port.placement.store import (
    CONTENT,
    GROWN,
    OTHERS,
    REST,
    VIEW,
    Class,
    Function,
    Method,
    Obj,
    key_of,
    length_of,
    of_key,
)
from dlrun.port.placement.values import (
    ANY,
    COUNT,
    EMPTY,
    ENTRY,
    FROM,
    MIX,
    NOTHING,
    SAME,
    TUPLES,
    WRAPPED,
    Kind,
    Place,
    Value,
    combine,
    constant,
    join,
    joined,
    of_clock,
    one_more,
    trimmed,
    unknown,
)
from dlrun.port.program.script import calls_method, walk

CONTAINERS = ("list", "dict", "set", "deque", "generator")


class Containers(IterationNumbers):
    """Evaluates what is done with containers."""

    def iterate(self, node: cst.BaseExpression, value: Value) -> Value:
        """Return what one iteration over ``value`` gets; of a shard a sample of it or the number of the iteration."""
        if value.place.kind is Kind.SHARD:
            if value.items is not None:
                return value.items[0] if value.name == "drawn" else Value(items=value.items)
            return Value(ENTRY)
        if value.items is not None and value.name == "parallel":
            got = Value(items=value.items)
            return samples.numbered(self, node, got) if self.shards.parts and self.loop is not None else got
        dicts = [ref for ref in value.refs if isinstance(ref, Obj) and ref.kind == "dict"]
        keys = dicts and len(dicts) == len(value.refs)
        entry = joined(map(self._keys, dicts)) if keys else self.entries(value)
        if self.shards.parts and self.loop is not None:
            entry = samples.numbered(self, node, entry)
        return of_clock(entry) if value.place.kind is Kind.CLOCK else entry

    def numbered(self, value: Value, entry: Value, node: cst.CSTNode, starts: Value | None = None) -> Value:
        """Return what ``enumerate``, at ``node``, makes of an iterable whose entries are ``entry``."""
        shard = value.place.kind is Kind.SHARD
        if shard:
            return self.parallel((self.number_from(starts, node), entry), True)
        first = starts.const if starts is not None and starts.const is not NOTHING else 0
        number = Value(SAME, scalar=True, name=f"{FROM}{first}")  # the loop may turn out to go through a share
        return replace(self.parallel((number, entry), False), refs=value.refs)

    def number_from(self, starts: Value | None, node: cst.CSTNode) -> Value:
        """Return the number of an iteration, counted from ``starts``, else from 0."""
        first = starts.const if starts is not None else 0
        if self.shards.parts or first in (0, NOTHING) or not isinstance(first, int):
            return Value(self.index, scalar=True)
        if first != 1:
            return Value(unknown(node, f"it counts iterations from {first}"), scalar=True)
        return Value(self.updates, scalar=True, name=f"{FROM}1")

    def parallel(self, entries: tuple[Value, ...], shard: bool) -> Value:
        """Return an iterable each of whose iterations gets a tuple."""
        return Value(Place(Kind.SHARD, adds=WRAPPED) if shard else SAME, items=entries, name="parallel")

    # -- methods of containers -------------------------------------------------------------------------------------

    def method_of(self, row: Row, receiver: Value, args: list[Value], node: cst.Call, name: str) -> Value | None:
        """Return what a method with a row does to the containers of ``receiver``; None where it has none."""
        owners = [ref for ref in receiver.refs if isinstance(ref, Obj)]
        if row in (Row.APPEND, Row.EXTEND, Row.PUT, Row.CLEAR, Row.GET, Row.ENTRIES, Row.PAIRED, Row.KEYS):
            owners = [ref for ref in owners if ref.kind in CONTAINERS]
            if not owners:
                return None
        results = [found for ref in owners if (found := self._method(row, ref, args, node, name)) is not None]
        return joined(results) if results else None

    def _method(self, row: Row, ref: Obj, args: list[Value], node: cst.Call, name: str) -> Value | None:
        match row:
            case Row.APPEND:
                given = node.args[-1].value if node.args else None
                if self.loop is None and args:
                    args = [*args[:-1], self.row(given, args[-1])]
                elif args and self.shards.parts and not self.shards.episodes:
                    args = [*args[:-1], self.row_of_parts(given, args[-1])]
                    if ref.kind == "set" and given is not None:
                        args = [self.key_of_parts(given, args[-1])]
                elif args:
                    args = [*args[:-1], self.row_of_iteration(given, args[-1])]
                    self.key_of_iteration(node.func.value if isinstance(node.func, cst.Attribute) else None)
                self.grow(ref, self.at_cadence(given, args[-1]) if args else ANY)
                if name in ("insert", "appendleft"):
                    self._in_front(ref)
                return ANY
            case Row.EXTEND:
                self._extend(ref, args, node)
                return ANY
            case Row.CLEAR:
                self.clear(ref)
                return ANY
            case Row.PUT:
                if args and node.args[0].keyword is None:
                    args = [self.key_of_parts(node.args[0].value, args[0]), *args[1:]]
                return self.set_default(ref, args, node)
            case Row.GET:
                if args and ref.kind == "dict" and node.args[0].keyword is None:
                    args = [self.key_of_parts(node.args[0].value, args[0]), *args[1:]]
                if ref.kind == "dict" and len(args) > 1 and args[1].refs and self._is_put_back(node):
                    return self.set_default(ref, args, node)
                return self._get(ref, args, name)
            case Row.ENTRIES:
                return self._view(ref, self.entries(Value(refs=frozenset([ref]))), node)
            case Row.PAIRED:
                held = self.entries(Value(refs=frozenset([ref]))).place
                ordered = name == "most_common" and self.loop is not None and held.kind is Kind.RUN
                return Value(MIX) if ordered else self._paired(ref, node)  # each rank has an order of its own
            case Row.KEYS:
                return self._view(ref, self._keys(ref), node)
        return None

    def _in_front(self, ref: Obj) -> None:
        """Note that a list has got an entry that is not its last: those of all ranks are not gathered in that order."""
        held = (self.state or {}).get((ref, GROWN))
        if held is not None and held.place.kind is Kind.RUN and "fires" not in held.place.adds:
            self.write((ref, GROWN), replace(held, place=replace(held.place, adds=held.place.adds | {"some"})))

    def row(self, node: cst.BaseExpression | None, entry: Value) -> Value:
        """Return what is kept for later: a count, or a row with the counts in it, beside others, as the serial ones."""
        if node is not None and self._counts(node, entry):
            return self.restore(node, entry)
        node = node and self.made_here(node, entry)
        held = self._literal(node, entry)
        counts = [(key, each, v) for key, each, v in held if self._counts(each, v)]
        spread = isinstance(node, cst.Dict) and any(isinstance(e, cst.StarredDictElement) for e in node.elements)
        bent = any(v.place.at == "bent" for _, _, v in counts)
        if len(counts) == len(held) and not spread and not bent:
            return entry
        return self._rewritten(entry, {key: self.restore(each, v) for key, each, v in counts})

    def row_of_iteration(self, node: cst.BaseExpression | None, entry: Value, lengths: bool = True) -> Value:
        """Return a row that each iteration keeps, with the numbers in it as those of the serial iteration.

        ``lengths`` tells whether numbers of iterations alone, ``len(loader)``, become serial, too.
        """
        within = self.loop is None or self.loop.inner or self.playing
        if node is None or within or self.cadenced or self.shards.parts:
            return entry
        held = self._literal(self.made_here(node, entry), entry)
        if not held:
            return self.as_entry(node, entry, lengths)
        return self._rewritten(entry, {key: self.row_of_iteration(each, v, lengths) for key, each, v in held})

    def key_of_iteration(self, box: cst.BaseExpression | None) -> None:
        """Let what an iteration adds to go by its serial number: ``sums[i % 3] += x``, ``groups[i % 3].append(x)``.

        Not by the number alone: it may ask for a place in what is as long as a shard.
        """
        for each in box.slice if isinstance(box, cst.Subscript) and self.loop is not None else ():
            key = each.slice.value if isinstance(each.slice, cst.Index) else None
            if isinstance(key, cst.BinaryOperation) and isinstance(key.operator, (cst.Modulo, cst.FloorDivide)):
                self.row_of_iteration(key, self.looked_at(key), False)

    def row_of_parts(self, node: cst.BaseExpression | None, entry: Value) -> Value:
        """Return a row that each iteration keeps, with the numbers of this rank's part as those of the iteration.

        What is no single number is marked: all ranks' rows together are n times as many as the serial script's.
        """
        if entry.scalar and self.content(entry).kind is not Kind.ENTRY and self._differs(entry):
            return self.force(node, entry)
        fields = [(each, self.looked_at(each)) for each in self._written_in(node)] if entry.texts and node else []
        if fields:
            forced = [self.force(each, v) if v.scalar and self._differs(v) else v for each, v in fields]
            return replace(entry, place=combine(map(self.content, forced)))
        if self._is_array_of_numbers(node):
            return replace(entry, place=Place(Kind.ENTRY, adds=frozenset({"row"})))
        held = [(key, each, v) for key, each, v in self._literal(node, entry) if self._differs(v)]
        numbers = {key: self.force(each, v) for key, each, v in held if v.scalar}
        entry = self._rewritten(entry, numbers)
        kinds = (*CONTAINERS, "instance")
        if entry.items is None and not any(isinstance(r, Obj) and r.kind in kinds for r in entry.refs):
            return entry
        whole = self.content(entry).kind is not Kind.ENTRY
        return entry if whole else replace(entry, place=Place(Kind.ENTRY, adds=frozenset({"row"})))

    def key_of_parts(self, node: cst.BaseExpression, key: Value) -> Value:
        """Return a key, or what a set holds once: of a number that adds up over the parts that of the iteration."""
        adds_up = key.scalar and self.content(key) == parts.SUMMED and not key.refs
        return self.force(node, key) if adds_up and self.shards.parts else key

    def _is_array_of_numbers(self, node: cst.BaseExpression | None) -> bool:
        """Tell whether ``node`` makes an array of numbers of this rank's part: ``torch.tensor([loss, hits])``."""
        given = node.args[0].value if isinstance(node, cst.Call) and node.args else None
        if not isinstance(given, (cst.List, cst.Tuple)) or not isinstance(node, cst.Call):
            return False
        made = rules.of_function(self.script.name_of(node.func)) in (Row.KEEPS, Row.JOIN)
        values = [self.seen_last(element.value) for element in given.elements]
        return made and any(map(self._differs, values)) and all(value.scalar for value in values)

    def _differs(self, number: Value) -> bool:
        """Tell whether a number is made of this rank's parts, of one iteration or of those so far."""
        place = self.content(number)
        return place.kind is Kind.ENTRY or (place.kind in (Kind.RUN, Kind.RATIO) and not place.counts)

    def _literal(self, node: cst.BaseExpression | None, entry: Value) -> list[tuple[Any, cst.BaseExpression, Value]]:
        """Return what a literal tuple, list or dict, or ``dict(loss=x)``, holds: key, expression, value."""
        if isinstance(node, cst.Tuple):
            items = entry.items or ()
            return [(i, e.value, v) for i, (e, v) in enumerate(zip(node.elements, items, strict=False))]
        named: list[tuple[str | None, cst.BaseExpression]] = []
        if isinstance(node, cst.Dict):
            pairs = [e for e in node.elements if isinstance(e, cst.DictElement)]
            named = [(key_of(self.seen_last(e.key).const), e.value) for e in pairs]
        elif isinstance(node, cst.List):
            named = [(f"[{i}]", e.value) for i, e in enumerate(node.elements)]
        elif isinstance(node, cst.Call):
            named = [(key_of(a.keyword.value), a.value) for a in node.args if a.keyword is not None]
        made = next(iter(entry.refs), None)
        if isinstance(node, cst.Call) and isinstance(made, Obj) and len(entry.refs) == 1 and made.cls is not None:
            return self._fields_given(node, made)
        if not isinstance(made, Obj) or len(entry.refs) != 1 or made.kind not in ("dict", "list") or made.cls:
            return []
        state = self.state or {}
        return [(key, each, state[made, key]) for key, each in named if key and (made, key) in state]

    def _fields_given(self, node: cst.Call, made: Obj) -> list[tuple[Any, cst.BaseExpression, Value]]:
        """Return what an object without an ``__init__`` of its own was given: name, expression, value of each field."""
        if made.kind != "instance" or self.member(made.cls, "__init__") is not None or any(a.star for a in node.args):
            return []
        fields = dict(self.fields(made))
        names = [a.keyword.value if a.keyword is not None else name for a, name in zip(node.args, fields, strict=False)]
        given = [(name, a.value) for name, a in zip(names, node.args, strict=False) if name in fields]
        return [(name, each, fields[name]) for name, each in given]

    def member(self, cls: Class, name: str, after: Class | None = None) -> Value | None:
        """Return what a class has under ``name``; see ``classes``."""
        raise NotImplementedError

    def _rewritten(self, entry: Value, values: dict[Any, Value]) -> Value:
        """Return a literal with other values under some keys."""
        if entry.items is not None:
            return replace(entry, items=tuple(values.get(i, v) for i, v in enumerate(entry.items)))
        for key, value in values.items():
            self.write((next(iter(entry.refs)), key), value)
        return entry

    def entry_made(self, node: cst.BaseExpression, value: Value) -> Value:
        """Return an entry of a literal: a count is marked, or made serial where the run before has met it so."""
        if self.loop is not None and self.counts_at_cadence(node, value) and self._is_handed(node):
            return self.restore(node, value)
        if self.loop is not None or not self._counts(node, value):
            return value
        if node in self.serial_entries:
            return self.restore(node, value)
        return replace(value, pending=value.pending | {CountInLiteral(node)})

    def _is_handed(self, entry: cst.BaseExpression) -> bool:
        """Tell whether a function of the program gets the dict that has ``entry``: ``show({"step": step})``."""
        written = self.script.parents[self.script.parents[entry]]
        call = self.script.parents.get(self.script.parents[written]) if isinstance(written, cst.Dict) else None
        if not isinstance(call, cst.Call):
            return False
        with self.unrecorded():
            return any(isinstance(ref, Function) for ref in self.eval(call.func).refs)

    def counts_at_cadence(self, node: cst.BaseExpression, value: Value) -> bool:
        """Tell whether ``value`` is the number of steps so far, where all ranks come as often as the serial script."""
        counts = value.place.kind is Kind.RUN and value.place.counts and "fires" not in value.place.adds
        return self.loop is not None and self.cadenced and counts and node not in self.shards.divided

    def _counts(self, node: cst.BaseExpression, value: Value) -> bool:
        """Tell whether ``value`` is a count that ``node`` has, which nothing makes serial by now."""
        counts = value.place.kind in (Kind.COUNT, Kind.INDEX) and value.place.at != "mixed" and bool(value.scalar)
        return counts and node not in self.shards.counted and node not in self.shards.divided

    def restore(self, node: cst.BaseExpression, value: Value) -> Value:
        """Return a count as the serial one, which ``node`` is made to be; one that is bent is made of serial counts."""
        counts = self._made_of(node) if value.place.at == "bent" else [node]
        if not counts:
            text = "it is computed from a count of this rank's iterations, and is no multiple of it"
            return value.at(unknown(node, text))
        if self.recording:
            self.restored.update(dict.fromkeys(counts))
        return Value(SAME, scalar=True, reduced=True)

    def _made_of(self, node: cst.BaseExpression) -> list[cst.BaseExpression]:
        """Return the counts that an expression is computed from; none where it reads what is bent already."""
        value = self.looked_at(node)
        if value.place.at != "bent":
            return [node] if self._counts(node, value) or value.place.counts else []
        inner = {cst.BinaryOperation: ("left", "right"), cst.UnaryOperation: ("expression",)}.get(type(node), ())
        sides = [getattr(node, side) for side in inner]
        if isinstance(node, cst.Call) and self.script.name_of(node.func).startswith(("builtins.", "math.", "numpy.")):
            sides = [arg.value for arg in node.args]
        found = [self._made_of(side) for side in sides]
        bent = [made for side, made in zip(sides, found, strict=True) if self.looked_at(side).place.at == "bent"]
        return [count for made in found for count in made] if all(bent) else []

    def _view(self, ref: Obj, entry: Value, node: Any) -> Value:
        made = self.new("list", node, VIEW, name=VIEW)
        fields = [(k, v) for k, v in self.fields(ref) if k.startswith("[") and v.name != "empty"]
        if ref.kind == "dict" and all(k not in (REST, GROWN) for k, _ in fields):
            for i, (key, value) in enumerate(fields):
                name = of_key(key)
                shown = {"keys": name, "items": Value(items=(name, value))}.get(node.func.attr.value, value)
                self.write((made, f"[{i}]"), shown)
            return Value(refs=frozenset([made]))
        self.write((made, REST), entry)
        return Value(refs=frozenset([made]))

    def known_keys(self, ref: Obj) -> list[Value] | None:
        """Return the keys of a dict, if all are known, in order."""
        fields = [k for k, v in self.fields(ref) if k.startswith("[") and v.name != "empty"]
        if any(k in (REST, GROWN) for k in fields):
            return None
        return [of_key(key) for key in fields]

    def _keys(self, ref: Obj) -> Value:
        return Value(self.keys_in(ref))

    def keys_in(self, ref: Obj) -> Place:
        """Return the placement of a dict's keys: where iterations set some that are not known, of this rank's."""
        self.note_asked(ref)
        rest = [v for k in (REST, GROWN) if (v := (self.state or {}).get((ref, k))) is not None]
        self.use(*rest)  # its keys are those of all ranks where it is made serial
        lost = [v.place for v in rest if v.place.kind is Kind.UNKNOWN]
        if lost or ref in self.keyed_behind:
            return lost[0] if lost else self.keyed_behind[ref]
        return ENTRY if ref in self.keyed_locally or any(v.place.kind is Kind.RUN for v in rest) else SAME

    def _paired(self, ref: Obj, node: cst.CSTNode) -> Value:
        entry = Value(items=(self._keys(ref), self.entries(Value(refs=frozenset([ref])))))
        return self._view(ref, entry, node)

    def grow(self, ref: Obj, entry: Value) -> None:
        """Put one entry more into ``ref``: what an iteration over a shard adds makes it grow."""
        at = (ref, GROWN)
        known = (self.state or {}).get(at)
        self.paced[ref] = self.cadenced and self.paced.get(ref, True)
        if known is not None and known.place.kind is Kind.RUN:
            fires = entry.name == "fires"
            adds = known.place.adds | {"fires"}
            inner = self.content(entry) if not entry.refs else self._inner(entry)
            fold = self._fold_of_row(entry)
            place = (
                Place(Kind.RUN, known.place.at, adds)
                if fires
                else replace(known.place, adds=known.place.adds | {fold}, counts=False)
                if fold
                else self.grows(known.place, inner, entry.scalar)
            )
            place = self.in_some_order(place, ref)
            rows = [r for r in entry.refs if isinstance(r, Obj) and r.kind in ("dict", "list")]
            held = [entry, *(entry.items or ()), *(v for row in rows for _, v in self.fields(row))]
            numbers = [v.place for v in held if v.scalar and v.name != "size"]
            counts = any(p.kind in (Kind.COUNT, Kind.INDEX) or p.counts for p in numbers)
            if counts and not fires and not self.shards.parts:
                place = replace(place, adds=place.adds | {"run"})  # the numbers of other iterations
            row, other = entry.items or (), self.last_row.get(ref)
            alike = other is None or len(other) == len(row)
            self.last_row[ref] = tuple(map(join, row, other or row)) if alike else ()
            self.write(at, Value(place, refs=known.refs | entry.refs, scalar=one_more(known, entry)))
        elif known is None or known.name == "empty":
            self.write(at, entry)
        else:
            self.write(at, join(known, entry))

    def _fold_of_row(self, entry: Value) -> str:
        """Return how the ranks' rows of an iteration's numbers become one, where each takes a part of the batch.

        That is the fold of all its numbers, or "row", which none is; nothing of a row without any.
        """
        boxes = [r for r in entry.refs if isinstance(r, Obj) and r.kind in ("dict", "list")]
        if not self.shards.parts or self.shards.episodes or not (boxes or entry.items):
            return ""
        held = [*(entry.items or ()), *(v for box in boxes for _, v in self.fields(box) if v.name != "empty")]
        local = [v for v in held if not v.place.uniform]
        if self.is_diverged and local and all(v.place == ENTRY for v in local):
            return "row" if any(v.name == samples.NTH for v in held) else "samples"  # a row of each sample
        if not any(v.scalar and v.place.kind is Kind.ENTRY for v in local):
            return ""
        folds = {
            parts.added(v.place, self.is_diverged) if v.scalar and v.place.kind is Kind.ENTRY else "row" for v in local
        }
        return folds.pop() if len(folds) == 1 else "row"

    def extend(self, ref: Obj, value: Value, node: cst.BaseExpression | None) -> None:
        """Put the entries of ``value`` into ``ref``: those of a literal are of the iteration, others of its samples."""
        entry = self.entries(self.row_of_iteration(node, value) if isinstance(node, (cst.List, cst.Tuple)) else value)
        if self.loop is not None and not isinstance(node, (cst.List, cst.Tuple)) and value.items is None:
            self.extended.add(ref)
        literal = isinstance(node, (cst.List, cst.Tuple)) or value.items is not None or not self.shards.parts
        self.grow(ref, entry if literal else replace(entry, scalar=None))

    def trim(self, value: Value) -> None:
        """Mark lists to which iterations over a shard add, and that lose entries again: a window, the best few."""
        for at in self.grown(value):
            held = (self.state or {})[at]
            if at[0].kind != "dict" and self.loop is not None and held.place.kind is Kind.RUN:
                self.write(at, replace(held, place=trimmed(held.place)))

    def _inner(self, entry: Value) -> Place:
        """Return the placement of an object that is put into a container in this iteration."""
        places = [v.place for v in self.held(entry)]
        return combine([entry.place, *places])

    def _extend(self, ref: Obj, args: list[Value], node: cst.Call) -> None:
        nodes = [given.value for given in node.args if given.keyword is None and not given.star]
        for arg, given in zip_longest(args, nodes if len(nodes) == len(args) else ()):
            if ref.kind == "dict":
                self._update(ref, arg)
            else:
                self.extend(ref, arg, given)
        for given in node.args:
            if given.keyword is not None and ref.name == "counter" and self.loop is not None:
                self._count_up(ref, key_of(given.keyword.value), self.eval(given.value))
            elif given.keyword is not None and ref.kind == "dict":
                self.put(ref, key_of(given.keyword.value), self.eval(given.value))

    def _update(self, ref: Obj, arg: Value) -> None:
        if ref.name == "counter" and self.loop is not None:
            named = [f for r in arg.refs if isinstance(r, Obj) and r.kind == "dict" for f in self.fields(r)]
            often = self.of_episode(parts.SUMMED) if self.shards.parts else ENTRY  # how often an entry occurs
            for key, value in [f for f in named if f[1].name != "empty"] or [(REST, Value(often, scalar=True))]:
                self._count_up(ref, None if key in (REST, GROWN) else key, value)
            return
        for source in arg.refs:
            if isinstance(source, Obj) and source.kind == "dict":
                for key, value in self.fields(source):
                    if value.name != "empty":
                        self._merge(ref, None if key in (REST, GROWN) else key, value)
                return
        entry = self.entries(arg)
        if ref.name != "counter" and entry.items is not None and len(entry.items) == 2:
            named = [f for r in arg.refs if isinstance(r, Obj) for f in self.fields(r)] or [(REST, entry)]
            for at, (first, second) in ((at, pair.items) for at, pair in named if pair.items):
                self._merge(ref, None if at in (REST, GROWN) else key_of(first.const), second)  # dict([("test", 0)])
            return
        self.put(ref, None, entry if ref.name != "counter" else Value(self.content(entry)))

    def _count_up(self, ref: Obj, key: str | None, value: Value) -> None:
        """Add ``value`` to what a Counter has under ``key``."""
        at = (ref, key) if key is not None and (ref, key) in (self.state or {}) else (ref, REST)
        held = (self.state or {}).get(at)
        if held is not None and held.place.kind is Kind.RUN:
            self.write(at, Value(self.grows(held.place, self.content(value), value.scalar), scalar=True))
        else:
            self.put(ref, key if at[1] != REST else None, Value(self.content(value), scalar=True))

    def _merge(self, ref: Obj, key: str | None, value: Value) -> None:
        """Put an entry of another dict into ``ref``; where its key is not known, as ``ref[key] = value`` does it."""
        if key is None and self.loop is not None and ref.name != "counter":
            self.store_entry(ref, None, Value(ENTRY), value, ref.site)
        else:
            self.put(ref, key, value)

    def store_entry(self, ref: Obj, key: str | None, index: Value, value: Value, target: cst.CSTNode) -> None:
        """Keep a value in a container; see ``statements``."""
        raise NotImplementedError

    def clear(self, ref: Obj) -> None:
        """Empty ``ref``, or set it to zero."""
        for key in list(self.keys.get(ref, ())):
            if key.startswith("["):
                self.state.pop((ref, key), None) if self.state is not None else None
        if ref.kind == "foreign":
            self.write((ref, CONTENT), Value(zero=True))
        else:
            self.write((ref, REST if ref.kind == "dict" else GROWN), EMPTY)

    def set_default(self, ref: Obj, args: list[Value], node: cst.CSTNode) -> Value:
        """Return what a dict holds under a key, put there where it is not: ``setdefault(key, [])``."""
        key = key_of(args[0].const) if args else None
        self.note_key(ref, node, *args[:1])
        found = self.entry_in(ref, key, Value(refs=frozenset([ref])))
        if key is None and len(args) > 1 and self.loop is not None and self.are_zeros(args[1]):
            args = [args[0], Value(zero=True)]  # the array of a key is a sum as a number would be
            if self._is_changed(node):
                args[1] = args[1].at(unknown(node, "arrays of new keys are changed where no name of theirs stands"))
        if key is None and len(args) > 1 and args[1].zero and not args[1].refs and found.place.kind is Kind.RUN:
            return found if args[1].place == SAME else args[1]  # a sum, which begins at zero for a new key
        if len(args) > 1 and not (found.refs or found.items):
            made = self.kept_by_key(args[1], node, key)
            own = [r for r in made.refs if isinstance(r, Obj) and r.kind == "instance"]
            loop, place = self.loop, self.content(args[0])
            if own and loop is not None and (not place.uniform or len(self.diverged) > loop.outer):
                lost = unknown(node, "each rank makes it for keys of its own")
                for at in [(r, name) for r in own for name, held in self.fields(r) if not held.refs]:
                    self.write(at, Value(lost))
                    self.born[at] = Value(lost)
            held = join(made, found) if found is not ANY else made
            self.put(ref, key, held)
            return made if made.refs else held
        return found

    def note_key(self, ref: Obj, node: cst.CSTNode, *keys: Value) -> None:
        """Note that what is kept behind the loops in a dict goes by numbers of this rank's: others have other keys."""
        places = [self.content(key) for key in keys if self.loop is None and ref.kind == "dict"]
        for place in (p for p in places if not p.uniform and p.kind not in (Kind.CLOCK, Kind.SHARD)):
            lost = place if place.kind is Kind.UNKNOWN else unknown(node, "its keys are of this rank's samples")
            self.keyed_behind[ref] = lost

    def kept_by_key(self, given: Value, node: cst.CSTNode, key: str | None) -> Value:
        """Return what is kept for a key of a container or object that ``node`` makes: one for each, and the first."""
        own = next(iter(given.refs), None)
        if len(given.refs) != 1 or not isinstance(own, Obj):
            return given
        tag = f"kept{key or ''}"
        if own.kind == "instance" and self.script.inside(own.site, node):  # Meter()
            parts = [r for r in self.reachable([given]) if r is own or r.kind in CONTAINERS]
            return self.made_for(own, tag, {r: self.fields(r) for r in parts})
        if own.kind not in CONTAINERS:
            return given
        kept = self.new(own.kind, node, tag, name=own.name)
        for name, held in self.fields(own):
            self.write((kept, name), held)
            self.born[kept, name] = held
        return Value(refs=frozenset([kept]), zero=given.zero)

    def _is_changed(self, node: cst.CSTNode) -> bool:
        """Tell whether a line goes on with what ``setdefault()`` returns: ``d.setdefault(k, zeros)[i] += 1``."""
        return calls_method(node, "setdefault") and not isinstance(self.script.parents.get(node), cst.Expr)

    def are_zeros(self, value: Value) -> bool:
        """Tell whether a value is an array of zeros, that the program has made."""
        held = [(self.state or {}).get((r, CONTENT)) for r in value.refs if isinstance(r, Obj) and r.kind == "foreign"]
        return bool(held) and len(held) == len(value.refs) and all(h is not None and h.zero for h in held)

    def _is_put_back(self, node: cst.Call) -> bool:
        """Tell whether what ``row = d.get(key, {"n": 0})`` returns is kept under that key: ``d[key] = row``."""
        line = self.script.parents.get(node)
        name = line.targets[0].target if isinstance(line, cst.Assign) and len(line.targets) == 1 else None
        if not isinstance(name, cst.Name) or not isinstance(node.func, cst.Attribute):
            return False
        kept = [
            n for n in walk(self.script.function_of(node)) if isinstance(n, cst.Assign) and n.value.deep_equals(name)
        ]
        targets = [target.target for assigned in kept for target in assigned.targets]
        return any(
            isinstance(target, cst.Subscript)
            and target.value.deep_equals(node.func.value)
            and isinstance(index := target.slice[0].slice, cst.Index)
            and index.value.deep_equals(node.args[0].value)
            for target in targets
        )

    def _get(self, ref: Obj, args: list[Value], name: str) -> Value:
        if name in ("pop", "popleft") and ref.kind != "dict":
            self.trim(Value(refs=frozenset([ref])))
            return self.entries(Value(refs=frozenset([ref])))
        key = key_of(args[0].const) if args else None
        known = key is not None and (self.state or {}).get((ref, key)) is not None
        found = self.entry_in(ref, key, Value(refs=frozenset([ref])))
        if key is None and len(args) > 1 and args[1].items and all(v.zero and v.scalar for v in args[1].items):
            self.born[ref, REST] = args[1]  # n, hits = d.get(label, (0, 0)): what sums begin with
        return found if known or len(args) < 2 else join(found, args[1]) if found.place.kind is not Kind.RUN else found

    # -- what libraries' objects hold --------------------------------------------------------------------------------

    def in_place(self, row: Row, receiver: Value, args: list[Value], node: cst.Call, name: str) -> Value | None:
        """Carry out ``total.add_(x)``, ``hist.index_add_(...)``, ``kept.copy_(x)``; None where there is no object."""
        owners = [ref for ref in receiver.refs if isinstance(ref, Obj) and ref.kind == "foreign"]
        self.lose_shared(receiver, node)
        if not owners:
            return None
        given = self.content(args[0]) if len(args) == 1 else combine(self.content(a) for a in args)
        picked = row is Row.INDEX_ADD and not all(self.content(a).uniform for a in args[:-1])  # by what is of samples
        if picked and self.shards.parts and given in (ENTRY, parts.PICKED):
            given = self.of_episode(parts.SUMMED)  # a sum over the samples
        if node in self.shards.steps or self.trained.issuperset(owners):
            return receiver  # weights, by gradients that are those of all ranks
        for ref in owners:
            held = self.read((ref, CONTENT)) or ANY
            if row is Row.SETS and held.place.kind not in (Kind.SAME, Kind.ENTRY):
                return None  # a table that iterations fill
            if row is Row.SETS:
                self.write((ref, CONTENT), Value(combine([held.place, given])))
            elif row is Row.STORE:
                zero = all(a.zero or (bool(a.refs) and all(v.zero for v in self.held(a))) for a in args)
                number = len(args) == 1 and args[0].scalar
                self.write((ref, CONTENT), Value(given, zero=zero, scalar=number or None))
            else:
                self.write((ref, CONTENT), Value(self.added(held, given, node)))
        return Value(receiver.place, refs=receiver.refs)

    def added(self, held: Value, given: Place, node: cst.CSTNode) -> Place:
        """Return the placement of what ``given`` was added to in place."""
        if held.place.kind is Kind.RUN:
            grown = replace(self.grows(held.place, given), counts=held.place.counts and given.kind is Kind.SAME)
            return self.counted(grown) if self.is_diverged else grown
        return combine([held.place, given])

    def keep(self, receiver: Value, args: list[Value], node: cst.Call) -> bool:
        """Note that an object out of sight may keep what it is given; tell whether that makes it unknown."""
        given = combine(self.content(a) for a in args)
        if given.uniform or self.loop is None:
            return False
        owners = [ref for ref in receiver.refs if isinstance(ref, Obj) and ref.kind == "foreign"]
        for ref in owners:
            text = f"{self.script.code(node.func)}() may keep what each rank gives it"
            self.write((ref, CONTENT), Value(unknown(node, text)))
        return bool(owners)

    def make(self, row: Row, node: cst.Call, args: list[Value], keywords: dict[str, Value] | None = None) -> Value:
        """Return the container that a function makes."""
        kinds = {Row.LIST: "list", Row.SET: "set", Row.DICT: "dict", Row.COUNTER: "dict", Row.DEQUE: "deque"}
        space = self.script.name_of(node.func).endswith("Namespace")
        spread = [self.eval(arg.value) for arg in node.args if arg.star == "**"]
        if space and spread and not any(value.refs for value in spread):
            return Value(combine(value.place for value in spread))  # of a batch: an entry, as all in it
        if row is Row.LIST and len(args) == 1 and args[0].place.kind is Kind.SHARD and self._is_gone_through(node):
            return args[0]
        made = self.new(kinds[row], node, name="counter" if row is Row.COUNTER else "namespace" if space else "")
        self.note_key(made, node, *args)
        if row is Row.COUNTER:
            self._by_default(made, node, args)
        if row is Row.COUNTER and args and self.shards.parts and samples.copied(self, args[0], node, row):
            self.write((made, REST), Value(self.of_episode(parts.SUMMED), scalar=True))
            return Value(refs=frozenset([made]))
        if row in (Row.LIST, Row.SET, Row.DEQUE):
            for arg in args[:1]:
                copied = [at for at in self.grown(arg) if self.state is not None]
                if copied and self.state is not None:
                    held = self.state[copied[0]]
                    if self.script.name_of(node.func) == "builtins.sorted" and held.place.kind is Kind.RUN:
                        held = held.at(replace(held.place, adds=held.place.adds | {"ordered"}))
                    self.write((made, GROWN), held)
                elif arg.const is NOTHING:
                    if self.shards.parts and self.loop is not None:
                        self.samples_in[made] = samples.copied(self, arg, node, row)
                    keys = [r for r in arg.refs if isinstance(r, Obj) and r.kind == "dict"]
                    entries = self.iterate(node, arg) if keys or arg.name == "parallel" else self.entries(arg)
                    self.write((made, REST), entries)
        elif row is Row.DICT or keywords or (args and not args[0].refs and args[0].place.kind is not Kind.SAME):
            for arg in args:
                self._update(made, arg)
            written = {given.keyword.value: given.value for given in node.args if given.keyword is not None}
            for name, value in (keywords or {}).items():
                entry = self.entry_made(written[name], value) if name in written else value
                if space and name != OTHERS:
                    self.write((made, name), entry)
                else:
                    self.put(made, key_of(name) if name != OTHERS else None, entry)
        return Value(refs=frozenset([made]), zero=not args or row is Row.COUNTER)

    def _is_gone_through(self, node: cst.Call) -> bool:
        """Tell whether a loop goes through what ``list`` makes, and nothing else has it: ``for x in list(loader)``."""
        plain = self.script.name_of(node.func) in ("builtins.list", "builtins.tuple")
        up: cst.CSTNode = self.script.parents[node]
        while isinstance(up, (cst.Arg, cst.Call)):
            up = self.script.parents[up]
        return plain and isinstance(up, cst.For) and self.script.inside(node, up.iter)

    def _by_default(self, made: Obj, node: cst.Call, args: list[Value]) -> None:
        """Put what a defaultdict makes for a key that it lacks under its unknown keys."""
        called = self.script.name_of(node.args[0].value) if node.args else ""
        kinds = {"builtins.list": "list", "builtins.set": "set", "builtins.dict": "dict", "collections.Counter": "dict"}
        if called in kinds:
            entry = self.new(kinds[called], node, "entry", name="counter" if called.endswith("Counter") else "")
            self.write((made, REST), Value(refs=frozenset([entry]), zero=True))
        elif args and any(not isinstance(r, Obj) for r in args[0].refs):
            self.write((made, REST), self.call_value(args[0], [], {}, node))
        entry_now = (self.state or {}).get((made, REST), ANY)
        inner = self.reachable([entry_now])
        own = all(r.kind in ("list", "set", "deque", "instance") or r.name == "counter" for r in inner)
        own = own and len(entry_now.refs) == 1
        if inner and own and called != "builtins.dict":
            self.anew[made] = {r: self.fields(r) for r in inner}

    def _of_length(self, value: Value) -> Place:
        """Return the placement of a list itself, whatever its entries hold; of others that of all they hold."""
        refs = [ref for ref in value.refs if isinstance(ref, Obj)]
        if not refs or any(ref.kind not in ("list", "deque") for ref in refs):
            return self.content(value)
        held = [v for ref in refs for key in (GROWN, REST) if (v := (self.state or {}).get((ref, key))) is not None]
        return combine([value.place, *(v.place for v in held)])

    def call_value(self, callee: Value, args: list[Value], keywords: dict[str, Value], node: cst.Call) -> Value:
        """Call a value; see ``calls``."""
        raise NotImplementedError

    def length(self, value: Value) -> Value:
        """Return ``len(value)``: of a shard a count; of what this rank's iterations filled a sum over the ranks."""
        if value.place.kind is Kind.SHARD:
            return whole.length(value) if not self.shards.parts else Value(SAME, scalar=True, name="length")
        if grown := self.grown(value):
            held = (self.state or {})[grown[0]]
            alike = self.shards.parts and "samples" not in held.place.adds  # an entry for each iteration, on all ranks
            if alike and grown[0][0].kind == "set" and held.place.adds:
                return Value(
                    Place(Kind.RUN, held.place.at, frozenset({"bent"})), scalar=True
                )  # of what ranks differ in
            if alike or self.paced.get(grown[0][0]):
                return Value(scalar=True)
            if grown[0][0].kind == "set" and self.loop is not None:
                return Value(MIX, scalar=True)  # the ranks hold the same ones, too
            return Value(Place(Kind.RUN, held.place.at, held.place.adds), scalar=True)
        if value.items is not None and value.name != "parallel":
            return constant(len(value.items))
        if value.name == TUPLES:
            return Value(scalar=True)  # which of them, all ranks answer alike
        pending = frozenset(p for v in self.held(value) for p in v.pending)
        if self.recording:
            self.used.update(pending)
        place = self._of_length(value)
        if place.kind is Kind.UNKNOWN and "rows" in place.adds:
            return Value(COUNT, scalar=True)
        if place.kind is Kind.RUN and "joined" in place.adds:
            return Value(Place(Kind.RUN, place.at, frozenset({"entry"})), scalar=True)
        if (of_samples := samples.length(self, value)) is not None:
            return of_samples
        if place.kind is Kind.ENTRY and all(isinstance(ref, Method) for ref in value.refs):  # len(x), len(batch.x)
            return self.size_of(place)
        serial = self.loop is None and self.serial(value)
        filled = [ref for ref in value.refs if isinstance(ref, Obj) and ref.kind == "dict" and self.loop is not None]
        name = length_of(filled[0]) if len(filled) == len(value.refs) == 1 else ""
        for ref in filled:
            self.note_asked(ref)
        return Value(SAME if place.kind is not Kind.UNKNOWN else place, scalar=True, reduced=serial, name=name)
