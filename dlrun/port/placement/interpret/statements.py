"""Statements: assignments, branches, loops, definitions."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import libcst as cst

from dlrun.port.placement.interpret import whole
from dlrun.port.placement.interpret.loops import Loops
from dlrun.port.placement.interpret.machine import LostError, Tested
from dlrun.port.placement.store import (
    CONTENT,
    GROWN,
    REST,
    Bound,
    Class,
    Frame,
    Function,
    Location,
    Obj,
    State,
    key_of,
    merge,
    merge_diverged,
)
from dlrun.port.placement.values import ANY, ENTRY, NOTHING, SAME, Kind, Place, Quotient, Value, combine, join, trimmed
from dlrun.port.program.script import dotted, walk

_RATES = ("lr", "learning_rate", "momentum", "weight_decay")
_UNROLLED = 8  # entries of a list that is gone through one by one
_ROUNDS = 5  # until a loop that is no loop over a shard changes nothing any more
_ORDERED = {cst.GreaterThan: "max", cst.GreaterThanEqual: "max", cst.LessThan: "min", cst.LessThanEqual: "min"}


def _is_loader(ref: object) -> bool:
    """Tell whether an object is a loader as a library makes it."""
    return isinstance(ref, Obj) and ref.name.endswith("DataLoader")


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
        """Run the functions with training loops that nothing here calls: something out of sight does."""
        for loop in self.shards.training:
            function = self.script.function_of(loop)
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
        if self.apart and self.recording and self.loop is not None:
            inner = (self.loop.node,) if self.loop.inner else ()
            self.apart_at[node] = (*self.apart_at.get(node, ()), *self.diverged, *inner)
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
        self.eval(node.value)

    def _do_Assign(self, node: cst.Assign) -> None:  # noqa: N802
        value = self.eval(node.value)
        if node in self.shards.steps:
            return  # weights, by gradients that are those of all ranks
        for target in node.targets:
            self.assign(target.target, value, node.value)

    def _do_AnnAssign(self, node: cst.AnnAssign) -> None:  # noqa: N802
        if node.value is not None:
            self.assign(node.target, self.eval(node.value), node.value)

    def _do_AugAssign(self, node: cst.AugAssign) -> None:  # noqa: N802
        target: Any = node.target
        old = self.eval(target)
        given = self.eval(node.value)
        if node in self.shards.steps:
            return
        if self._in_place(node, old, given):
            return
        self.assign(target, self.operated(node.operator, old, given, node), node.value)

    def _in_place(self, node: cst.AugAssign, old: Value, given: Value) -> bool:
        """Carry out ``losses += [x]``, ``seen |= set(i)``, ``tensor += x``; tell whether it is one of them."""
        owners = [ref for ref in old.refs if isinstance(ref, Obj) and ref.cls is None]
        if not owners or len(owners) < len(old.refs):
            return False
        for ref in owners:
            if ref.kind == "foreign":
                held = self.read((ref, CONTENT)) or ANY
                result = self.operated(node.operator, Value(held.place, zero=held.zero), given, node)
                at = self.index_of(node.target).place if isinstance(node.target, cst.Subscript) else SAME
                place = result.place if at.uniform else self.counted(result.place)
                self.write((ref, CONTENT), Value(place, zero=result.zero))
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
            if self._emptied((frame, target.value), value, source):
                return
            value = self._trimmed((frame, target.value), value)
            self.write((frame, target.value), self._guarded((frame, target.value), value, source))
        elif isinstance(target, (cst.Tuple, cst.List)):
            self._unpack(target, value, source)
        elif isinstance(target, cst.StarredElement):
            self.assign(target.value, Value(self.content(value)))
        elif isinstance(target, cst.Attribute):
            self._note_steering(target.attr.value, value, source)
            owner = self.eval(target.value)
            own = next(iter(owner.refs)) if len(owner.refs) == 1 else None
            if isinstance(own, Obj) and self._emptied((own, target.attr.value), value, source):
                return
            for ref in owner.refs:
                value = self._trimmed((ref, target.attr.value), value)
                value = self._guarded((ref, target.attr.value), value, source)
            self.set_attribute(owner, target.attr.value, value, target)
        elif isinstance(target, cst.Subscript):
            self._store(target, value, source)

    def _unpack(self, target: cst.Tuple | cst.List, value: Value, source: cst.BaseExpression | None) -> None:
        beside = source.elements if isinstance(source, cst.Tuple) else ()
        starred = any(isinstance(e, cst.StarredElement) for e in target.elements)
        for i, element in enumerate(target.elements):
            if value.items is not None and not starred and i < len(value.items):
                part = value.items[i]
            elif (value.refs or value.name == "size") and not starred:
                part = self.entry(value, Value(const=i))
            else:
                part = Value(ENTRY if value.place.kind is Kind.SHARD else combine([self.content(value)]))
            self.assign(element.value, part, beside[i].value if i < len(beside) else None)

    def _emptied(self, at: Location, value: Value, source: cst.BaseExpression | None) -> bool:
        """Empty the list that a location holds, where it gets a new one that is: ``window = []``; tell whether."""
        state, made = self.state or {}, set(value.refs)
        if self.loop is None or not isinstance(source, cst.List) or source.elements or not value.zero:
            return False
        grown = [(ref, GROWN) for ref in state.get(at, ANY).refs - made if isinstance(ref, Obj) and ref.kind == "list"]
        others = [where for where, held in state.items() if where != at and any(ref in held.refs for ref, _ in grown)]
        if len(grown) != 1 or others or not all(self._goes_on(state.get(each)) for each in grown):
            return False
        for ref, _ in grown:
            self.clear(ref)
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
                return value.at(Place(Kind.EXTREME, at, frozenset({what})))
        return value

    def _store(self, target: cst.Subscript, value: Value, source: cst.BaseExpression | None) -> None:
        owner = self.array_of(target.value)
        index = self.index_of(target)
        key = key_of(index.const)
        self._note_steering(index.const, value, source)
        self.note(target, value)
        for ref in owner.refs:
            if not isinstance(ref, Obj):
                continue
            if ref.kind == "instance" or (ref.cls is not None and self.member(ref.cls, "__setitem__") is not None):
                if self.dunder(Value(refs=frozenset([ref])), "__setitem__", [index, value], target) is None:
                    self.store_entry(ref, key, index, value, target)
            elif ref.kind == "foreign":
                self._store_foreign(ref, index, value, target)
            elif index.name == "slice" and ref.kind in ("list", "deque"):
                self.store_entry(ref, None, index, self.entries(value), target)
            else:
                value = self._guarded((ref, key or REST), value, source)
                self.store_entry(ref, key, index, value, target)

    def array_of(self, node: cst.BaseExpression) -> Value:
        """Return what a store into ``node`` changes: of an entry of an array, as ``cm[t]`` of ``cm``, the array."""
        owner = self.eval(node)
        while not owner.refs and isinstance(node, cst.Subscript):
            node = node.value
            outer = self.eval(node)
            if outer.refs and all(isinstance(r, Obj) and r.kind == "foreign" for r in outer.refs):
                return outer
        return owner

    def _note_steering(self, name: Any, value: Value, source: cst.BaseExpression | None) -> None:
        """Note what a rate is set to in a loop over a shard: it must be the same on all ranks."""
        place = self.content(value)
        apart = not place.uniform or place.kind in (Kind.COUNT, Kind.INDEX) or place.counts
        if self.loop is not None and self.recording and name in _RATES and source is not None and apart:
            self.steered[source] = None

    def store_entry(self, ref: Obj, key: str | None, index: Value, value: Value, target: cst.CSTNode) -> None:
        """Keep ``value`` in a container: of a sum that is set to itself and an entry, what is added."""
        at = (ref, key or REST)
        held = (self.state or {}).get(at)
        if key is None and held is not None and held.place.kind is Kind.RUN:
            sums = value.place.kind is Kind.RUN and value.place.at == held.place.at
            if sums or value.place.kind is Kind.ENTRY:
                place = value.place if index.place.uniform else self.counted(value.place)
                adds = place.adds if sums else frozenset({"stored"})
                self.write(at, Value(Place(Kind.RUN, held.place.at, held.place.adds | adds), refs=held.refs))
                return
        self.put(ref, key, value)

    def _store_foreign(self, ref: Obj, index: Value, value: Value, target: cst.Subscript) -> None:
        held = self.read((ref, CONTENT)) or ANY
        place = self.content(value)
        if held.place.kind is Kind.RUN:
            if place.kind is Kind.RUN and place.at == held.place.at:
                place = place if self.content(index).uniform else self.counted(place)
                result = Place(Kind.RUN, held.place.at, held.place.adds | place.adds)
            elif place.kind in (Kind.ENTRY, Kind.SAME):
                by = "stored" if self.content(index).kind is Kind.ENTRY else "placed"
                bounds = [e.slice for e in target.slice if isinstance(e.slice, cst.Slice)]
                if any(b is not None and not self._fixed(b) for s in bounds for b in (s.lower, s.upper)):
                    by = "filled"  # each rank fills the first places with samples of its own
                result = Place(Kind.RUN, held.place.at, held.place.adds | {by if place.kind is Kind.ENTRY else "set"})
            else:
                result = combine([held.place, place])
            self.write((ref, CONTENT), Value(result))
        else:
            self.write((ref, CONTENT), Value(combine([held.place, place])))

    def _fixed(self, bound: cst.BaseExpression) -> bool:
        """Tell whether a bound of a slice is the same in each iteration."""
        return self.content(self.seen_last(bound)).kind is Kind.SAME

    def _do_Return(self, node: cst.Return) -> None:  # noqa: N802
        value = self.eval(node.value) if node.value is not None else Value(const=None)
        if self.state is not None:
            self.flows[-1].returns.append((value, self.state))
        self.state = None

    def _do_Raise(self, node: cst.Raise) -> None:  # noqa: N802
        if node.exc is not None:
            self.eval(node.exc)
        self.state = None

    def _do_Break(self, node: cst.Break) -> None:  # noqa: N802
        if self.state is not None:
            self.flows[-1].breaks.append(self.state)
        self.state = None

    def _do_Continue(self, node: cst.Continue) -> None:  # noqa: N802
        if self.state is not None:
            self.flows[-1].continues.append(self.state)
        self.state = None

    def _do_Assert(self, node: cst.Assert) -> None:  # noqa: N802
        self.eval(node.test)

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
        new = ("module", tree) not in self._frames
        frame = self.frame_of("module", tree, function=tree, parent=None)
        if new:
            before, self.frame = self.frame, frame
            self.block(tree)
            self.frame = before
        return frame

    # -- definitions -----------------------------------------------------------------------------------------------

    def _do_FunctionDef(self, node: cst.FunctionDef) -> None:  # noqa: N802
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
        body = self.frame_of(node, self.frame, function=node, parent=self.frame)
        before, self.frame = self.frame, body
        self.block(node.body)
        self.frame = before
        key = ("class", node, self.frame)
        made = self._classes.setdefault(key, Class(node, body, bases))
        value = Value(refs=frozenset([made]))
        for decorator in reversed(node.decorators):
            value = self._decorated(decorator.decorator, value, node)
        self.write((self.frame, node.name.value), value)

    # -- branches --------------------------------------------------------------------------------------------------

    def tested(self, node: Any) -> None:
        """Note a test, and whether all ranks come to it together."""
        if self.recording:
            inner = (node,) if self.loop is not None and self.loop.inner else ()
            self.tests.setdefault(node, []).append(Tested(node, self.loop, (*self.diverged, *inner)))

    def _do_If(self, node: cst.If) -> None:  # noqa: N802
        test = self.eval(node.test)
        self.tested(node)
        if test.const is not NOTHING and not isinstance(test.const, (str, bytes)):
            self._branch(node.body if test.const else node.orelse)
            return
        place = SAME if self._filled_together(test) else self.content(test)
        apart = not place.uniform and self.loop is not None and place.kind is not Kind.CLOCK
        lost = self.loop is None and place.kind is Kind.UNKNOWN
        before = self.state
        guards = self._guards_of(node.test) if apart else []
        if guards and self.shards.parts:
            guards, apart = self._forced(node, guards), self.apart
        elif apart and self.of_iteration(node.test):
            apart = False
        if apart:
            self.diverged.append(node.test)
        self.guards += guards
        self.state = dict(before) if before is not None else None
        paced = not apart and self.loop is not None and self._is_cadence(node.test)
        self.cadenced += paced
        self._branch(node.body)
        self.cadenced -= paced
        then = self.state
        del self.guards[len(self.guards) - len(guards) :]
        self.state = dict(before) if before is not None else None
        self._branch(node.orelse)
        if lost and then is not None and self.state is not None:
            self._unknown_since(place, then, self.state)
        if not apart:
            self.state = self._either(before, then, self.state)
            return
        leaves = then is None or self.state is None
        self.state = merge_diverged(then, self.state, node.test)
        if not leaves:  # else the rest is under the test, too
            self.diverged.remove(node.test)

    def _either(self, before: State | None, then: State | None, other: State | None) -> State | None:
        """Return what holds behind a test that all ranks answer alike; what one way alone binds may be unbound."""
        out = merge(then, other)
        if before is None or then is None or other is None or out is None:
            return out
        for one, left in ((then, other), (other, then)):
            for at, value in one.items():
                if isinstance(value.place.at, Quotient) and self._still_mean(at, value.place.at, one, left):
                    out[at] = value
        alone = [at for at in then.keys() ^ other.keys() if at[1] not in (REST, GROWN, CONTENT)]
        known = {ref for value in before.values() for ref in value.refs} if alone else set()
        for at in alone:
            if isinstance(at[0], Frame) or at[0] in known:
                out[at] = replace(out[at], unbound=True)
        return out

    def _still_mean(self, at: Location, quotient: Quotient, updated: State, left: State) -> bool:
        """Tell whether one of two ways updates a mean so far with its sums, and the other leaves all three alone."""
        if at not in left or left[at] is not self.begun.get(at):
            return False
        for part in (quotient.over, quotient.under):
            held = left.get(part.at)
            alone = held is not None and held.place.untouched and held.place.at == part.at
            if not alone or updated[part.at].place != part:
                return False
        return True

    def _filled_together(self, test: Value) -> bool:
        """Tell whether ``test`` is a list to which all ranks add in each iteration: it is filled on all, or on none."""
        lists = [at for at in self.grown(test) if at[0].kind in ("list", "deque")]
        known = self.state or {}
        return bool(lists) and all(known[at].place.adds <= {"entry", "same", "part"} for at in lists)

    def _forced(self, node: cst.If, guards: list[tuple[Any, str, str]]) -> list[tuple[Any, str, str]]:
        """Let the numbers that a test compares with extremes, and what it keeps of them, be those of the iteration."""
        texts = {text for _, _, text in guards}
        for n in walk(node):
            if isinstance(n, cst.BaseExpression) and self.script.code(n) in texts:
                self.force(n, self.eval(n))
        return guards

    def _is_cadence(self, test: cst.BaseExpression) -> bool:
        """Tell whether a test asks for every so many steps, of which n ranks take 1/n."""
        rests = [n for n in walk(test) if isinstance(n, cst.BinaryOperation) and isinstance(n.operator, cst.Modulo)]
        return any(n in self.shards.divided for rest in rests for n in walk(rest.right))

    def _unknown_since(self, place: Place, then: State, other: State) -> None:
        """Make unknown what a test that the ranks may answer differently sets in one of two ways."""
        for at in {*then, *other}:
            a, b = then.get(at), other.get(at)
            if a is not b and a != b:
                then[at] = other[at] = (a or b or ANY).at(place)

    def _branch(self, body: Any) -> None:
        if body is None:
            return
        if isinstance(body, cst.If):
            self.statement(body)
        elif isinstance(body, cst.Else):
            self.block(body.body)
        else:
            self.block(body)

    def _guards_of(self, test: cst.BaseExpression) -> list[tuple[Any, str, str]]:
        """Return the locations that ``test`` compares entries with: of ``v > best`` best, max and the text of v."""
        found: list[tuple[Any, str, str]] = []
        sides: list[cst.BaseExpression] = [test]
        if isinstance(test, cst.BooleanOperation) and isinstance(test.operator, cst.Or):
            sides = [test.left, test.right]
        for each in sides:
            if not isinstance(each, cst.Comparison) or len(each.comparisons) != 1:
                continue
            what = _ORDERED.get(type(each.comparisons[0].operator))
            left, right = each.left, each.comparisons[0].comparator
            for value, best, order in (
                (left, right, what),
                (right, left, {"max": "min", "min": "max"}.get(what or "")),
            ):
                held = self.eval(best)
                place = held.place
                so_far = place.untouched or (place.kind is Kind.EXTREME and place.adds == {order})
                if order and so_far and self.content(self.eval(value)).kind is Kind.ENTRY:
                    found.append((held.place.at, order, self.script.code(value)))
        return found

    def _do_With(self, node: cst.With) -> None:  # noqa: N802
        for item in node.items:
            value = self.eval(item.item)
            if item.asname is not None:
                entered = self.dunder(value, "__enter__", [], item)
                self.assign(item.asname.name, entered if entered is not None else value)
        self.block(node.body)

    def _do_Try(self, node: cst.Try) -> None:  # noqa: N802
        before = dict(self.state or {})
        self.block(node.body)
        if node.orelse is not None and self.state is not None:
            self.block(node.orelse.body)
        after = self.state
        for handler in node.handlers:
            self.state = merge(dict(before), after)
            if handler.name is not None:
                self.assign(handler.name.name, ANY)
            passes = (
                handler.type is not None and dotted(handler.type).endswith("StopIteration") and self.loop is not None
            )
            self.cadenced += passes  # a share ends as often as the serial script's data: epoch += 1
            self.block(handler.body)
            self.cadenced -= passes
            after = merge(after, self.state)
        self.state = after
        if node.finalbody is not None and self.state is not None:
            self.block(node.finalbody.body)

    def _do_Match(self, node: cst.Match) -> None:  # noqa: N802
        subject = self.eval(node.subject)
        before, after = self.state, None
        for case in node.cases:
            self.state = dict(before) if before is not None else None
            for name in _captured(case.pattern):
                self.assign(name, self.entries(subject) if subject.refs or subject.items else subject)
            if case.guard is not None:
                self.eval(case.guard)
            self.block(case.body)
            after = merge(after, self.state)
        self.state = merge(before, after)

    # -- loops -----------------------------------------------------------------------------------------------------

    def _do_For(self, node: cst.For) -> None:  # noqa: N802
        over = self.eval(node.iter)
        own = over.place.kind is Kind.SHARD
        source = whole.source(self, node) if own else None
        if source is not None:
            whole.begins(self, node, source)
        dealt = node in self.shards.loops and not self._whole(node, over) and node not in self.around
        if own and self.loop is not None and not self.loop.own and source is None:
            self.around.add(self.loop.node)  # it steps behind a loop over a shard, which is the one to be solved
        if self.loop is None and (own or dealt):
            names = [n for n in walk(node.iter) if isinstance(n, (cst.Name, cst.Attribute))]
            over_it = [n for n in names if any(v.place.kind is Kind.SHARD for v in self.seen.get(n, ()))]
            if over.name == "drawn":
                self.nameless.add(node)
            elif over_it:
                self.over[node] = over_it[0]
            self.over_shard(
                node, lambda: self.assign(node.target, whole.numbered(self, self._drawn(node, over))), own, source
            )
        else:
            if not own:
                self.plain_loops.add(node)
            items = self._zipped(node.iter) if node.iter in self.zipped else self._listed(over)
            if items is not None:
                self._unrolled(node, items)
            else:
                local = self.loop is not None and (not self.content(over).uniform or node in self.shards.plays)
                before = dict(self.state or {})
                self.until_stable(node, lambda: self.assign(node.target, self.iterate(node.iter, over)), local)
                if node in self.shards.noisy and self.loop is None and self.state is not None:
                    self.averaged(node, before)
        if node.orelse is not None and self.state is not None:
            self.block(node.orelse.body)

    def _whole(self, node: cst.For, over: Value) -> bool:
        """Tell whether a loop goes through loaders that are not sharded: one that evaluates by the same function."""
        if over.refs and all(map(_is_loader, over.refs)):
            return True
        named = [n for n in walk(node.iter) if isinstance(n, (cst.Name, cst.Attribute)) and n in self.script.scopes]
        with self.unrecorded():  # enumerate(loader), tqdm(loader)
            given = [self.eval(n) for n in named] if over.place.kind is not Kind.SHARD else []
        loaders = [v for v in given if any(map(_is_loader, v.refs))]
        return bool(loaders) and all(_is_loader(r) for v in loaders for r in v.refs)

    def _listed(self, over: Value) -> list[Value] | None:
        """Return the entries of a tuple or list that are all known, in order."""
        if over.items is not None and over.name != "parallel":
            return list(over.items)
        ref = next(iter(over.refs), None)
        if len(over.refs) == 1 and isinstance(ref, Obj) and ref.kind == "dict":
            keys = self.known_keys(ref)
            return keys if keys and len(keys) <= _UNROLLED else None
        if len(over.refs) != 1 or not isinstance(ref, Obj) or ref.kind not in ("list", "deque"):
            return None
        fields = dict(self.fields(ref))
        if any(k in fields and fields[k].name != "empty" for k in (REST, GROWN)):
            return None
        known = [k for k in fields if k[1:-1].isdigit()]
        return [fields[k] for k in known] if 0 < len(known) <= _UNROLLED else None

    def _zipped(self, over: cst.BaseExpression) -> list[Value] | None:
        """Return the entries side by side of tuples and lists whose entries are all known."""
        sides = [self._listed(value) for value in self.zipped.get(over, ())]
        if not sides or any(side is None for side in sides):
            return None
        rows = list(zip(*(side for side in sides if side is not None), strict=False))
        return [Value(items=row) for row in rows] if 0 < len(rows) <= _UNROLLED else None

    def _unrolled(self, node: cst.For, items: list[Value]) -> None:
        """Run a loop over entries that are all known, one by one."""
        flows = self.flows[-1]
        outer = (flows.breaks, flows.continues)
        flows.breaks, flows.continues = [], []
        diverged = len(self.diverged)
        known = set(self.state or ())
        for item in items:
            for at in [at for at in self.state or () if at not in known and isinstance(at[0], Frame)]:
                self.state[at] = replace(self.state[at], late=True)  # type: ignore[index]
            self.assign(node.target, item)
            if self.state is not None:
                self.block(node.body)
            for state in flows.continues:
                self.state = merge(self.state, state)
            flows.continues = []
            if self.state is None:
                break
        for state in flows.breaks:
            self.state = merge(self.state, state)
        flows.breaks, flows.continues = outer
        del self.diverged[diverged:]

    def _drawn(self, node: cst.For, over: Value) -> Value:
        """Return what an iteration of a loop over a shard gets; of one around such a loop what it gets serially."""
        if node in self.around:
            return self.iterate(node.iter, over)
        if over.place.kind is Kind.SHARD:
            got = self.iterate(node.iter, over)
            return got.items[0] if over.name == "range" and got.items else got
        if over.name == "parallel" and over.items:
            return Value(items=(Value(self.index, scalar=True), *over.items[1:]))
        made = [ref.name.rpartition(".")[2] for ref in over.refs if isinstance(ref, Obj)]
        counts = any(name in ("range", "arange", "count") for name in made) or isinstance(node.iter, cst.Call)
        return Value(self.index, scalar=True) if counts else Value(ENTRY)

    def _do_While(self, node: cst.While) -> None:  # noqa: N802
        shard = self.loop is None and node in self.shards.loops

        def ask() -> None:
            test = self.eval(node.test)
            self.tested(node)
            if test.const is not NOTHING and not test.const:
                self.state = None

        if shard:
            self.over_shard(node, ask)
        else:
            self.plain_loops.add(node)
            self.until_stable(node, ask, node in self.shards.plays)
        if node.orelse is not None and self.state is not None:
            self.block(node.orelse.body)

    def until_stable(self, node: Any, begin: Any, local: bool) -> None:
        """Run a loop that is no loop over a shard until nothing changes."""
        before = self.state
        endless = isinstance(node, cst.While) and dotted(node.test) == "True"
        entry, left, out = before, None, before
        diverged = len(self.diverged)
        if self.loop is not None and local:
            self.loop.inner += 1
        self.looping += 1
        self.playing += node in self.shards.plays
        for _ in range(_ROUNDS):
            self.state = dict(entry) if entry is not None else None
            flows = self.flows[-1]
            outer = (flows.breaks, flows.continues)
            flows.breaks, flows.continues = [], []
            begin()
            if self.state is not None:
                self.block(node.body)
            out = self.state
            for state in flows.continues:
                out = merge(out, state)
            left = None
            for state in flows.breaks:
                left = merge(left, state)
            flows.breaks, flows.continues = outer
            new = merge(entry, out)
            if entry is not None and out is not None and new is not None:
                for at in new.keys() - entry.keys():
                    if isinstance(at[0], Frame):
                        new[at] = replace(new[at], late=True)
            if new == entry or out is None:
                entry = new
                break
            entry = new
        self.looping -= 1
        self.playing -= node in self.shards.plays
        del self.diverged[diverged:]
        if self.loop is not None and local:
            self.loop.inner -= 1
        if endless:
            self.state = left
        else:  # a for loop is taken to run at least once
            after = out if isinstance(node, cst.For) and out is not None else entry
            self.state = merge(after, left)


def _captured(pattern: cst.CSTNode) -> list[cst.Name]:
    names: list[cst.Name] = []

    class Find(cst.CSTVisitor):
        def visit_MatchAs(self, node: cst.MatchAs) -> None:  # noqa: N802
            if node.name is not None:
                names.append(node.name)

        def visit_MatchStar(self, node: cst.MatchStar) -> None:  # noqa: N802
            if node.name is not None:
                names.append(node.name)

    pattern.visit(Find())
    return names


__all__ = ["State", "Statements", "join"]
