"""Expressions: names, literals, attributes, entries, comprehensions."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Any

import libcst as cst

from dlrun.port.placement.interpret import parts, samples, whole
from dlrun.port.placement.interpret.local_gradients import leaves_them
from dlrun.port.placement.interpret.machine import Machine, encloses
from dlrun.port.placement.store import CONTENT, GROWN, REST, Function, Obj, key_in, key_of, merge
from dlrun.port.placement.values import (
    ANY,
    BENT_COUNT,
    COUNT,
    ENTRY,
    NOTHING,
    SAME,
    UNIFORM,
    Kind,
    Place,
    Value,
    combine,
    constant,
    join,
    joined,
    one_more,
    power,
    trimmed,
    unknown,
)
from dlrun.port.program.script import dotted, names_in, walk


@lru_cache(maxsize=1 << 14)  # Python's parser reads each, and an iteration over a shard is run several times
def _literal(node: cst.Integer | cst.Float | cst.SimpleString) -> Value:
    """Return the value of a literal."""
    return constant(node.evaluated_value)


_NAMED = (cst.Name, cst.Attribute, cst.Tuple, cst.List)  # what may be evaluated twice
_PADS = ("padded_batch", "ragged_batch", "bucket_by_sequence_length", "pad_sequence")  # to a batch's longest sample
_HOLDS = (cst.DictComp, cst.ListComp, cst.Dict, cst.List)
GOES_THROUGH = "it goes through a share of the batches; what a for loop leaves is reduced behind it"


class Expressions(Machine):
    """Evaluates expressions; each method returns the value of one kind of node."""

    def note_key(self, ref: Obj, node: cst.CSTNode, *keys: Value) -> None:
        """Note the keys of what is kept in a dict; see ``containers``."""
        raise NotImplementedError

    def eval(self, node: cst.BaseExpression) -> Value:
        """Return what ``node`` is, and note it."""
        self.spend(node)
        self.updated = self.updated or node in self.shards.steps
        self.gradients.statement(node)
        method = getattr(self, f"_{type(node).__name__}", None)
        if self.state is None:
            return ANY
        value: Value = method(node) if method is not None else self._computed(node)
        if node in self.shards.made:
            value = whole.sharded(self, node, value)
        elif node in self.shards.lengths:
            value = Value(SAME if self.shards.parts else COUNT, scalar=True, name="length")
        elif node in self.shards.sampled and isinstance(node, cst.Call) and value.place.kind is Kind.SAME:
            value = Value(ENTRY)
        elif node in self.shards.divided:
            value = Value(COUNT, scalar=True, name="length")
        elif node in self.shards.gradients:
            value = Value(SAME)
        elif node in self.shards.unaveraged:
            value = Value(ENTRY)
        elif node in self.shards.annealed and value.pending and value.place.kind is Kind.SAME:
            self.left_serial.setdefault(node, True)  # what the loop before it has counted is reduced behind that
        elif node in self.shards.counted:
            self.left_serial[node] = False
            value = Value(SAME, scalar=True)
        elif node in self.shards.cut or node in self.shards.drawing:
            value = Value(ENTRY)
        elif node in self.shards.answers:
            state, number = Value(ENTRY), Value(ENTRY, scalar=True)
            several = self.shards.answers[node]
            value = Value(items=(state, *[number] * (several - 2), state)) if several > 1 else state
        elif node in self.shards.averaged and "spread" not in value.place.adds:
            value = Value(ENTRY, scalar=True)
        self.note(node, value)
        if node in self.shards.forced and value.place.kind is Kind.ENTRY:
            value = self.force(node, value)
        if self.recording and self.loop is not None and self.loop.whole is not None:
            self.within_whole.setdefault(node, {})[self.loop.whole] = None
        return value

    def call(self, node: cst.Call) -> Value:
        """Return what a call returns; see ``calls``."""
        raise NotImplementedError

    def attribute(self, owner: Value, name: str, node: cst.CSTNode) -> Value:
        """Return the attribute ``name`` of ``owner``; see ``classes``."""
        raise NotImplementedError

    def entry_by(self, owner: Value, index: Value, node: cst.CSTNode) -> Value | None:
        """Return what a ``__getitem__`` of the program returns; see ``protocols``."""
        raise NotImplementedError

    def iterated(self, value: Value, node: cst.CSTNode) -> Value:
        """Return what gives the entries of ``value``; see ``protocols``."""
        raise NotImplementedError

    def iterate(self, node: cst.BaseExpression, value: Value) -> Value:
        """Return what one iteration over ``value`` gets; see ``containers``."""
        raise NotImplementedError

    def key_of_parts(self, node: cst.BaseExpression, key: Value) -> Value:
        """Return a key as that of the iteration; see ``containers``."""
        raise NotImplementedError

    def row_of_iteration(self, node: cst.BaseExpression | None, entry: Value, lengths: bool = True) -> Value:
        """Return a row that each iteration keeps, with its numbers as the serial ones; see ``containers``."""
        raise NotImplementedError

    def assign(self, target: cst.BaseExpression, value: Value, source: cst.BaseExpression | None = None) -> None:
        """Bind ``target`` to ``value``; see ``statements``."""
        raise NotImplementedError

    def _computed(self, node: cst.BaseExpression) -> Value:
        """Return what an expression of any other kind is: computed from what is in it."""
        return ANY

    # -- literals and names --------------------------------------------------------------------------------------

    def _Integer(self, node: cst.Integer) -> Value:  # noqa: N802 - libcst's names
        return _literal(node)

    def _Float(self, node: cst.Float) -> Value:  # noqa: N802
        return _literal(node)

    def _SimpleString(self, node: cst.SimpleString) -> Value:  # noqa: N802
        return _literal(node)

    def _FormattedString(self, node: cst.FormattedString) -> Value:  # noqa: N802
        parts = [p.expression for p in node.parts if isinstance(p, cst.FormattedStringExpression)]
        places = [self._shown_whole(part, self.eval(part)) for part in parts]
        return self.text(node, combine(places))

    def own_text(self, node: cst.CSTNode, value: Value) -> Value | None:
        """Return the text by which an object of the program shows itself; see ``libraries``."""
        raise NotImplementedError

    def _shown_whole(self, node: cst.BaseExpression, value: Value) -> Place:
        """Return the placement of what is formatted, and note that of an object that shows itself."""
        if (text := self.own_text(node, value)) is not None:
            self.note(node, text)
            return text.place
        place = self.content(self.in_order(node, value))
        if place != value.place and any(isinstance(r, Obj) and r.kind == "instance" for r in value.refs):
            self.note(node, Value(place, refs=value.refs))
        return place

    def text(self, node: cst.CSTNode, place: Place) -> Value:
        """Return a formatted text, with the expression that makes it."""
        if place.kind is Kind.SAME:
            return Value(scalar=False)
        if self.recording:
            inner = (node,) if self.loop is not None and self.loop.inner else ()
            self.made_diverged[node] = (*self.made_diverged.get(node, ()), *self.diverged, *inner)
        return Value(place, texts=frozenset([node]), scalar=False)

    def _Name(self, node: cst.Name) -> Value:  # noqa: N802
        frame = self.home(node.value)
        if frame is not None:
            return self.read((frame, node.value)) or ANY
        if node.value in ("True", "False", "None"):
            return constant({"True": True, "False": False, "None": None}[node.value])
        return Value(name=self.script.name_of(node))

    def _Attribute(self, node: cst.Attribute) -> Value:  # noqa: N802
        name = self.script.name_of(node)
        owner = self.eval(node.value)
        if name and not name.startswith(".") and not owner.refs and owner.name:
            return Value(name=name)
        if node.attr.value == "iterations" and dotted(node.value).endswith(".optimizer"):
            return Value(self.updates, scalar=True)  # of a Keras model
        if node.attr.value == "grad" and self.content(owner).uniform and not self._leaves_gradient(node):
            self.gradients.read(node)
        value = self.attribute(owner, node.attr.value, node)
        if node.attr.value == "data" and {getattr(ref, "kind", "") for ref in owner.refs} == {"foreign"}:
            return owner  # what a tensor holds
        if value is not ANY or owner.refs:
            return value
        return Value(owner.place, name=f"{owner.name}.{node.attr.value}" if owner.name else "")

    def _leaves_gradient(self, node: cst.Attribute) -> bool:
        """Tell whether ``p.grad`` is only asked whether it is there, or set to zero."""
        return leaves_them(node, self.script.parents.get(node))

    def _Tuple(self, node: cst.Tuple) -> Value:  # noqa: N802
        items = self._elements(node.elements)
        if items is not None:
            return Value(SAME, items=tuple(items), name="tuple")
        if self._held_of_starred(node.elements):
            return self._sequence("list", node, node.elements)
        return Value(self._starred(node.elements), name="tuple")

    def _List(self, node: cst.List) -> Value:  # noqa: N802
        first, *rest = node.elements or (None,)
        if isinstance(first, cst.StarredElement) and not any(isinstance(e, cst.StarredElement) for e in rest):
            left = self.eval(first.value)
            if self._lists(left) and self.grown(left):  # as left + [...]
                return self._united(left, self._sequence("list", node, rest), node)
        return self._sequence("list", node, node.elements)

    def _Set(self, node: cst.Set) -> Value:  # noqa: N802
        return self._sequence("set", node, node.elements)

    def _sequence(self, kind: str, node: cst.CSTNode, elements: Any) -> Value:
        items = self._elements(elements)
        made = self.new(kind, node)
        if items is None:
            self.write((made, REST), Value(self._starred(elements), refs=self._held_of_starred(elements)))
        for i, item in enumerate(items or ()):
            self.write((made, f"[{i}]" if kind == "list" else REST), item)
        return Value(refs=frozenset([made]), zero=not elements)

    def _elements(self, elements: Any) -> list[Value] | None:
        found: list[Value] = []
        for element in elements:
            value = self.entry_made(element.value, self.eval(element.value))
            if isinstance(element, cst.StarredElement):
                value = self.iterated(value, element.value)
                if value.refs and (place := self.content(value)).kind is Kind.ENTRY and self.numbers(value):
                    self.note(element.value, Value(place, refs=value.refs, scalar=True))
                if value.items is None:
                    return None
                found.extend(value.items)
            else:
                found.append(value)
        return found

    def numbers(self, value: Value) -> bool | None:
        """Tell whether a list or dict holds numbers alone, and texts: these are averaged entry by entry."""
        plain = all(isinstance(r, Obj) and r.kind in ("list", "dict") and r.cls is None for r in value.refs)
        held = [v for v in self.held(value) if v.const is None or not isinstance(v.const, (str, type(None)))]
        return True if plain and held and all(v.scalar and not v.texts for v in held) else None

    def _starred(self, elements: Any) -> Place:
        given = [(element, self.eval(element.value)) for element in elements]
        starred = [isinstance(element, cst.StarredElement) for element, _ in given]
        if starred[0] and not any(starred[1:]) and (first := given[0][1]).place.kind is Kind.RUN:
            return replace(first.place, adds=first.place.adds | {"joined"}, counts=False)  # a tuple, and an entry more
        return combine(
            self.content(self.iterate(element.value, value) if star else value)  # of a dict its keys
            for star, (element, value) in zip(starred, given, strict=True)
        )

    def _held_of_starred(self, elements: Any) -> frozenset[Any]:
        """Return the objects and functions among ``elements`` that are no boxes: Keras' callbacks, say."""
        given = [(element, self.eval(element.value)) for element in elements]
        held = [self.iterate(e.value, v) if isinstance(e, cst.StarredElement) else v for e, v in given]
        refs = (r for value in held for r in value.refs)
        return frozenset(r for r in refs if not isinstance(r, Obj) or r.cls is not None or r.kind == "foreign")

    def _Dict(self, node: cst.Dict) -> Value:  # noqa: N802
        made = self.new("dict", node)
        for element in node.elements:
            value = self.entry_made(element.value, self.eval(element.value))
            if isinstance(element, cst.DictElement):
                key = key_of(key_in(self.eval(element.key)))
                self.put(made, key, value)
                continue
            spread = next(iter(value.refs), None) if len(value.refs) == 1 else None
            known = isinstance(spread, Obj) and spread.kind == "dict"
            for key, held in self.fields(spread) if known else [(REST, self.entries(value))]:
                if held.name != "empty":
                    self.put(made, key if key.startswith("[") else None, held)
        return Value(refs=frozenset([made]), zero=not node.elements)

    def entry_made(self, node: cst.BaseExpression, value: Value) -> Value:
        """Return an entry of a literal, marked where it is a count; see ``containers``."""
        raise NotImplementedError

    def put(self, made: Obj, key: str | None, value: Value) -> None:
        """Keep ``value`` in ``made`` under ``key``; where that is not known, beside what else it may be."""
        at = (made, key or REST)
        if key is None or (self.state or {}).get(at) is None:
            self.write(at, value if key is not None else join((self.state or {}).get(at), value))
        else:
            self.write(at, value)

    def _ConcatenatedString(self, node: cst.ConcatenatedString) -> Value:  # noqa: N802
        place, text = combine([self.eval(node.left).place, self.eval(node.right).place]), node.evaluated_value
        return replace(constant(text), place=place) if text is not None else Value(place)

    def _Lambda(self, node: cst.Lambda) -> Value:  # noqa: N802
        return Value(refs=frozenset([Function(node, self.frame)]))

    def _NamedExpr(self, node: cst.NamedExpr) -> Value:  # noqa: N802
        value = self.eval(node.value)
        self.assign(node.target, value, node.value)
        return value

    def _Await(self, node: cst.Await) -> Value:  # noqa: N802
        return self.eval(node.expression)

    def _Yield(self, node: cst.Yield) -> Value:  # noqa: N802
        if (entered := self.entered.get(self.frame.function)) is not None:
            entered(self.eval(node.value) if isinstance(node.value, cst.BaseExpression) else Value(const=None))
            return ANY
        drawn = self.loop is not None and self.loop.frame is self.frame
        self.flows[-1].drawn = self.flows[-1].drawn or drawn
        if isinstance(node.value, cst.From):
            over = self.iterated(self.eval(node.value.item), node)
            shard = over.place.kind is Kind.SHARD  # as for batch in over: yield batch
            self.flows[-1].drawn = self.flows[-1].drawn or shard
            self.flows[-1].yields.append(self.iterate(node.value.item, over) if shard else self.entries(over))
        elif node.value is not None:
            value = self.eval(node.value)
            if drawn and isinstance(node.value, cst.Call) and not value.refs:  # Log(i, loss)
                value = self.row_of_iteration(node.value, value)
            self.flows[-1].yields.append(value)
        self.flows[-1].yielded = merge(self.flows[-1].yielded, self.state)
        if isinstance(self.script.parents.get(node), cst.Expr):
            return ANY
        return Value(unknown(node, "what send() gives a generator is not followed"))

    # -- entries and comprehensions --------------------------------------------------------------------------------

    def namespace(self, node: cst.BaseExpression) -> Value | None:
        """Return of what ``node`` holds the names: ``vars(args)``, ``self.__dict__``, ``globals()``; None of others."""
        if isinstance(node, cst.Attribute) and node.attr.value == "__dict__":
            return self.eval(node.value)
        name = self.script.name_of(node.func) if isinstance(node, cst.Call) else ""
        if name == "builtins.globals":
            return Value(refs=frozenset([self.root(self.frame)]))
        if name in ("builtins.vars", "builtins.locals") and isinstance(node, cst.Call):
            return self.eval(node.args[0].value) if node.args else Value(refs=frozenset([self.frame]))
        return None

    def _Subscript(self, node: cst.Subscript) -> Value:  # noqa: N802
        if (space := self.namespace(node.value)) is not None:
            key = self.index_of(node).const
            return self.attribute(space, key, node) if isinstance(key, str) else ANY
        owner = self.in_order(node.value, self.eval(node.value))
        serial = False
        if self.loop is None and any(isinstance(e.slice, cst.Slice) for e in node.slice):
            with self.unrecorded():  # of a part, not of all that it holds
                serial = self.serial(owner)
        index = self.index_of(node, serial)
        asked = node.slice[0].slice
        counts = index.place.counts or index.place.kind in (Kind.COUNT, Kind.INDEX)
        if counts and isinstance(asked, cst.Index) and not self.by_serial_steps.isdisjoint(owner.refs):
            index = self.restore(asked.value, index)
        if samples.is_one_of_few(self, node, owner, index):
            return Value(parts.LOCAL, name="cut" if index.name == "slice" else "")
        if isinstance(asked, cst.Index) and owner.refs and {getattr(r, "kind", "") for r in owner.refs} == {"dict"}:
            index = self.key_of_parts(asked.value, index)
        by = self.entry_by(owner, index, node)
        return by if by is not None else self.entry(owner, index)

    def index_of(self, node: cst.Subscript, serial: bool = False) -> Value:
        """Return what a subscript asks for; of a slice no constant. A ``serial`` list is cut by the serial counts."""
        places: list[Place] = []
        asked: list[Value] = []
        for element in node.slice:
            if isinstance(element.slice, cst.Index):
                value = self.eval(element.slice.value)
                if len(node.slice) == 1:
                    return value
                asked.append(value)
                places.append(self.content(value))
            elif isinstance(element.slice, cst.Slice):
                bounds = (element.slice.lower, element.slice.upper, element.slice.step)
                for bound in (b for b in bounds if b is not None):
                    place = self.content(self.eval(bound))
                    inner = bound.expression if isinstance(bound, cst.UnaryOperation) else bound
                    if serial and place.kind is Kind.COUNT and power(place) == 1:
                        place = self.restore(inner, ANY).place
                    places.append(place)
        if asked and asked[0].name == parts.MASK and isinstance(node.slice[0].slice, cst.Index):
            return asked[0]
        whole = len(asked) == len(node.slice)  # sums["train", "loss"]
        return Value(combine(places), const=key_in(Value(items=tuple(asked))) if whole else NOTHING, name="slice")

    def entry(self, owner: Value, index: Value) -> Value:
        """Return ``owner[index]``."""
        if owner.items is not None:
            if isinstance(index.const, int) and -len(owner.items) <= index.const < len(owner.items):
                return self.of_chosen(owner, owner.items[index.const])
            return self.of_chosen(owner, joined(owner.items))
        found: Value | None = None
        key = key_of(key_in(index))
        for ref in owner.refs:
            if isinstance(ref, Obj) and (index.name != "slice" or (key is not None and ref.kind == "dict")):
                if ref in self.anew:
                    self.note_key(ref, ref.site, index)
                found = join(found, self.entry_in(ref, key, owner))
        if found is None:
            place = self.content(owner)
            if place.kind is Kind.RUN and index.place.kind in (Kind.SAME, Kind.ENTRY):
                shared = self.memory_of(owner) if index.place.kind is Kind.SAME else frozenset[Any]()
                return Value(place, name="cut" if index.name == "slice" else "", of=shared)
            if place.kind is Kind.SHARD:
                return Value(ENTRY)
            if owner.name == "size":
                return self.size() if index.const in (0, NOTHING) else self.other_size()
            picked = self.content(index)
            if owner.scalar and place.kind is Kind.ENTRY and owner.name != "guessed":
                return Value(place, scalar=True)  # loss.data[0], of old
            whole = place.kind in (Kind.SAME, Kind.CLOCK)  # an order that was drawn between loops is one on all ranks
            copied = picked.kind is Kind.ENTRY and all(isinstance(r, Obj) and r.kind == "list" for r in owner.refs)
            if self.loop is not None and whole and (picked.kind in (Kind.COUNT, Kind.INDEX) or copied):
                return Value(ENTRY)  # this iteration's samples
            if self.shards.parts and index.name == parts.MASK and parts.is_of_samples(owner, place):
                return Value(self.of_episode(parts.PICKED))
            name = "cut" if index.name == "slice" else ""
            return Value(
                combine([place, picked]), refs=owner.refs, name=parts.MASK if owner.name == parts.MASK else name
            )
        place, found = self.content(index), self.of_chosen(owner, found)
        if place.kind is not Kind.SAME:
            found = replace(found, of=frozenset())  # of an index by samples: a copy
        if place.kind in (Kind.COUNT, Kind.INDEX) and found.place.kind is Kind.SAME:
            if self.loop is None:
                return found.at(BENT_COUNT)  # that of the serial count is another one
            return found.at(BENT_COUNT if found.scalar and self._is_numbered() else ENTRY)
        return found if place.uniform or found.place.kind is Kind.RUN else found.at(combine([place, found.place]))

    def _is_numbered(self) -> bool:
        """Tell whether this loop goes through samples beside their numbers: what these ask for is none of them."""
        loop = self.loop.node if self.loop is not None else None
        over = loop.iter if isinstance(loop, cst.For) else None
        return isinstance(over, cst.Call) and self.script.name_of(over.func) == "builtins.enumerate"

    def entry_in(self, ref: Obj, key: str | None, owner: Value) -> Value:
        """Return the entry of an object under ``key``; of one that is not known any of them."""
        self.note_asked(ref)
        key = self.from_end(ref, key)
        if key is not None and (held := self.read((ref, key))) is not None:
            return self.entry_of(held, key)
        if ref.kind == "foreign" and (among := self.read((ref, REST))) is not None:
            return among  # what its maker was given
        if ref.kind == "foreign":
            held = self.entry_of(self.read((ref, CONTENT)) or ANY, CONTENT)
            return Value(held.place, scalar=held.scalar, reduced=held.reduced, of=self.memory_of(owner))
        if ref.name == "counter" and (made := self._by_key_of(ref, key)) is not None:
            return made
        row = self.last_row.get(ref) if key == "[-1]" else None
        grown = self.read((ref, GROWN)) if row else None
        if row and grown is not None and grown.place.kind is Kind.RUN:
            return replace(self.entry_of(grown, GROWN), items=row)
        if key is None or not any(k.startswith("[") and k not in (REST, GROWN) for k, _ in self.fields(ref)):
            return self.entries(Value(refs=frozenset([ref])))
        parts = [(k, v) for k in (REST, GROWN) if (v := self.read((ref, k))) is not None and v.name != "empty"]
        if parts or ref.kind == "list":
            return (
                joined(self.entry_of(v, k) for k, v in parts) if parts else self.entries(Value(refs=frozenset([ref])))
            )
        return Value(zero=True)  # of a defaultdict, or not there

    def from_end(self, ref: Obj, key: str | None) -> str | None:
        """Return the key of an entry of a list that is counted from its end, where all entries are known."""
        if key is None or not key.startswith("[-") or ref.kind != "list":
            return key
        fields = [k for k, v in self.fields(ref) if k.startswith("[") and v.name != "empty"]
        at = len(fields) + int(key[1:-1])
        return f"[{at}]" if at >= 0 and all(k[1:-1].isdigit() for k in fields) else key

    def _by_key_of(self, ref: Obj, key: str | None) -> Value | None:
        """Return the list or set that a defaultdict makes for a key that is known, apart from those of other keys."""
        anew = self.anew.get(ref)
        if key is None or anew is None or ref.looped:
            return None
        made = self.made_for(next(iter(anew)), f"{id(ref)}{key}", anew)
        self.put(ref, key, made)
        self.born[ref, key] = made
        return made

    def made_for(self, ref: Obj, tag: str, anew: dict[Obj, list[tuple[str, Value]]]) -> Value:
        """Return an object like ``ref``, with what it held when it was made, and objects of its own in it."""
        made = self.new(ref.kind, ref.site, tag, cls=ref.cls, name=ref.name)
        for name, held in anew[ref]:
            inner = [self.made_for(r, tag, anew) for r in held.refs if r in anew]
            others = frozenset(r for r in held.refs if r not in anew)
            value = replace(held, refs=others.union(*(v.refs for v in inner)))
            self.write((made, name), value)
            self.born[made, name] = value
        if ref in self.anew and made not in self.anew:  # a defaultdict of defaultdicts
            copies = [self.new(r.kind, r.site, tag, cls=r.cls, name=r.name) for r in self.anew[ref]]
            self.anew[made] = {copy: self.fields(copy) for copy in copies}
        return Value(refs=frozenset([made]), zero=ref.kind != "instance")

    def _comprehension(self, node: Any, kind: str) -> Value:
        frame = self.frame_of(node, self.frame, function=node, parent=self.frame)
        before, self.frame = self.frame, frame
        made = self.new(kind, node, "made")
        if (entries := self._each_entry(node)) is not None:
            self._put_each(made, node, entries)
            self.frame = before
            if not encloses(node):
                self.forget(frame)
            return Value(refs=frozenset([made]))
        self.looping += 1
        state = dict(self.state or {}) if self.loop is None else {}
        diverging, shared = self._generate(node.for_in)
        key = self.eval(node.key) if isinstance(node, cst.DictComp) else None
        value = self.eval(node.value if isinstance(node, cst.DictComp) else node.elt)
        chosen = diverging and self.loop is not None and self.content(self.seen_last(node.for_in.iter)).uniform
        if chosen and value.place.uniform and not value.refs:  # next(rate for low, rate in levels if loss > low)
            value = value.at(parts.BENT if self.shards.parts else ENTRY)
        self.frame = before
        self.looping -= 1
        if not encloses(node):
            self.forget(frame)
        for _ in range(diverging):
            self.diverged.pop()
        if shared and self.loop is None:
            self.lose_written(state, node, GOES_THROUGH)
            return Value(unknown(node, GOES_THROUGH))
        if key is not None and self.content(key).kind is Kind.ENTRY:
            self.keyed_locally.add(made)
        if self.loop is not None and self.shards.parts:
            self.samples_in[made] = samples.made(self, node, kind, diverging)
        value = self._of_its_own(node, value)
        grown = [at for loop in _loops(node.for_in) for v in self.seen.get(loop.iter, ())[-1:] for at in self.grown(v)]
        if grown and self.recording:
            self.over_grown.add(node)
        if grown and self.state is not None and key is None:
            place = self.state[grown[0]].place
            grows = self.grows(Place(Kind.RUN, place.at), self.content(value), value.scalar)
            self.write((made, GROWN), Value(grows, refs=value.refs))
        else:
            self.write((made, REST if key is None else key_of(key.const) or REST), value)
        return Value(refs=frozenset([made]))

    def listed(self, over: Value) -> list[Value] | None:
        """Return the entries of what a loop goes through, where all are known; see ``control_flow``."""
        raise NotImplementedError

    def _each_entry(self, node: Any) -> list[Value] | None:
        """Return the entries that a dict of containers is made for, one by one, where all are known."""
        holds = isinstance(node, cst.DictComp) and isinstance(node.value, _HOLDS)
        over = node.for_in.iter
        if not holds or node.for_in.inner_for_in is not None or node.for_in.ifs or not isinstance(over, _NAMED):
            return None
        return self.listed(self.eval(over))

    def _put_each(self, made: Obj, node: cst.DictComp, entries: list[Value]) -> None:
        """Make what a dict holds for each entry: ``{phase: {name: Meter() for name in names} for phase in phases}``."""
        around = self.unrolled
        for number, entry in enumerate(entries):
            self.unrolled = (*around, number)
            self.assign(node.for_in.target, entry)
            key = self.eval(node.key)
            self.put(made, key_of(key_in(key)), self.eval(node.value))
        self.unrolled = around

    def _of_its_own(self, node: Any, value: Value) -> Value:
        """Return an entry of a container; lost where each iteration makes it anew of what the last one left.

        So it is in ``sums = [a + b for a, b in zip(sums, new)]``: sums, entry by entry, that nothing here follows.
        """
        computed = node.value if isinstance(node, cst.DictComp) else node.elt
        up = next(
            (up for up in self.script.above(node) if isinstance(up, (cst.Assign, cst.BaseCompoundStatement))), None
        )
        if self.loop is None or not isinstance(up, cst.Assign) or self.content(value).kind is not Kind.ENTRY:
            return value
        if not any(isinstance(n, cst.BinaryOperation) for n in walk(computed)):
            return value
        for target in up.targets:
            name = target.target.value if isinstance(target.target, cst.Name) else ""
            home = self.home(name) if name and name in names_in(node) else None
            at = (home, name)
            if home is not None and at in self.begun and (self.state or {}).get(at) is self.begun[at]:
                return value.at(unknown(node, "it is computed from what this rank has added up so far", at))
        return value

    def _generate(self, loop: cst.CompFor) -> tuple[int, bool]:
        """Bind the names of a comprehension's loops.

        Return how many of their tests differ between ranks, and whether one of them goes through a share.
        """
        over = self.iterated(self.eval(loop.iter), loop.iter)
        self.assign(loop.target, self.iterate(loop.iter, over))
        tests = [test.test for test in loop.ifs if not self.content(self.eval(test.test)).uniform]
        self.diverged.extend(tests)
        more, shared = self._generate(loop.inner_for_in) if loop.inner_for_in is not None else (0, False)
        return len(tests) + more, shared or over.place.kind is Kind.SHARD

    def _ListComp(self, node: cst.ListComp) -> Value:  # noqa: N802
        return self._comprehension(node, "list")

    def _SetComp(self, node: cst.SetComp) -> Value:  # noqa: N802
        return self._comprehension(node, "set")

    def _GeneratorExp(self, node: cst.GeneratorExp) -> Value:  # noqa: N802
        return self._comprehension(node, "list")

    def _DictComp(self, node: cst.DictComp) -> Value:  # noqa: N802
        return self._comprehension(node, "dict")

    def _Call(self, node: cst.Call) -> Value:  # noqa: N802
        return self.call(node)

    # -- lists and sets that are put together, and their order

    def size(self) -> Value:
        """Return the number of samples of an iteration."""
        place = self.of_episode(parts.SUMMED) if self.shards.parts else ENTRY
        return Value(place, scalar=True, name="size")

    def size_of(self, place: Place) -> Value:
        """Return the number of samples that are placed so: of those that a test has let in other ones on each rank."""
        return Value(self.of_episode(parts.SUMMED), scalar=True) if "picked" in place.adds else self.size()

    def other_size(self) -> Value:
        """Return the size of an iteration's samples in another dimension: of padded ones the longest's."""
        padded = not self.shards.parts and _pads(self.script.module)
        return Value(ENTRY if padded else SAME, scalar=True)

    def grows(self, held: Place, entry: Place, scalar: bool | None = True) -> Place:
        """Return the placement of what grew by an entry that is placed so."""
        entry = SAME if self.shards.parts and entry.counts else entry  # all ranks run every serial iteration
        if not self.shards.parts or held.kind is not Kind.RUN or entry.kind not in (Kind.ENTRY, *UNIFORM):
            return _grow(held, entry)
        how = parts.added(entry, False)
        if "row" in entry.adds or (scalar is False and entry.kind is Kind.ENTRY and not self.is_diverged):
            how = "row"  # one of each iteration, on each rank of its own part
        elif entry.kind is Kind.ENTRY and (self.is_diverged or not scalar):
            how = "samples"
        return replace(held, adds=held.adds | {how}, counts=False)

    def of_episode(self, place: Place) -> Place:
        """Return the placement of a number of a part; of an episode nothing adds up."""
        return ENTRY if self.shards.episodes and place in (parts.SUMMED, parts.LOCAL) else place

    @staticmethod
    def _sets(value: Value) -> bool:
        return any(isinstance(r, Obj) and r.kind in ("set", "dict") for r in value.refs)

    @staticmethod
    def _lists(value: Value) -> bool:
        return any(isinstance(r, Obj) and r.kind in ("list", "deque") for r in value.refs)

    @staticmethod
    def _is_list(value: Value) -> bool:
        return bool(value.refs) or value.items is not None or value.name == "list"

    def _united(self, left: Value, right: Value, node: cst.CSTNode) -> Value:
        """Return the list or set of the entries of two: what this rank's iterations add makes it grow."""
        kind = next(r.kind for r in left.refs if isinstance(r, Obj))
        held = next(((self.state or {})[at] for at in self.grown(left)), None)
        before, entry = self.entries(left), self.entries(right)
        made = self.new(kind, node, "union")
        if held is not None:
            place = self.grows(held.place, self.content(entry), entry.scalar)
            place = trimmed(place) if left.name == "cut" else place
            place = self.in_some_order(place, made)
            self.write((made, GROWN), Value(place, refs=held.refs | entry.refs, scalar=one_more(held, entry)))
        else:
            self.write((made, REST), join(before, entry))
        return Value(refs=frozenset([made]))

    def in_some_order(self, place: Place, ref: Obj) -> Place:
        """Return the placement of a list that grew: some iterations add to it, others do not, where a test differs."""
        some = self.loop is not None and len(self.diverged) > self.loop.outer
        if self.shards.parts and self.is_diverged and not self.shards.episodes and "same" in place.adds:
            place = replace(place, adds=place.adds - {"same"} | {"samples"})
        listed = ref.kind in ("list", "deque") and place.kind is Kind.RUN and "fires" not in place.adds
        return replace(place, adds=place.adds | {"some"}) if some and listed else place

    def in_order(self, node: cst.CSTNode, value: Value) -> Value:
        """Return a list whose order is read: it is unknown where each rank's iterations filled it as they liked."""
        for ref in value.refs:
            held = (self.state or {}).get((ref, GROWN)) if isinstance(ref, Obj) else None
            if held is not None and held.place.kind is Kind.SAME and "some" in held.place.adds:
                text = "only some iterations add to it, and in which order those of all ranks came is not known"
                if held.place.at is not None:
                    found = whole.left(Value(), held.place.at, text)
                    self.used.update(found.pending if self.recording else ())
                    return found
                return Value(replace(unknown(node, text), adds=frozenset({"some"})))
        return value

    def restore(self, node: cst.BaseExpression, value: Value) -> Value:
        """Return a count as the serial one; see ``containers``."""
        raise NotImplementedError


def _loops(loop: cst.CompFor) -> list[cst.CompFor]:
    return [loop, *(_loops(loop.inner_for_in) if loop.inner_for_in is not None else ())]


def _grow(held: Place, entry: Place) -> Place:
    """Return the placement of what grew by an entry that is placed so."""
    if held.kind is not Kind.RUN:
        if entry.kind is Kind.UNKNOWN:  # of the list that it is taken from the length may be known
            entry = replace(entry, adds=entry.adds - {"rows"})
        return combine([held, entry])
    if entry.kind is Kind.ENTRY and "part" in entry.adds:
        return replace(held, adds=held.adds | {"part"}, counts=False)
    if entry.kind is Kind.ENTRY and "earlier" in entry.adds:  # loss - before: of iterations that others have between
        return replace(held, adds=held.adds | {"run"}, counts=False)
    what = {Kind.ENTRY: "entry", Kind.SAME: "same", Kind.COUNT: "same", Kind.INDEX: "same", Kind.CLOCK: "entry"}
    return replace(held, adds=held.adds | {what.get(entry.kind, "run")}, counts=False)


@lru_cache(maxsize=8)
def _pads(module: cst.Module) -> bool:
    """Tell whether a script pads its batches, each to its own longest sample."""
    return any(isinstance(n, cst.Name) and n.value in _PADS for n in walk(module))
