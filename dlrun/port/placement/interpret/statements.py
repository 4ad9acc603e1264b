"""Statements: assignments, what ends a block, imports, definitions."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import libcst as cst

from dlrun.port.placement.interpret import parts, samples
from dlrun.port.placement.interpret.libraries import VIEWS
from dlrun.port.placement.interpret.loops import Loops
from dlrun.port.placement.interpret.machine import LostError
from dlrun.port.placement.interpret.raised import by_assert, by_raise
from dlrun.port.placement.store import (
    CONTENT,
    GROWN,
    REST,
    Bound,
    Class,
    Frame,
    Function,
    Location,
    Method,
    Obj,
    key_in,
    key_of,
    length_of,
)
from dlrun.port.placement.values import (
    ANY,
    ENTRY,
    INDEX,
    MIXED,
    NOTHING,
    SAME,
    Kind,
    Place,
    Value,
    combine,
    one_more,
    trimmed,
    unknown,
)
from dlrun.port.program.script import dotted, walk

_CONSTANTS = ("tensorflow.", "keras.ops.", "jax.")  # whose arrays no operator changes in place


class Statements(Loops):
    """Runs statements."""

    def run(self) -> None:
        """Run the program: the modules that it imports, then the script itself."""
        try:
            self.block(self.script.module)
            self._run_unreached()
        except (LostError, RecursionError):
            self.lost = self.lost or self.script.module

    def _run_unreached(self) -> None:
        """Run the functions with training loops that nothing here calls: something out of sight does.

        Those first that no other one calls.
        """
        called = {dotted(call.func).rpartition(".")[2] for call in self.script.calls}
        around = {loop: self.script.function_of(loop) for loop in self.shards.training}
        names = {loop: f.name.value if isinstance(f, cst.FunctionDef) else "" for loop, f in around.items()}
        for loop in sorted(around, key=lambda loop: (names[loop] in called, self.script.line(loop))):
            function = around[loop]
            if loop in self.sharded or loop in self.plain_loops or not isinstance(function, cst.FunctionDef):
                continue
            self.state = self.state if self.state is not None else {}
            owner = self.script.class_of(function)
            for cls in [c for c in self._classes.values() if c.node is owner]:
                made = self.new("instance", cls.node, cls=cls)
                own = Value(refs=frozenset([made]))
                if self.member(cls, "__init__") is not None:
                    self.dunder(own, "__init__", [ANY] * 9, cls.node)
                self.dunder(own, function.name.value, [ANY] * 9, cls.node)
            if owner is None:
                home = self.home_of(function)
                if home is not None:
                    self.run_function(Function(function, home), [], {}, function)

    def home_of(self, function: cst.FunctionDef) -> Frame | None:
        """Return the frame in which ``function`` is defined, if that has been run."""
        for (owner, _), value in (self.state or {}).items():
            for ref in value.refs:
                if isinstance(ref, Function) and ref.node is function and isinstance(owner, Frame):
                    return ref.frame
        return None

    def block(self, body: Any) -> None:
        """Run the statements of a module or a block."""
        for statement in body.body:
            if self.state is None:
                return
            self.statement(statement)

    def statement(self, node: Any) -> None:
        """Run one statement."""
        if isinstance(node, cst.SimpleStatementLine):
            for small in node.body:
                if self.state is not None:
                    self.statement(small)
            return
        if node not in self.script.scopes:
            return  # of a module of the project, that the program does not use
        self.spend(node)
        self.updated = self.updated or node in self.shards.steps
        self.gradients.statement(node)
        if self.is_diverged and self.recording and self.loop is not None:
            inner = (self.loop.node,) if self.loop.inner else ()
            self.diverged_at[node] = (*self.diverged_at.get(node, ()), *self.diverged, *inner)
        method = getattr(self, f"_do_{type(node).__name__}", None)
        looped = isinstance(node, (cst.For, cst.While))
        if looped:
            self._slice(node)
        if method is not None:
            method(node)
        if not looped:
            self._slice(node)
        for name in self.shards.named.get(node, ()):
            if self.state is not None:
                frame = self.home(name) or self.frame
                held = self.state.get((frame, name), ANY)
                self.write((frame, name), Value(Place(Kind.SHARD), refs=held.refs))

    def _slice(self, node: Any) -> None:
        """Let names be this rank's part of the arrays that they hold."""
        for name in self.shards.sliced.get(node, ()):
            first, *rest = name.split(".")
            frame = self.home(first)
            if frame is None or self.state is None:
                continue
            if not rest:
                self.write((frame, first), Value(ENTRY))
            for ref in self.state[frame, first].refs if len(rest) == 1 else ():
                self.write((ref, rest[0]), Value(ENTRY))

    # -- small statements ------------------------------------------------------------------------------------------

    def _do_Expr(self, node: cst.Expr) -> None:  # noqa: N802 - libcst's names
        if node not in self.shards.steps:
            self.eval(node.value)
            return
        called: cst.BaseExpression = node.value  # weights.mul_(decay).add_(update): weights, by all ranks' gradients
        while isinstance(called, cst.Call) and isinstance(called.func, cst.Attribute):
            for arg in called.args:
                self.eval(arg.value)
            called = called.func.value
        self.eval(called)

    def _do_Assign(self, node: cst.Assign) -> None:  # noqa: N802
        value = self.eval(node.value)
        if node in self.shards.steps:
            return  # weights, by gradients that are those of all ranks
        for place in (t.target for t in node.targets if self.loop is not None):
            if isinstance(place, cst.Subscript) and self._lacked(place, node):
                value = self.kept_by_key(value, node.value, key_of(self.index_of(place).const))
        for target in node.targets:
            self.assign(target.target, value, node.value)

    def _lacked(self, target: cst.Subscript, node: cst.Assign) -> bool:
        """Tell whether ``target`` is bound where it is not there yet: ``if k not in meters: meters[k] = Meter()``."""
        block = self.script.parents[self.script.parents[node]]
        up = self.script.parents[block]
        if isinstance(up, cst.ExceptHandler):
            return up.type is not None and dotted(up.type) == "KeyError"
        if not isinstance(up, cst.If) or up.body is not block or not isinstance(up.test, cst.Comparison):
            return False
        asked, how = up.test.left, up.test.comparisons[0]
        if isinstance(how.operator, cst.NotIn):
            return self.script.code(how.comparator) == self.script.code(target.value)
        none = isinstance(how.operator, cst.Is) and dotted(how.comparator) == "None"
        got = isinstance(asked, cst.Call) and dotted(asked.func).endswith(".get")
        return none and (got or any(t.target.deep_equals(asked) for t in node.targets))

    def _do_AnnAssign(self, node: cst.AnnAssign) -> None:  # noqa: N802
        if node.value is not None:
            self.assign(node.target, self.eval(node.value), node.value)

    def _do_AugAssign(self, node: cst.AugAssign) -> None:  # noqa: N802
        target: Any = node.target
        self.key_of_iteration(target)
        old = self.eval(target)
        given = self.eval(node.value)
        if node in self.shards.steps:
            return
        if isinstance(node.operator, cst.AddAssign) and isinstance(node.value, cst.BinaryOperation):
            given = self.row_of_iteration(node.value, given, False)  # (i + 1) * loss
        of = self.array_of(target.value) if isinstance(target, cst.Subscript) else old
        if of.of and not (old.scalar and isinstance(target, cst.Name)):
            self.lose_shared(of, target)
        if self._in_place(node, old, given):
            return
        result = self.operated(node.operator, old, given, node)
        self.assign(target, self._counted_on(target, result), node.value)

    def _counted_on(self, target: cst.BaseExpression, result: Value) -> Value:
        """Return what a step in a loop over a shard leaves of a number that was taken for one on all ranks.

        It is one, but not the serial one: ``if chance > 0.1: chance -= 0.01`` came by in 1/n of the iterations.
        """
        name = target.value if isinstance(target, cst.Name) else ""
        at = (self.home(name), name) if isinstance(name, str) and name else None
        if self.loop is None or self.shards.parts or at is None or not self.hoped.get(at):
            return result
        test = next((up.test for up in self.script.above(target) if isinstance(up, cst.If)), None)
        asked = [n for n in walk(test) if isinstance(n, cst.Name)] if test is not None else []
        others = [n for n in asked if n.value != name and not isinstance(self.script.parents[n], cst.Attribute)]
        alone = len(asked) > len(others) and all(self.seen_last(n).const is not NOTHING for n in others)
        return result.at(MIXED) if alone and result.place == SAME and result.scalar else result

    def _in_place(self, node: cst.AugAssign, old: Value, given: Value) -> bool:
        """Carry out ``losses += [x]``, ``seen |= set(i)``, ``tensor += x``; tell whether it is one of them."""
        owners = [ref for ref in old.refs if isinstance(ref, Obj) and ref.cls is None]
        if not owners or len(owners) < len(old.refs) or any(map(_is_constant, owners)):
            return False
        for ref in owners:
            if ref.kind == "foreign":
                held = self.read((ref, CONTENT)) or ANY
                result = self.operated(node.operator, Value(held.place, zero=held.zero), given, node)
                at = self.index_of(node.target) if isinstance(node.target, cst.Subscript) else ANY
                self.write((ref, CONTENT), Value(self._under(at, result.place), zero=result.zero))
            elif ref.name == "counter" and not isinstance(node.operator, cst.AddAssign) and self.loop is not None:
                text = "each rank has the union, or the difference, of its own counts"
                self.write((ref, REST), Value(unknown(node, text, (ref, REST))))
            elif ref.kind == "dict":
                self._update(ref, given)
            else:
                self.extend(ref, given, node.value)
        return True

    def assign(self, target: cst.BaseExpression, value: Value, source: cst.BaseExpression | None = None) -> None:
        """Bind ``target`` to ``value``."""
        if isinstance(target, cst.Name):
            frame = self.frame.declared.get(target.value, self.frame)
            self.note(target, value)
            if self._emptied((frame, target.value), value, source) or self._renewed(
                (frame, target.value), value, source
            ):
                return
            value = self._trimmed((frame, target.value), value)
            self.write((frame, target.value), self._guarded((frame, target.value), value, source))
        elif isinstance(target, (cst.Tuple, cst.List)):
            self._unpack(target, value, source)
        elif isinstance(target, cst.StarredElement):
            self.assign(target.value, Value(self.content(value)))
        elif isinstance(target, cst.Attribute):
            self.note_steering(target.attr.value, value, source)
            owner = self.eval(target.value)
            own = next(iter(owner.refs)) if len(owner.refs) == 1 else None
            at = (own, target.attr.value)
            if isinstance(own, Obj) and (self._emptied(at, value, source) or self._renewed(at, value, source)):
                return
            for ref in owner.refs:
                value = self._trimmed((ref, target.attr.value), value)
                value = self._guarded((ref, target.attr.value), value, source)
            self.set_attribute(owner, target.attr.value, value, target)
        elif isinstance(target, cst.Subscript):
            self._store(target, value, source)

    def _unpack(self, target: cst.Tuple | cst.List, value: Value, source: cst.BaseExpression | None) -> None:
        value = self.iterated(value, target)
        beside = source.elements if isinstance(source, cst.Tuple) else ()
        starred = any(isinstance(e, cst.StarredElement) for e in target.elements)
        objects = starred and bool(self.objects_in([value]))
        for i, element in enumerate(target.elements):
            if objects and isinstance(element, cst.StarredElement):
                part = self.objects_of([value], element) or ANY
            elif objects and value.items is None:
                part = self.entries(value)
            elif value.items is not None and not starred and i < len(value.items):
                part = self.of_chosen(value, value.items[i])
            elif (value.refs or value.name == "size") and not starred:
                part = self.entry(value, Value(const=i))
            else:
                part = Value(ENTRY if value.place.kind is Kind.SHARD else combine([self.content(value)]))
            self.assign(element.value, part, beside[i].value if i < len(beside) else None)

    def _emptied(self, at: Location, value: Value, source: cst.CSTNode | None) -> bool:
        """Empty the list that a location holds, where it gets a new one that is: ``window = deque()``; tell whether."""
        state, made = self.state or {}, set(value.refs)
        kinds = {ref.kind for ref in made if isinstance(ref, Obj) and ref.site is source}
        if self.loop is None or not kinds & {"list", "deque", "set"} or not value.zero:
            return False
        grown = [(ref, GROWN) for ref in state.get(at, ANY).refs - made if isinstance(ref, Obj) and ref.kind in kinds]
        others = [where for where, held in state.items() if where != at and any(ref in held.refs for ref, _ in grown)]
        if len(grown) != 1 or others or not all(self._goes_on(state.get(each)) for each in grown):
            return False
        for ref, _ in grown:
            self.clear(ref)
        return True

    def _renewed(self, at: Location, value: Value, source: cst.BaseExpression | None) -> bool:
        """Set back the object that a location holds, where it gets a new one of its class: ``meter = Meter()``."""
        state, made = self.state or {}, next(iter(value.refs), None)
        if self.loop is None or not isinstance(made, Obj) or len(value.refs) != 1 or made.site is not source:
            return False
        olds = [ref for ref in state.get(at, ANY).refs if ref is not made]
        old = olds[0] if len(olds) == 1 else None
        alike = isinstance(old, Obj) and (old.kind, old.cls, old.name) == (made.kind, made.cls, made.name)
        known = made.cls is not None if made.kind == "instance" else made.kind == "foreign" and bool(made.name)
        if not isinstance(old, Obj) or not (alike and known):
            return False
        if any(where != at and ref in held.refs for where, held in state.items() for ref in (old, made)):
            return False
        for name, held in self.fields(made):
            site = next((ref.site for ref in held.refs if isinstance(ref, Obj)), None)
            if not self._emptied((old, name), held, site):
                self.write((old, name), held)
        return True

    @staticmethod
    def _goes_on(held: Value | None) -> bool:
        """Tell whether a list goes on from iteration to iteration of a loop over a shard."""
        return held is not None and (held.place.kind is Kind.RUN or "fires" in held.place.adds)

    def _trimmed(self, at: Location, value: Value) -> Value:
        """Return ``value``, marked where a location keeps but a part of what it held: ``recent = recent[-100:]``."""
        if value.name != "cut" or self.loop is None:
            return value
        held = (self.state or {}).get(at, ANY)
        runs = [value.place, *((self.state or {})[grown].place for grown in self.grown(value))]
        own = [p for p in runs if p.at == at or (isinstance(p.at, tuple) and p.at[0] in held.refs)]
        return Value(replace(trimmed(own[0]), at=at)) if own else replace(value, name="")

    def _guarded(self, at: Any, value: Value, source: cst.BaseExpression | None) -> Value:
        """Return ``value``, as an extreme where a test has found it to be one: ``if v > best: best = v``."""
        for where, what, text in self.guards:
            if where == at and source is not None and self.script.code(source) == text:
                alike = self.shards.parts and not self.is_diverged  # that of the iteration: see ``_forced``
                return value.at(
                    Place(Kind.RUN, at, frozenset({"same"})) if alike else Place(Kind.EXTREME, at, frozenset({what}))
                )
        return value

    def _store(self, target: cst.Subscript, value: Value, source: cst.BaseExpression | None) -> None:
        index = self.index_of(target)
        if isinstance(index.const, str) and (space := self.namespace(target.value)) is not None:
            self.set_attribute(space, index.const, value, target)
            return
        owner = self.array_of(target.value)
        index, value = self._placed(target, owner, index, value)
        if owner.of and not self.content(value).uniform:
            self.lose_shared(owner, target)
        if self.loop is not None and not owner.refs and owner.items is None and isinstance(target.value, cst.Subscript):
            self._store_inside(target.value, index, value)
            return
        key = key_of(key_in(index))
        self.note_steering(index.const, value, source)
        self.note(target, value)
        for ref in owner.refs:
            if isinstance(ref, Method):
                self._store_by(ref, value, target, source)
            if not isinstance(ref, Obj):
                continue
            if ref.kind == "instance" or (ref.cls is not None and self.member(ref.cls, "__setitem__") is not None):
                if self.dunder(Value(refs=frozenset([ref])), "__setitem__", [index, value], target) is None:
                    self.store_entry(ref, key, index, value, target)
            elif ref.kind == "foreign":
                array = ref.name.partition(".")[0] in ("", "numpy", "torch", "tensorflow", "keras", "jax")
                if self.loop is None and source is not None and not value.scalar and not array:
                    # A library's object may write what it is given into a file.
                    self._sink(target, of=source)  # type: ignore[arg-type]
                self._store_foreign(ref, index, value if self.loop is not None else self.row(source, value), target)
            elif index.name == "slice" and ref.kind in ("list", "deque"):
                self.store_entry(ref, None, index, self.entries(value), target)
            else:
                named = self.from_end(ref, key)
                self.note_key(ref, target, index)
                value = self._guarded((ref, named or REST), value, source)
                self.store_entry(ref, named, index, value, target)

    def _store_inside(self, entry: cst.Subscript, index: Value, value: Value) -> None:
        """Keep ``value`` in an array that a dict or list holds: ``sums[label][0] += 1``."""
        for ref in self.eval(entry.value).refs:
            if not isinstance(ref, Obj) or ref.kind not in ("dict", "list"):
                continue
            at = (ref, key_of(key_in(self.index_of(entry))) or REST)
            held = (self.state or {}).get(at)
            if held is None or (self.content(value).uniform and value.place.kind is not Kind.RUN):
                continue
            sums = value.place.kind is Kind.RUN and held.place.kind is Kind.RUN and value.place.at == held.place.at
            lost = unknown(entry, "each rank sets entries of arrays in it", at)
            added = replace(held.place, adds=held.place.adds | self._under(index, value.place).adds)
            self.write(at, held.at(added if sums else lost))

    def _placed(self, target: cst.Subscript, owner: Value, index: Value, value: Value) -> tuple[Value, Value]:
        """Return a place and what is stored there; unknown where ranks store by numbers of their own iterations.

        At a cadence the number is made the serial one: ``curve[step] = evaluate()``. Of an array of this iteration's
        own each rank has another, wherever it stores.
        """
        if self.loop is None or any(isinstance(each.slice, cst.Slice) for each in target.slice):
            return index, value
        if (row := self._counted_row(target)) is not None and not self.cadenced:
            return index, self._misplaced(target, value, f"{self.script.code(row)} counts this rank's own")
        if self.shards.parts and len(target.slice) == 1 and isinstance(key := target.slice[0].slice, cst.Index):
            place = self.content(index)
            if index.scalar and place.kind is Kind.ENTRY and not (self.is_diverged or self.shards.episodes):
                if place != parts.SUMMED:
                    where = f"{self.script.code(target)}, is that of a number of this rank's part"
                    return index, self._misplaced(target, value, where)
                return self.key_of_parts(key.value, index), value
            return index, value
        if self.loop.whole is not None or self.shards.parts:
            return index, value
        keys = [index, *(index.items or ())]
        drawn = any(part.place.kind is Kind.CLOCK or part.name == "chance" for part in keys)
        counts = any(part.place.kind in (Kind.COUNT, Kind.INDEX) or part.place.counts for part in keys)
        arrays = any(isinstance(ref, Obj) and ref.kind == "foreign" for ref in owner.refs)
        counts = (
            counts and not arrays
        ) or index.name == "undivided"  # arrays as long as a shard: see ``_store_foreign``
        asked = target.slice[0].slice
        if counts and self.cadenced and isinstance(asked, cst.Index) and index.scalar and index.name != "undivided":
            self.by_serial_steps.update(owner.refs)
            return self.restore(asked.value, index), value
        if counts and not drawn and not self.cadenced:
            index = self.as_key(target, owner, index)
            keys = [index, *(index.items or ())]
            counts = any(part.place.kind in (Kind.COUNT, Kind.INDEX) or part.place.counts for part in keys)
        if not (counts or drawn):
            return index, value
        if arrays and not any(isinstance(ref, Obj) and self._is_older(ref) for ref in owner.refs):
            return index, value.at(ENTRY) if value.place.uniform else value  # of an array of this iteration's own
        why = "is drawn on each rank" if drawn else "follows this rank's iterations"
        return index, self._misplaced(target, value, f"{self.script.code(target)}, {why}")

    def _misplaced(self, target: cst.Subscript, value: Value, where: str) -> Value:
        """Return what is stored at a place that is another one in the serial script."""
        lost = unknown(target, f"the place that it is stored at, {where}")
        return replace(value, place=lost, const=NOTHING, items=None, refs=frozenset())

    def _counted_row(self, target: cst.Subscript) -> cst.BaseExpression | None:
        """Return the number so far by which ``target`` names an entry of a dict or list: ``rows[len(rows)]["x"]``."""
        node: cst.BaseExpression = target
        while isinstance(node, cst.Subscript):
            asked = node.slice[0].slice
            held = [ref for ref in self.eval(node.value).refs if isinstance(ref, Obj)]
            if isinstance(asked, cst.Index) and any(ref.kind in ("dict", "list") for ref in held):
                index = self.index_of(node)
                place = self.content(index)
                counts = place.kind in (Kind.RUN, Kind.MIX) and not place.counts
                if counts or index.name in map(length_of, held):
                    return asked.value
            node = node.value
        return None

    def _store_by(self, by: Method, value: Value, target: cst.Subscript, source: cst.BaseExpression | None) -> None:
        """Keep ``value`` by what a library's object offers for that: ``table.loc[len(table)] = loss``."""
        owner, value = self.script.code(target.value), self.at_cadence(source, value)
        again = source is not None and (
            owner in self.script.code(source) or isinstance(self._line(target), cst.AugAssign)
        )
        root = next((n for n in walk(target.value) if isinstance(n, cst.Name)), target)
        counts = again and not self.cadenced
        ramped = source is not None and any(n in self.shards.ramped for n in walk(source))  # the rate of a group
        if self.loop is None or ramped or self.shards.kind(root) or (self.content(value).uniform and not counts):
            return
        text = f"{owner}[] keeps what each rank stores there"
        for ref in by.receiver.refs:
            if isinstance(ref, Obj) and ref.kind == "foreign":
                self.write((ref, CONTENT), Value(unknown(target, text, (ref, CONTENT))))

    def _line(self, node: cst.CSTNode) -> cst.CSTNode:
        return self.script.parents.get(node, node)

    def array_of(self, node: cst.BaseExpression) -> Value:
        """Return what a store into ``node`` changes: of an entry of an array, as ``cm[t]`` of ``cm``, the array.

        So does one into what shares its memory: ``grid.view(-1)[i] = x``.
        """
        while isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute) and node.func.attr.value in VIEWS:
            node = node.func.value
        owner = self.eval(node)
        while not owner.refs and isinstance(node, cst.Subscript):
            node = node.value
            outer = self.eval(node)
            if outer.refs and all(isinstance(r, Obj) and r.kind == "foreign" for r in outer.refs):
                return outer
        return owner

    def store_entry(self, ref: Obj, key: str | None, index: Value, value: Value, target: cst.CSTNode) -> None:
        """Keep ``value`` in a container: of a sum that is set to itself and an entry, what is added."""
        if (ref, key) not in (self.state or {}) and value.place.kind is Kind.RUN and value.place.at == (ref, REST):
            key = None  # sums["loss"] += loss, where all that is known of its keys is that they have names
        by_sample = key is None and self.loop is not None and self.content(index).kind is Kind.ENTRY
        before = by_sample and self._is_older(ref)
        if before and value.place.kind is Kind.SAME and not value.refs:  # seen[label] = True
            text = "each rank sets other entries of it, by its own samples"
            value = value.at(ENTRY if ref.kind == "dict" else unknown(target, text, (ref, REST)))
        elif before and value.refs and ref.kind == "dict":
            value = self._made_for_key(value)
        elif by_sample and not before and self.shards.parts and ref.kind in ("dict", "list"):
            self.samples_in[ref] = samples.MIXED  # of a part
        at = (ref, key or REST)
        held = (self.state or {}).get(at)
        if key is None and held is not None and held.place.kind is Kind.RUN:
            sums = value.place.kind is Kind.RUN and value.place.at == held.place.at
            if sums or value.place.kind is Kind.ENTRY:
                place = self._under(index, value.place)
                adds = place.adds if sums else self._stored(index, value)
                stored = Place(Kind.RUN, held.place.at, held.place.adds | adds)
                self.write(at, Value(stored, refs=held.refs | value.refs, scalar=one_more(held, value)))
                return
        self.put(ref, key, value)

    def _made_for_key(self, value: Value) -> Value:
        """Return what an iteration makes of its samples, and keeps under a key of theirs: ``best[label] = [p, i]``.

        A list of known entries is as a tuple of them; another object that holds local numbers is an entry itself.
        """
        refs, place = [ref for ref in value.refs if isinstance(ref, Obj)], self.content(value)
        if place.uniform or any(map(self._is_older, refs)):
            return value
        if len(refs) == len(value.refs) == 1 and value.items is None and self.is_row(refs[0], self.state or {}):
            entries = (self.read((refs[0], f"[{i}]")) for i in range(len(self.fields(refs[0]))))
            items = tuple(entry for entry in entries if entry is not None)
            return Value(place) if place.kind is Kind.ENTRY else Value(items=items, name="tuple")
        return value.at(place) if place.kind is Kind.ENTRY else value

    def _is_older(self, ref: Obj) -> bool:
        """Tell whether an object was there before this iteration, as far as the place tells that makes it."""
        inside = self.loop is not None and self.script.inside(ref.site, self.loop.node)
        return not inside and any((ref, name) in self.begun for name in self.keys.get(ref, ()))

    def _under(self, index: Value, place: Place) -> Place:
        """Return the placement of a run to which ranks add under ``index``: of a part each under another number."""
        if self.content(index).uniform:
            return place
        if self._is_of_part(index) and place.kind is Kind.RUN:
            return replace(place, adds=place.adds | {"bent"})  # by_hits[hits] += 1
        return self.counted(place)

    def _is_of_part(self, index: Value) -> bool:
        """Tell whether ``index`` is one number of this rank's part of a batch, and of no single sample."""
        within = self.loop is not None and not self.is_diverged and self.shards.parts and not self.shards.episodes
        return within and index.scalar is True and index.place.kind is Kind.ENTRY

    def _stored(self, index: Value, value: Value) -> frozenset[str]:
        """Return what an entry adds to a dict: of parts, under a key that all ranks have, its own fold."""
        if self._is_of_part(index):
            return frozenset({"stored", "bent"})
        if not self.shards.parts or not index.place.uniform:
            return frozenset({"stored"})
        return frozenset({parts.added(value.place, self.is_diverged) if value.scalar else "row"})

    def _store_foreign(self, ref: Obj, index: Value, value: Value, target: cst.Subscript) -> None:
        held = self.read((ref, CONTENT)) or ANY
        place = self.content(value)
        if self.cadenced and not self.is_diverged and place.kind is self.content(index).kind is Kind.SAME:
            return  # as often as in the serial script
        if held.place.kind is Kind.RUN:
            if place.kind is Kind.RUN and place.at == held.place.at:
                place = self._under(index, place)
                result = Place(Kind.RUN, held.place.at, held.place.adds | place.adds)
            elif place.kind in (Kind.ENTRY, Kind.SAME):
                by = "stored" if self.content(index).kind is Kind.ENTRY else "placed"
                bounds = [e.slice for e in target.slice if isinstance(e.slice, cst.Slice)]
                if any(b is not None and not self._fixed(b) for s in bounds for b in (s.lower, s.upper)):
                    by = "filled"  # each rank fills the first places with samples of its own
                stored = {by} if place.kind is Kind.ENTRY else {"set"}
                if self.shards.parts and by == "placed" and "summed" in place.adds:
                    stored.add("summed")
                result = Place(Kind.RUN, held.place.at, held.place.adds | stored)
            else:
                result = combine([held.place, place])
            self.write((ref, CONTENT), Value(result, scalar=one_more(held, value)))
        else:
            self.write((ref, CONTENT), Value(combine([held.place, place])))

    def _fixed(self, bound: cst.BaseExpression) -> bool:
        """Tell whether a bound of a slice is the same in each iteration."""
        return self.content(self.seen_last(bound)).kind is Kind.SAME

    def _do_Return(self, node: cst.Return) -> None:  # noqa: N802
        value = self.eval(node.value) if node.value is not None else Value(const=None)
        if self.state is not None:
            self.flows[-1].returns.append((value, self.state))
            self.note_left()
        self.state = None

    def _do_Raise(self, node: cst.Raise) -> None:  # noqa: N802
        if node.exc is not None:
            self.eval(node.exc)
        if self.loop is not None and self.diverged:
            self.raised[by_raise(self.script, node, self.diverged[-1])] = None
        self.state = None

    def _do_Break(self, node: cst.Break) -> None:  # noqa: N802
        if self.state is not None:
            ends = next((up for up in self.script.above(node) if isinstance(up, (cst.For, cst.While))), None)
            over = self.loop is not None and self.loop.node is ends
            left_early = over and ends in self.shards.training and not self.updated
            changed = {
                at: replace(value, place=replace(INDEX, at="bent"))
                for at, value in self.state.items()
                if left_early and value.place == INDEX and self.begun.get(at) != value
            }
            self.flows[-1].breaks.append(self.state | changed)
            self.note_left()
        self.state = None

    def _do_Continue(self, node: cst.Continue) -> None:  # noqa: N802
        if self.state is not None:
            self.flows[-1].continues.append(self.state)
        self.state = None

    def _do_Assert(self, node: cst.Assert) -> None:  # noqa: N802
        if not self.content(self.eval(node.test)).uniform and self.loop is not None:
            self.raised[by_assert(node.test)] = None

    def _do_Del(self, node: cst.Del) -> None:  # noqa: N802
        if isinstance(node.target, cst.Name) and self.state is not None:
            self.state.pop((self.frame, node.target.value), None)
        if isinstance(node.target, cst.Subscript):
            self.trim(self.eval(node.target.value))

    def _do_Global(self, node: cst.Global) -> None:  # noqa: N802
        for item in node.names:
            self.frame.declared[item.name.value] = self.root(self.frame)

    def _do_Nonlocal(self, node: cst.Nonlocal) -> None:  # noqa: N802
        for item in node.names:
            frame = self.frame.parent
            while frame is not None and (frame, item.name.value) not in (self.state or {}):
                frame = frame.parent
            if frame is not None:
                self.frame.declared[item.name.value] = frame

    def _do_Import(self, node: cst.Import) -> None:  # noqa: N802
        for alias in node.names:
            full = dotted(alias.name)
            name = dotted(alias.asname.name) if alias.asname else full.split(".")[0]
            self.write((self.frame, name), self.imported(node, full if alias.asname else name))

    def _do_ImportFrom(self, node: cst.ImportFrom) -> None:  # noqa: N802
        if isinstance(node.names, cst.ImportStar):
            self._import_star(node)
            return
        for alias in node.names:
            name = dotted(alias.asname.name) if alias.asname else dotted(alias.name)
            self.write((self.frame, name), self.imported_name(node, dotted(alias.name)))

    def imported(self, node: cst.CSTNode, name: str) -> Value:
        """Return the module ``name``: one of the project is run at its first import."""
        scope = self.script.scopes[node].root.module(name)
        if scope is None:
            return Value(name=name)
        return Value(refs=frozenset([self.module_of(scope.node)]))

    def imported_name(self, node: cst.ImportFrom, name: str) -> Value:
        """Return what ``from module import name`` brings."""
        module = "." * len(node.relative) + (dotted(node.module) if node.module else "")
        root = self.script.scopes[node].root
        inner = root.module(f"{module}.{name}" if node.module else f"{module}{name}")
        if inner is not None:
            return Value(refs=frozenset([self.module_of(inner.node)]))
        scope = root.module(module) if module else None
        if scope is None:
            return Value(name=f"{module}.{name}".lstrip("."))
        return self.read((self.module_of(scope.node), name)) or ANY

    def _import_star(self, node: cst.ImportFrom) -> None:
        module = "." * len(node.relative) + (dotted(node.module) if node.module else "")
        scope = self.script.scopes[node].root.module(module)
        if scope is not None:
            for name, value in self.fields(self.module_of(scope.node)):
                self.write((self.frame, name), value)

    def module_of(self, tree: Any) -> Frame:
        """Return the frame of a module of the project, which is run at the first import."""
        frame = self._modules.setdefault(tree, Frame(tree, None))
        if frame not in self._importing and not self.fields(frame):  # nor one that imports what imports it
            self._importing.add(frame)
            before, self.frame = self.frame, frame
            self.block(tree)
            self.frame = before
            self._importing.remove(frame)
        return frame

    # -- definitions -----------------------------------------------------------------------------------------------

    def _do_FunctionDef(self, node: cst.FunctionDef) -> None:  # noqa: N802
        self.made_defaults(node)
        value = Value(refs=frozenset([Function(node, self.frame)]))
        name = node.name.value
        for decorator in reversed(node.decorators):
            text = dotted(decorator.decorator)
            if text.endswith(".setter"):
                name = f"{name}.setter"
            elif not isinstance(self.frame.function, cst.ClassDef):
                value = self._decorated(decorator.decorator, value, node)
        self.write((self.frame, name), value)

    def _decorated(self, decorator: cst.BaseExpression, value: Value, node: cst.FunctionDef | cst.ClassDef) -> Value:
        made = self.eval(decorator)
        own = [ref for ref in made.refs if isinstance(ref, (Function, Class, Bound))]
        if not own:
            return value
        result = self.call_value(Value(refs=frozenset(own)), [value], {}, node)  # type: ignore[arg-type]
        return result if result.refs else value

    def _do_ClassDef(self, node: cst.ClassDef) -> None:  # noqa: N802
        bases = tuple(self.eval(base.value) for base in node.bases)
        made = self.new_class(node, node, bases)
        before, self.frame = self.frame, made.body
        self.block(node.body)
        self.frame = before
        value = Value(refs=frozenset([made]))
        for decorator in reversed(node.decorators):
            value = self._decorated(decorator.decorator, value, node)
        self.write((self.frame, node.name.value), value)


def _is_constant(ref: Obj) -> bool:
    """Tell whether an array never changes: ``num = den = tf.zeros(())``; ``num += x`` binds another one."""
    made = ref.name if ref.kind == "foreign" else ""
    return made.startswith(_CONSTANTS) and not made.endswith(("Variable", "TensorArray"))
