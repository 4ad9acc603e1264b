"""Functions of libraries whose rows say more than what is computed: sizes, ranges, joined arrays, what is shown."""

from __future__ import annotations

from dataclasses import replace

import libcst as cst

from dlrun.port.facts.torch import CLIPS
from dlrun.port.placement import rules
from dlrun.port.placement.interpret import parts as of_parts
from dlrun.port.placement.interpret import samples
from dlrun.port.placement.interpret.calls import Calls
from dlrun.port.placement.rules import DRAWING, Row
from dlrun.port.placement.store import (
    CONTENT,
    GROWN,
    LOCAL,
    PROPERTY,
    REST,
    Bound,
    Function,
    Method,
    Obj,
    key_of,
    merge,
)
from dlrun.port.placement.values import (
    ANY,
    CLOCK,
    ENTRY,
    NOTHING,
    OR_END,
    SAME,
    WRAPPED,
    Kind,
    Place,
    Value,
    combine,
    constant,
    join,
    joined,
    unknown,
)
from dlrun.port.program.script import argument, dotted

_SO_FAR = (Kind.RUN, Kind.EXTREME, Kind.MIX, Kind.RATIO)


def _plain(values: list[Value]) -> bool:
    """Tell whether ``values`` are entries and serial values that hold nothing: no list, no object, no sum so far."""
    held = any(v.refs or v.items is not None or v.pending or v.texts or v.reduced for v in values)
    return not held and all(v.place.kind in (Kind.ENTRY, Kind.SAME) for v in values)


class LibraryRows(Calls):
    """Does what the row of a function says; each method is that of one row."""

    def _row_keeps(self, args: list[Value], node: cst.Call) -> Value:
        name = dotted(node.func).split(".")[-1]
        if args and name in ("float", "int", "complex") and (own := self.dunder(args[0], f"__{name}__", [], node)):
            return own
        value = self._converted(args[0], name, node) if args else ANY
        listed = [r for r in value.refs if isinstance(r, Obj) and r.kind in ("list", "deque", "generator")]
        if listed and not self.grown(value) and name not in ("copy", "deepcopy"):
            made = self.new("foreign", node, name=self.script.name_of(node.func))
            none = NOTHING if any(self.fields(r) for r in listed) else ()
            place, serial = self.content(value), self.serial(value)
            self.write((made, CONTENT), Value(place, const=none, zero=self._zeros(value), reduced=serial))
            return Value(refs=frozenset([made]))
        if (
            value.place.kind is Kind.SAME
            and name not in ("float", "int", "complex", "copy", "deepcopy")
            and not value.refs
        ):
            return self.array(value, node, self.script.name_of(node.func))
        return value

    def _row_length(self, args: list[Value], node: cst.Call) -> Value:
        if args and (own := self.dunder(args[0], "__len__", [], node)) is not None:
            return own
        return self.length(args[0]) if args else ANY

    def _row_remainder(self, args: list[Value], node: cst.Call) -> Value:
        return self.operated(cst.Modulo(), args[0], args[1], node) if len(args) == 2 else ANY

    def _row_divmod(self, args: list[Value], node: cst.Call) -> Value:
        if len(args) != 2:
            return ANY
        both: tuple[cst.BaseBinaryOp, ...] = (cst.FloorDivide(), cst.Modulo())
        return Value(items=tuple(self.operated(op, args[0], args[1], node) for op in both))

    def _row_numbers(self, args: list[Value], node: cst.Call) -> Value:
        if not args:
            return ANY
        starts = args[1] if len(args) > 1 else next((self.eval(a.value) for a in node.args if a.keyword), None)
        return self.numbered(args[0], self.iterate(node.args[0].value, args[0]), node, starts)

    def _row_pairs(self, args: list[Value], node: cst.Call) -> Value:
        shard = any(a.place.kind is Kind.SHARD for a in args)
        plain = self.script.name_of(node.func) == "builtins.zip" and not any(arg.star for arg in node.args)
        self.zipped[node] = args if plain else []
        if not shard or not plain:
            return self.parallel(tuple(self.iterate(node, a) for a in args), shard)
        return self.parallel(tuple(self._next_to(a, arg.value) for a, arg in zip(args, node.args, strict=False)), True)

    def _next_to(self, value: Value, node: cst.BaseExpression) -> Value:
        """Return the entry of ``value`` that an iteration over a share gets: of numbers that go on with it its number.

        Of other things it is the one that the serial script has beside another batch.
        """
        entry = self.iterate(node, value)
        if value.name == "range" and value.items:
            return value.items[0]
        if value.place.kind is Kind.SHARD or self.shards.parts or self.content(entry).kind is not Kind.SAME:
            return entry
        name = self.script.name_of(node.func) if isinstance(node, cst.Call) else ""
        if name == "itertools.repeat":
            return entry
        given = node.args if isinstance(node, cst.Call) else []
        if name in ("builtins.range", "itertools.count") and len(given) < 3:
            counts = name == "itertools.count"
            starts = self.eval(given[0].value) if len(given) > (0 if counts else 1) else None
            if not counts or len(given) < 2:
                return self.number_from(starts, node)
        text = f"{self.script.code(node)} is gone through beside a share: entries stand beside other batches"
        return entry.at(unknown(node, text))

    def _row_iterates(self, args: list[Value], node: cst.Call) -> Value:
        if len(args) == 2 and self.script.name_of(node.func) == "builtins.iter":  # of a function that is called
            entry = self.call_value(args[0], [], {}, node)
            kind = Kind.SHARD if self.content(entry).kind is Kind.ENTRY else Kind.SAME
            return replace(self.parallel((entry,), False), place=Place(kind), name="drawn")
        if args and args[0].place.kind is Kind.SHARD:
            return replace(args[0], place=replace(args[0].place, adds=args[0].place.adds | WRAPPED))
        called, sources = self.script.name_of(node.func).rpartition(".")[2], args[:1]
        if called in ("takewhile", "dropwhile"):
            sources = args[1:]
        elif called == "chain":
            sources = args
        elif called == "from_iterable":
            sources = [inner for each in args for inner in self._parts_of([each]) or [self.entries(each)]]
        whole = all(a.place.kind is not Kind.SHARD for a in args)
        objects = self.objects_of(sources, node) if whole and sources != args[:1] else None
        return objects if objects is not None else sources[0] if sources else ANY

    def _row_join(self, args: list[Value], node: cst.Call) -> Value:
        """Return arrays behind each other: what this rank's iterations add to an array makes it grow."""
        arrays = args[:2] if len(args) > 1 and dotted(node.func).endswith("append") else self._parts_of(args[:1])
        places = [self.content(part) for part in arrays]
        runs = [p for p in places if p.kind is Kind.RUN and (p.untouched or "joined" in p.adds)]
        others = [p for p in places if p.kind is not Kind.RUN]
        if len(runs) == 1 and len(others) == len(places) - 1 and all(p.kind in (Kind.ENTRY, Kind.SAME) for p in others):
            of_parts = self._joined_of_parts(arrays, others, node) if self.shards.parts else ""
            if of_parts:
                return Value(replace(runs[0], adds=runs[0].adds | {"joined", of_parts}, counts=False), scalar=False)
            if self.shards.parts:
                return Value(unknown(node, "parts of batches are put behind each other: their order is another one"))
            return Value(replace(runs[0], adds=runs[0].adds | {"joined"}, counts=False), scalar=False)
        if any(p.kind in _SO_FAR for p in places if p not in runs) and self._grows_itself(node):
            return Value(unknown(node, "what it keeps of each iteration is itself a sum so far"))
        if len(arrays) > 1 and any(p.kind is Kind.ENTRY for p in others) and _plain(arrays):
            return Value(combine(places), scalar=False)
        return self.make(Row.LIST, node, args)

    def _joined_of_parts(self, arrays: list[Value], others: list[Place], node: cst.Call) -> str:
        """Return what of a part is put behind earlier batches: its "samples", an "entry" of it; "" of anything else."""
        added = [v for v in arrays if self.content(v).kind is not Kind.RUN]
        axes = [a.value for a in node.args[1:] if a.keyword is None or a.keyword.value in ("axis", "dim")]
        called = dotted(node.func).rpartition(".")[2]
        first = all(self.eval(axis).const in (0, None) for axis in axes[called == "append" :])
        if any(p != ENTRY for p in others) or not first or called not in ("cat", "concat", "concatenate", "append"):
            return ""
        if any(v.name in ("mean", "centered") for v in added):
            return ""
        return "samples" if not any(v.scalar for v in added) else "entry" if all(v.scalar for v in added) else ""

    def _grows_itself(self, node: cst.Call) -> bool:
        """Tell whether an array is bound anew with more behind it: ``x = np.append(x, loss)``."""
        line, first = self.script.parents.get(node), node.args[0].value if node.args else None
        if isinstance(first, (cst.List, cst.Tuple)) and first.elements:
            first = first.elements[0].value
        targets = [t.target for t in line.targets] if isinstance(line, cst.Assign) else []
        return self.loop is not None and first is not None and any(target.deep_equals(first) for target in targets)

    def _row_range(self, args: list[Value], node: cst.Call) -> Value:
        place = combine(self.content(a) for a in args)
        stop = self.content(args[1] if len(args) > 1 else args[0]) if args else SAME
        if stop.kind in (Kind.COUNT, Kind.INDEX) and self.loop is None:
            number = self.number_from(args[0] if len(args) > 1 else None, node)
            return Value(Place(Kind.SHARD, adds=WRAPPED), name="range", items=(number,))
        made = self.new("list", node, "range", name="range")
        self.write((made, REST), Value(SAME if stop.kind is Kind.SAME else place, scalar=True))
        return Value(refs=frozenset([made]))

    def _row_next(self, args: list[Value], node: cst.Call) -> Value:
        if args and (own := self.dunder(args[0], "__next__", [], node)) is not None:
            return own
        value = self.iterate(node, args[0]) if args else ANY
        of_samples = self.shards.parts and self.loop is not None and samples.kind_of(self, args[0]) if args else ""
        if of_samples in (samples.EACH, samples.SOME, samples.MIXED) and value.items is None and not value.refs:
            return value.at(of_parts.BENT)  # the first of a part, which other parts have, too
        if len(args) == 2 and args[1].const is None and args[0].place.kind is Kind.SHARD:
            return replace(value, name=OR_END)
        return value if value.items is None or args[0].name != "parallel" else Value(items=value.items)

    def _row_property(self, args: list[Value], node: cst.Call) -> Value:
        made = self.new("foreign", node, name=PROPERTY)
        for name, function in zip(("get", "set"), args, strict=False):
            self.write((made, name), function)
        return Value(refs=frozenset([made]))

    def _row_zeros(self, args: list[Value], node: cst.Call) -> Value:
        made = self.new("foreign", node, name=self.script.name_of(node.func))
        place = combine(self.content(a) for a in args)
        shape = args[0].items[0] if args and args[0].items else args[0] if args else ANY
        none = () if shape.const == 0 else NOTHING
        if rules.leaves_memory(made.name):
            self.filled_by_memory[made] = node
        self.write((made, CONTENT), Value(SAME if place.uniform else place, const=none, zero=True))
        return Value(refs=frozenset([made]))

    def _row_filled(self, args: list[Value], node: cst.Call) -> Value:
        made = self.new("foreign", node, name=self.script.name_of(node.func))
        place = combine(self.content(a) for a in args[1:])
        self.write((made, CONTENT), Value(place))
        return Value(refs=frozenset([made]))

    def _row_from_keys(self, args: list[Value], node: cst.Call) -> Value:
        made = self.new("dict", node)
        value = args[1] if len(args) > 1 else constant(None)
        keys = [key_of(key.const) for key in self._parts_of(args[:1])]
        for key in keys if keys and all(keys) else [None]:
            self.put(made, key, value)
        return Value(refs=frozenset([made]), zero=value.zero)

    def _row_push(self, args: list[Value], node: cst.Call) -> Value:
        for ref in args[0].refs if len(args) > 1 else ():
            if isinstance(ref, Obj) and ref.kind in ("list", "deque"):
                self.grow(ref, args[1])
                held = self.read((ref, GROWN))
                if held is not None and held.place.kind is Kind.RUN:
                    self.write((ref, GROWN), held.at(replace(held.place, adds=held.place.adds | {"ordered"})))
        return ANY

    def _row_take(self, args: list[Value], node: cst.Call) -> Value:
        entry = self.entries(args[0]) if args else ANY
        self._row_push(args, node)
        if args:
            self.trim(args[0])
        return join(entry, args[1]) if len(args) > 1 else entry

    def _any_attribute(self, owner: Value, node: cst.Call) -> Value:
        """Return what an attribute may be whose name is made at run time: ``getattr(callback, f"on_{event}")``."""
        text = node.args[1].value if len(node.args) > 1 else None
        first = text.parts[0] if isinstance(text, cst.FormattedString) and text.parts else None
        begin = first.value if isinstance(first, cst.FormattedStringText) else ""
        found = [v for ref in owner.refs for key, v in self.fields(ref) if key.startswith(begin)]
        for ref in owner.refs:
            if isinstance(ref, Obj) and ref.cls is not None:
                names = dict.fromkeys(k for cls in self.lines(ref.cls) for k, _ in self.fields(cls.body))
                own = Value(owner.place, refs=frozenset([ref]))
                found += [self.attribute(own, k, node) for k in names if k.startswith(begin) and not k.startswith("__")]
        return joined(found)

    def _row_attribute(self, args: list[Value], node: cst.Call) -> Value:
        name = args[1].const if len(args) > 1 else NOTHING
        if self.script.name_of(node.func) == "builtins.getattr":
            if not isinstance(name, str):
                return self._any_attribute(args[0], node) if args else ANY
            found = self.attribute(args[0], name, node)
            bare = all(isinstance(r, Method) for r in found.refs) and bool(found.refs)
            if bare and len(args) > 2:
                own = [ref for ref in args[0].refs if isinstance(ref, Obj) and ref.kind == "instance"]
                self.born.update(((ref, name), args[2]) for ref in own if (ref, name) not in (self.state or {}))
                return args[2]
            return found
        if len(args) > 2 and isinstance(name, str):
            self.set_attribute(args[0], name, args[2], node)
        elif len(args) > 2:
            for ref in args[0].refs:
                for key, held in self.fields(ref):
                    self.write((ref, key), join(held, args[2]))
        return ANY

    def _row_fold(self, args: list[Value], node: cst.Call) -> Value:
        adds = node.args and self.script.name_of(node.args[0].value) in ("operator.add", "operator.iadd")
        if isinstance(first := node.args[0].value if node.args else None, cst.Lambda):
            adds = isinstance(first.body, cst.BinaryOperation) and isinstance(first.body.operator, cst.Add)
        if adds and len(args) > 1:
            total = self.reduced(Row.SUM, args[1:2], {}, node)
            return self.operated(cst.Add(), args[2], total, node) if len(args) > 2 else total
        if objects := self.objects_in(args[1:]):
            return self.call_value(args[0], [Value(refs=objects)] * 2, {}, node)
        return Value(combine(self.content(a) for a in args[1:]))

    def _row_partial(self, args: list[Value], node: cst.Call) -> Value:
        refs = args[0].refs if args else frozenset()
        named = tuple((a.keyword.value, self.eval(a.value)) for a in node.args if a.keyword is not None)
        known = [Bound(r, ANY) if isinstance(r, Function) else r for r in refs if isinstance(r, (Function, Bound))]
        bound = [replace(b, given=(*b.given, *args[1:]), named=(*b.named, *named)) for b in known]
        clips = not refs and args and CLIPS.search(args[0].name)
        return Value(refs=frozenset(bound) or refs, name=args[0].name if clips else "")

    def _row_named_tuple(self, args: list[Value], node: cst.Call) -> Value:
        """Return the class that ``namedtuple("Row", "loss n")`` makes: as one that derives from ``NamedTuple``."""
        given = args[1] if len(args) > 1 else ANY
        held = self.listed(given)
        texts = given.const.replace(",", " ").split() if isinstance(given.const, str) else [v.const for v in held or ()]
        names = [text for text in texts if isinstance(text, str) and text.isidentifier()]
        if not names or len(names) < len(texts) or len(args) > 2 or any(a.keyword is not None for a in node.args):
            return ANY
        lines = "".join(f"    {name}: object\n" for name in names)
        made = cst.parse_module(f"class Row(NamedTuple):\n{lines}").body[0]
        assert isinstance(made, cst.ClassDef)
        return Value(refs=frozenset([self.new_class(made, node, (Value(name="typing.NamedTuple"),))]))

    def _row_shape(self, args: list[Value], node: cst.Call) -> Value:
        owner, _, name = self.script.name_of(node.func).rpartition(".")
        classes = [r.cls for r in args[0].refs if isinstance(r, Obj) and r.cls is not None] if args else []
        if name == "type" and classes and len(args) == 1:
            return Value(refs=frozenset(classes))
        if args and "means" in (place := self.content(args[0])).adds:
            return Value(place)  # a place for each local iteration
        if owner == "builtins" or not args or self.content(args[0]).kind is not Kind.ENTRY:
            return Value(scalar=True if owner == "builtins" or name == "size" else None)
        if "picked" in place.adds:
            return Value(of_parts.SUMMED, scalar=name == "size" or None)
        return self.size() if name == "size" else Value(name="size")

    def _row_shows(self, args: list[Value], node: cst.Call) -> Value:
        self._sink(node)
        if (file := argument(node, "file")) is not None:
            self.write_into(self.eval(file), node)
        return ANY

    def _row_curve(self, args: list[Value], node: cst.Call) -> Value:
        self._sink(node, row=Row.CURVE)
        return ANY

    def _row_at_step(self, args: list[Value], node: cst.Call) -> Value:
        self._sink(node, row=Row.AT_STEP)
        return ANY

    def _row_writes(self, args: list[Value], node: cst.Call) -> Value:
        self._sink(node, row=Row.WRITES)
        return ANY

    def _row_progress(self, args: list[Value], node: cst.Call) -> Value:
        return ANY

    def _row_nothing(self, args: list[Value], node: cst.Call) -> Value:
        return ANY

    def _row_clock(self, args: list[Value], node: cst.Call) -> Value:
        return Value(CLOCK, scalar=True)

    def _row_on_disk(self, args: list[Value], node: cst.Call) -> Value:
        return Value(CLOCK, scalar=True) if self.in_training(node) else Value(scalar=True)

    def _row_later(self, args: list[Value], node: cst.Call) -> Value:
        """Run the function as ``node`` may at any time: what it sets differs between ranks."""
        named = (argument(node, word) for word in ("target", "function", "handler"))
        given = [*args, *(self.eval(value) for value in named if value is not None)]
        before = dict(self.state or {})
        self.run_given(given, node)
        for method in (ref for value in given for ref in value.refs if isinstance(ref, Method)):
            for owner in method.receiver.refs:
                self.write((owner, CONTENT), Value(CLOCK))  # threading.Timer(60, event.set)
        if self.state is not None:
            changed = {at for at, value in self.state.items() if before.get(at) is not value}
            changed = {at for at in changed if self.state[at].const is not NOTHING}  # flags and numbers
            self.at_any_time |= changed
            self.state = merge(before, self.state)
            for at in changed:
                self.write(at, self.state[at])  # type: ignore[index]
        return ANY

    def _row_chance(self, args: list[Value], node: cst.Call) -> Value:
        if self.loop is not None and node in self.shards.alike:
            return ANY
        if self.loop is not None:
            return Value(ENTRY, name="chance")
        library = self.script.name_of(node.func).partition(".")[0]
        if library not in DRAWING:
            return Value(CLOCK) if self.sharded else ANY
        generator = argument(node, "generator")  # one of the script's own, which it has seeded
        local = (library, LOCAL) in (self.state or ()) and generator is None
        local = local or (self.in_callback() and not self._is_seeded(library))
        return Value(CLOCK) if local else ANY  # rank 0's is as good as the serial one

    def _is_seeded(self, library: str) -> bool:
        """Tell whether the script seeds what ``library`` draws, on all ranks alike."""
        names = (self.script.name_of(call.func) for call in self.script.calls)
        return any("seed" in name and name.startswith((library, "keras.", "tensorflow.")) for name in names)

    def _row_seeds(self, args: list[Value], node: cst.Call) -> Value:
        sure = isinstance(self.script.parents[node], cst.Expr) and args and combine(map(self.content, args)).uniform
        if self.loop is None and self.state is not None and sure:
            self.state.pop((self.script.name_of(node.func).partition(".")[0], LOCAL), None)
        return ANY

    def _row_index_add(self, args: list[Value], node: cst.Call) -> Value:
        if args:
            array = args[0] if args[0].refs else self.array_of(node.args[0].value)
            self.in_place(Row.INDEX_ADD, array, args[1:], node, "")
        return ANY
