"""Loops over a shard, solved: what each location carries from iteration to iteration."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import libcst as cst

from dlrun.port.placement.interpret import whole
from dlrun.port.placement.interpret.exits import Exits
from dlrun.port.placement.interpret.machine import Sharded
from dlrun.port.placement.rules import DRAWING
from dlrun.port.placement.store import CONTENT, GROWN, LOCAL, REST, Location, Obj, State, merge
from dlrun.port.placement.values import (
    ANY,
    COUNT,
    EMPTY,
    ENTRY,
    MIXED,
    SAME,
    Kind,
    Place,
    Value,
    earlier,
    join,
    joined,
)
from dlrun.port.program.nodes import begins_at_first

_PASSES = 12
_TRIES = 2
_LISTS = ("list", "set", "deque")


class Loops(Exits):
    """Runs loops over a shard."""

    def until_stable(self, node: Any, begin: Any, local: bool) -> None:
        """Run a loop that is no loop over a shard until nothing changes; see ``control_flow``."""
        raise NotImplementedError

    def over_shard(
        self,
        node: cst.CSTNode,
        begin: Callable[[], None],
        own: bool = False,
        source: cst.CSTNode | None = None,
    ) -> None:
        """Run a loop over a shard: until it is known what each location carries, then once for good."""
        for test in begins_at_first(node):
            self.at_first.add(test)
            self.block(test.body)
        base = self._one_each(dict(self.state or {}))
        self.state = dict(base)
        self._bases.append(base)
        self.loop = loop = Sharded(node, self.frame, len(self.diverged), own, source)
        diverged = len(self.diverged)
        self.sharded[node] = self.frame
        written: dict[Location, None] = {}
        with self.unrecorded():
            for _ in range(2):
                self.writes.append({})
                self._iteration(node, begin, dict(self.state or base))
                written |= self.writes.pop()
        if node in self.around:
            self.state, self.loop = dict(self._bases.pop()), None
            del self.diverged[diverged:]
            self.until_stable(node, begin, False)
            return
        self._of_lists(written, base)
        self._out_of_sight(written, base)
        there = {at[0] for at in base if isinstance(at[0], Obj) and at[0].kind != "instance"}
        for at in [at for at in written if at not in base and at[0] in there]:
            if not self._filled_later(at, base):
                keyed = at[1].startswith("[") and at[1] not in (REST, GROWN)
                base[at] = base.get((at[0], REST), EMPTY) if keyed else EMPTY  # made for keys that are not known
        for at in [at for at in written if at[1] == REST and at in base and at[0] in there]:
            self._filled_later(at, base)
        for at in [at for at in written if at[1] == REST and at in base and base[at].name == "empty"]:
            if (zeros := self.born.get(at)) is not None and zeros.items:
                base[at] = zeros
        self._of_classes(written, base)
        for ref in {at[0]: None for at in written if at[1] == REST and at[0] in there}:
            self._unkeyed(ref, base)
        carried = dict.fromkeys(at for at in written if at in base)
        self._anew = {
            at for at in carried if (now := (self.state or {}).get(at)) is not None and now.refs - base[at].refs
        }
        self._rows = {
            at for at in self._anew if self._is_row(base[at], base) and self._is_row(self.state[at], self.state)
        }
        self._longer = {at for at in carried if self._lengthens(base[at], (self.state or {}).get(at))}
        left: State = self.state or {}
        self._made_for_keys = {
            at for at in carried if at[1] == REST and left[at].refs and left[at].place.kind is Kind.ENTRY
        }
        starts: State = {}
        self._kept_numbers: set[Location] = set()
        optimistic: set[Location] = set()
        hoped, self.hoped = self.hoped, {}
        tried, self._tried = self._tried, []
        begun_anew, self._begun_anew = self._begun_anew, set()
        with self.unrecorded():
            for number in range(_PASSES):
                out = self._iteration(node, begin, self._start(base, carried, starts))
                again = self._not_carried(carried, starts, base, out, number < _PASSES // 2, optimistic)
                if not again:
                    break
            else:
                self.lost = self.lost or node
        self.hoped, self._begun_anew, self._tried = hoped, begun_anew, tried
        self._note_zeros(carried, base)
        out = self._iteration(node, begin, self._start(base, carried, starts))
        del self.diverged[diverged:]
        self.loop, self.whole, self.asked = None, loop.whole, loop.asked
        self.state = self._left(node, base, out) if out is not None else None
        if self.state is not None and self.recording:
            self.names_behind.setdefault(node, []).append({name for owner, name in self.state if owner is self.frame})
        if self.state is not None:
            self.state.update(dict.fromkeys(((library, LOCAL) for library in DRAWING), ANY))
        self._bases.pop()

    def _one_each(self, base: State) -> State:
        """Let one container, or array, stand for those that a location may hold: made in ``__init__``, in ``reset``."""
        for at, value in list(base.items()):
            held = [r for r in value.refs if isinstance(r, Obj) and r.cls is None and r.kind in (*_LISTS, "dict")]
            if len(value.refs) > 1 and not held:
                held = [r for r in value.refs if isinstance(r, Obj) and self._held_here_alone(r, at, base)]
            plain = at[1] not in (REST, GROWN) and len({r.kind for r in held}) == 1
            if len(held) < 2 or len(held) < len(value.refs) or not plain:
                continue
            first, *others = sorted(held, key=lambda r: self.script.line(r.site))
            for key in dict.fromkeys(k for r in others for k in self.keys.get(r, ())):
                for other in others:
                    if (more := base.get((other, key))) is not None:
                        known = base.get((first, key))
                        base[first, key] = more if known is None else join(known, more)
                        self.keys.setdefault(first, {})[key] = None
            base[at] = replace(value, refs=frozenset([first]))
        return base

    def _held_here_alone(self, ref: Obj, at: Location, base: State) -> bool:
        """Tell whether ``ref`` is an array that no other location holds."""
        array = ref.kind == "foreign" and set(self.keys.get(ref, ())) == {CONTENT}
        return array and not any(ref in value.refs for where, value in base.items() if where != at)

    def _note_zeros(self, carried: dict[Location, None], base: State) -> None:
        """Note which locations begin at zero, or empty, each time that the loop is run."""
        before = self.state
        self.state = dict(base)
        for at in carried:
            owner = at[0] if isinstance(at[0], Obj) else None
            if type(first := base[at].const) is int:
                self.begins.setdefault(at, set()).add(first)
            inside = owner is not None and at[1] in (REST, GROWN, CONTENT)
            zero = self._began_empty(owner) if inside and owner is not None else self._is_zero(base[at])
            if not zero:
                self.from_zero.discard(at)
                self._never_zero.add(at)
            elif at not in self._never_zero:
                self.from_zero.add(at)
        self.state = before

    def _iteration(self, node: Any, begin: Callable[[], None], start: State) -> State | None:
        """Run one iteration from ``start``; return what holds behind it, whatever way it went."""
        self.state = start
        self.begun = dict(start)
        self.updated = False
        flows = self.flows[-1]
        outer = (flows.breaks, flows.continues)
        flows.breaks, flows.continues = [], []
        diverged, paces = len(self.diverged), len(self.paces)
        begin()
        if self.state is not None and isinstance(node, (cst.For, cst.While)):  # else a loop in the library
            self.block(node.body)
        out: State | None = self.state
        for state in (*flows.continues, *flows.breaks):
            out = merge(out, state)
        flows.breaks, flows.continues = outer
        del self.diverged[diverged:], self.paces[paces:]
        return out

    def _of_classes(self, written: dict[Location, None], base: State) -> None:
        """Let what iterations set on an object begin as its class has it."""
        for at in [at for at in written if at not in base and isinstance(at[0], Obj) and at[0].cls is not None]:
            if (held := self.member(at[0].cls, at[1]) or self.born.get(at)) is not None:
                base[at] = held  # or as getattr(self, name, 0) takes it to be

    def _of_lists(self, written: dict[Location, None], base: State) -> None:
        """Let what a dict keeps for keys that iterations bring begin as it was given: ``setdefault(name, [0, 0])``."""
        made = {at[0] for at in self.born}
        todo = [at for at in written if at not in base]
        for at in todo:
            held = (self.state or {}).get(at)
            if held is None or not held.refs or not held.refs <= made:
                continue
            base[at] = self.born.get(at, Value(refs=held.refs))
            del written[at]  # there from the first, and the same object in each iteration
            for ref in held.refs:
                self._as_born(ref, written, base)

    def _out_of_sight(self, written: dict[Location, None], base: State) -> None:
        """Let what iterations change of an object out of sight be there from the first: ``total = x.new_zeros(1)``."""
        there = {ref for held in base.values() for ref in held.refs if isinstance(ref, Obj) and ref.kind == "foreign"}
        base.update({at: ANY for at in written if at not in base and at[0] in there and at[1] not in (REST, GROWN)})

    def _as_born(self, ref: Obj, written: dict[Location, None], base: State) -> None:
        """Let an object that iterations make begin as it was made, with what it held then."""
        for name in self.keys.get(ref, ()):
            held = self.born.get((ref, name))
            if held is None:
                continue
            base[ref, name] = held
            if held.refs:
                written.pop((ref, name), None)
            for inner in held.refs:
                if isinstance(inner, Obj):
                    self._as_born(inner, written, base)

    def _filled_later(self, at: Location, base: State) -> bool:
        """Let the lists that iterations put into a dict under new keys be there from the first, and empty.

        Tell whether ``at`` is such a place: ``history.setdefault(name, []).append(loss)``.
        """
        held = (self.state or {}).get(at)
        born = {made for made, _ in self.born}
        refs = [r for r in held.refs if isinstance(r, Obj)] if held is not None else []
        if held is not None and held.place.kind is Kind.ENTRY:
            return False  # made anew for a key
        lists = [r for r in refs if r.kind in _LISTS or (r.kind in ("instance", "dict") and r in born)]
        if at[0].kind != "dict" or at[1] == GROWN or not lists or len(lists) < len(held.refs):  # type: ignore[union-attr]
            return False
        rest = base.get((at[0], REST), EMPTY)
        base[at[0], REST] = join(rest, Value(refs=frozenset(lists), zero=True))
        self.keys.setdefault(at[0], {})[REST] = None
        for ref in lists:
            if ref.kind in _LISTS:
                base.setdefault((ref, GROWN), EMPTY)
            else:
                self._as_born(ref, {}, base)
        return True

    def _unkeyed(self, ref: Obj, base: State) -> None:
        """Keep what an object holds under keys that are known with the rest: an iteration sets any of them."""
        known = [at for at in base if at[0] is ref and at[1].startswith("[") and at[1] not in (REST, GROWN)]
        if known and not any(base[at].refs or base[at].items for at in known):
            held = [base.pop(at) for at in known]
            rest = base.get((ref, REST))
            base[ref, REST] = joined(held if rest is None or rest.name == "empty" else [*held, rest])

    def _start(self, base: State, carried: dict[Location, None], starts: State) -> State:
        """Return the state in which an iteration begins: what is carried stands for itself."""
        state = dict(base)
        for at in carried:
            if at in starts:
                number = at in self._kept_numbers and not self.shards.parts
                state[at] = whole.handed_on(self, at, earlier(starts[at]) if number else starts[at])
                continue
            held = base[at]
            kinds = {ref.kind for ref in held.refs if isinstance(ref, Obj)}
            if held.place.kind is Kind.SHARD:
                state[at] = held
            elif at in self._made_for_keys:
                state[at] = Value(self._carries(at))
            elif held.refs and kinds <= {"foreign"}:
                zero = self._zero(held)
                state[at] = Value(self._carries(at), zero=zero or held.zero, scalar=held.scalar)
            elif held.refs and kinds <= set(_LISTS) and at not in self._rows:
                state[at] = held
                self._grows(held, at, state)
            elif held.refs and self._made_anew(at, held, kinds, carried):
                state[at] = held
                for ref in held.refs:
                    self._fields_carried(ref, at, state)
            elif held.items is not None and not held.refs and at not in self._longer:
                state[at] = replace(held, items=tuple(self._item(at, k, item) for k, item in enumerate(held.items)))
            elif held.refs or (held.items is not None and at not in self._longer):
                state[at] = held
            else:
                longer = "tuple" if held.name == "tuple" else ""
                state[at] = replace(held.at(self._carries(at)), name=longer, items=None)
        for ref in {at[0]: None for at in carried if at[1] == GROWN and isinstance(at[0], Obj)}:
            if (ref, GROWN) not in starts and state[ref, GROWN].place.at is None:
                held = base[ref, GROWN]
                state[ref, GROWN] = Value(Place(Kind.RUN, (ref, GROWN)), refs=held.refs)
        return state

    def _made_anew(self, at: Location, held: Value, kinds: set[str], carried: dict[Location, None]) -> bool:
        """Tell whether iterations bind ``at`` to objects that they make, or change: no mere choice."""
        if kinds == {"instance"}:
            return at in self._anew or any((ref, name) in carried for ref in held.refs for name, _ in self.fields(ref))
        return at in self._rows or (kinds == {"dict"} and at in self._anew)

    def _is_row(self, held: Value, state: State) -> bool:
        """Tell whether a value is a list of entries that are known one by one: ``[seen, 0.0]``."""
        return bool(held.refs) and all(isinstance(ref, Obj) and self.is_row(ref, state) for ref in held.refs)

    @staticmethod
    def _lengthens(before: Value, now: Value | None) -> bool:
        """Tell whether iterations have made a tuple longer: ``losses += (loss,)``."""
        if now is None or before.items is None or before.refs:
            return False
        return now.items is None or len(before.items) < len(now.items)

    def _item(self, at: Location, k: int, held: Value) -> Value:
        """Return an entry of a tuple as an iteration finds it: where it is a number, it stands for itself."""
        plain = not held.refs and held.items is None and held.place.kind in (Kind.SAME, Kind.COUNT)
        return held.at(Place(Kind.RUN, (at[0], f"{at[1]}[{k}]"))) if plain else held

    def _grows(self, held: Value, at: Any, state: State) -> None:
        for ref in held.refs:
            state[ref, GROWN] = Value(Place(Kind.RUN, at))
            self.keys.setdefault(ref, {})[GROWN] = None

    def _fields_carried(self, ref: Obj, at: Location, state: State) -> None:
        """Let the fields of an object carry, to which a name is bound anew in each iteration: ``stats = stats + x``."""
        for name, held in self.fields(ref):
            held = state.get((ref, name), held)
            kinds = {r.kind for r in held.refs if isinstance(r, Obj)}
            if held.refs and kinds <= set(_LISTS):
                self._grows(held, (at, name), state)
            elif not held.refs and held.items is None and held.place.kind in (Kind.SAME, Kind.COUNT):
                state[ref, name] = replace(held.at(Place(Kind.RUN, (at, name))), name="")
                if self._is_zero(held):
                    self.from_zero.add((at, name))

    def _carries(self, at: Location) -> Place:
        return Place(Kind.RUN, at, counts=at in self._counting)

    def _not_carried(
        self,
        carried: dict[Location, None],
        starts: State,
        base: State,
        out: State | None,
        early: bool,
        tried: set[Location],
    ) -> bool:
        """Find the locations that are set anew in each iteration; tell whether there are more than were known.

        What is made of a location that turns out to be set anew is looked at once more without it, if it is ``early``.
        """
        more, anew, known_before = False, False, set(starts)
        self.state = out
        for at in carried:
            value = (out or {}).get(at)
            if value is not None and (hope := self._hoped_uniform(at, value, base[at])) is not None:
                if hope:
                    starts[at] = base[at]
                else:
                    starts.pop(at, None)
                more = True
                continue
            if value is not None and value.place.untouched and value.place.at == at and not value.refs:
                start = Value(base[at].place, scalar=base[at].scalar)  # set to what all ranks hold, if at all
                more = more or starts.get(at) != start
                starts[at] = start
                continue
            if value is not None and value.place.adds == {"scaled"} and value.place.at == at and not self.shards.parts:
                start = Value(MIXED, scalar=base[at].scalar)  # n times as slowly as in the serial script
                more = more or starts.get(at) != start
                starts[at] = start
                continue
            fires = value is not None and "fires" in value.place.adds and value.place.adds <= {"fires", "reset"}
            if value is not None and fires and value.place.at == at and not value.refs:
                start = Value(base[at].place, scalar=base[at].scalar)  # as often as in the serial script
                more = more or starts.get(at) != start
                starts[at] = start
                continue
            if value is None or self._accumulates(at, value):
                place = value.place if value is not None else SAME
                alike = {"same", "scaled", "decayed"} if self.shards.parts else {"same", "scaled"}
                anew_at_times = place.kind is Kind.RUN and "reset" in place.adds  # if step == steps: step = 0
                if anew_at_times and (place.counts or at not in self._begun_anew):
                    alike = alike | {"reset"}
                counts = place.kind is Kind.RUN and place.adds <= alike
                if counts and bool(place.adds) and at not in self._counting and base[at].place.uniform:
                    self._counting.add(at)
                    more = True
                    anew = anew or at not in self._begun_anew
                    self._begun_anew.add(at)
                    continue
                if not counts and at in self._counting:
                    self._counting.discard(at)
                    more = True
                elif at in self.held_back and at not in tried and base[at].place.uniform and early:
                    self._counting.add(at)  # the tests may ask for nothing but such counts: if i == last: break
                    tried.add(at)
                    more = True
                continue
            if value.scalar and value.place.kind is Kind.ENTRY:
                self._kept_numbers.add(at)
            known = starts.get(at, base[at])
            other = COUNT if value.place.counts else ENTRY  # of another location
            start = join(known, value if value.place.kind is not Kind.RUN else value.at(other))
            start = whole.unmarked(start)
            if starts.get(at) != start:
                starts[at] = start
                more = True
        if anew:  # what is computed with a count is another thing now
            for at in [at for at in starts if not self.hoped.get(at)]:
                del starts[at]
        fresh = [at for at in starts if at not in known_before and early]
        if any(starts[at].place.kind in (Kind.SAME, Kind.ENTRY) for at in fresh):
            for at in [at for at in fresh if starts[at].place.kind is Kind.MIX]:
                del starts[at]
        return more

    def _hoped_uniform(self, at: Location, value: Value, before: Value) -> bool | None:
        """Tell whether to try what ``at`` carries as one number on all ranks, or to give that up; None: as it was.

        ``if error < best: best = error`` asks for what it sets: alike on all ranks if both are. Likewise
        ``if seen > 9 and not told: told = True``. A tuple is one where each of its entries is.
        """
        parts = value.items or (value,)
        whole = self.shards.parts and before.scalar is not False and not value.refs  # each rank makes all iterations
        if self.hoped.get(at):
            if not all(v.place.uniform for v in parts):
                self.hoped[at] = False
                return False
            return None
        if self._tried.count(at) == _TRIES:  # once more, where what it is made of has become one number meanwhile
            return None
        if (
            any(
                v.place.kind in (Kind.UNKNOWN, Kind.EXTREME)
                or (whole and (v.place.kind is Kind.MIX or "bent" in v.place.adds))
                for v in parts
            )
            and all(v.place.uniform for v in before.items or (before,))
            and before.scalar is not False
            and value.name != "grown text"
            and not before.refs
        ):
            self.hoped[at] = True
            self._tried.append(at)
            return True
        return None

    def _accumulates(self, at: Location, value: Value) -> bool:
        place = value.place
        if place.kind in (Kind.RUN, Kind.EXTREME) and place.at == at:
            return True
        if any(
            v.place.kind is Kind.RUN and v.place.at == (at[0], f"{at[1]}[{k}]") for k, v in enumerate(value.items or ())
        ):
            return True
        kept = [
            v
            for ref in value.refs
            if isinstance(ref, Obj)
            and (ref.kind == "instance" or (ref.kind == "dict" and at in self._anew) or at in self._rows)
            for v in self._fields_now(ref, at)
        ]
        if kept:
            return True
        grown = [(ref, GROWN) for ref in value.refs if isinstance(ref, Obj) and ref.kind in _LISTS]
        held = [(self.state or {}).get(g) for g in grown]
        return bool(held) and all(h is not None and h.place.at == at for h in held)

    def _fields_now(self, ref: Obj, at: Location) -> list[str]:
        """Return the fields of an object that go on from those of the one to which ``at`` was bound before."""
        found = []
        for name, held in self.fields(ref):
            lists = [
                v for r in held.refs if isinstance(r, Obj) and (v := (self.state or {}).get((r, GROWN))) is not None
            ]
            if any(v.place.kind is Kind.RUN and v.place.at == (at, name) for v in (held, *lists)):
                found.append(name)
        return found
