"""Behind a loop over a shard: what each location that it has written is then, and what makes it serial."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Literal

import libcst as cst

from dlrun.port.placement import rules
from dlrun.port.placement.drawn_once import drawn_once
from dlrun.port.placement.interpret import parts, whole
from dlrun.port.placement.interpret.library_rows import LibraryRows
from dlrun.port.placement.paths import Path, paths
from dlrun.port.placement.rules import Row
from dlrun.port.placement.store import CONTENT, GROWN, REST, Frame, Location, Obj, State
from dlrun.port.placement.values import (
    CLOCK,
    COUNT,
    EMPTY,
    NOTHING,
    POSITION,
    SAME,
    Kind,
    Place,
    Quotient,
    Value,
    constant,
    join,
    unknown,
)
from dlrun.port.program.script import Script, walk

How = Literal["total", "gather", "maximum", "minimum", "average", "quotient"]
_ODD = {"run", "stored", "placed", "set"}  # what is no plain addition
_DEFAULTS = ".__defaults__["  # a tuple: what is in it is changed in place


@dataclass(frozen=True)
class Exit:
    """A location that a loop over a shard has written, and the reduction that makes it serial behind the loop."""

    loop: cst.CSTNode
    path: Path
    how: How
    zero: bool  # whether it began at zero, or empty
    owner: str = ""  # the kind of object whose entries it is: list, set, dict, foreign
    whole: bool = False  # the object itself, not something in it
    scalar: bool = False
    shared: bool = False  # whether others hold the same object
    ordered: bool = False  # whether a list keeps its entries sorted, or in a heap
    of: tuple[str, str] = ("", "")  # what a quotient is computed of anew
    in_order: bool = True  # whether a list's entries come in the serial order
    by_key: bool = False  # of a dict: whether each entry is of its key, and no part of one
    at: Any = field(default=None, compare=False)  # the location
    counts: bool = field(default=False, compare=False)  # whether all ranks have added the same in each iteration


class Exits(LibraryRows):
    """Makes serial, behind a loop over a shard, what the loop has written."""

    def __init__(self, script: Script, shards: Any) -> None:
        """Begin with no loop."""
        super().__init__(script, shards)
        self.exits: dict[Exit, None] = {}
        self.kept_on: set[Exit] = set()  # what some runs of its loop leave as earlier ones have made it
        self.names_behind: dict[cst.CSTNode, list[set[str]]] = {}  # that are bound behind a loop, run by run
        # the dicts that can be named behind a loop, with the keys that they had before it, likewise
        self.dicts_behind: dict[cst.CSTNode, list[dict[str, tuple[Obj, frozenset[str]]]]] = {}
        self.around: set[cst.CSTNode] = set()  # loops that step behind a loop over a shard in them
        self.plain_loops: set[cst.CSTNode] = set()
        self.passes: set[cst.CSTNode] = set()  # loops that go through a share once
        self.over: dict[cst.CSTNode, cst.BaseExpression] = {}
        self.nameless: set[cst.CSTNode] = set()  # loops over what a generator draws from a share: none can tell later
        self._longer: set[Location] = set()  # tuples to which each iteration adds
        self._anew: set[Location] = set()  # what is bound to another object in each iteration
        self._rows: set[Location] = set()  # of these, what is bound to another list of known entries
        self._made_for_keys: set[Location] = set()  # what iterations make for keys of a dict
        self._bases: list[State] = []  # the states in which the loops began
        self.counters: set[tuple[cst.CSTNode, Any]] = set()  # what counts on from loop to loop, and is not reduced
        self.counted_at: dict[tuple[cst.CSTNode, Any], Location] = {}  # where these counters are
        self.beside_serial: set[tuple[cst.CSTNode, Any]] = set()  # counters that the run before has met beside sums
        self.count_on: set[tuple[cst.CSTNode, Any]] = set()  # what was found to do so by the run before this one
        self.whole: cst.CSTNode | None = None  # the loader whose batches the last loop went through as they are
        self.asked: set[Obj] = set()  # the dicts that the last loop asked for what they held
        self._never_zero: set[Location] = set()
        self._last_places: dict[Location, Place] = {}  # what the last iteration left
        self._counting: set[Location] = set()  # what all ranks add the same to in each iteration
        self._begun_anew: set[Location] = set()  # counts for which the loop has been solved once more
        self._tried: list[Location] = []  # what was taken for one number, each time

    def _left(self, node: cst.CSTNode, base: State, out: State) -> State:
        """Return the state behind a loop over a shard: what it has written is serial now, or unknown."""
        state = dict(out)
        self.state = state
        self.gradients.loop_ends()
        touched = [at for at in out if at not in base or out[at] is not base[at]]
        self._last_places = {at: out[at].place for at in touched}
        found = paths(self, self.frame, base)
        if self.recording:
            self.dicts_behind.setdefault(node, []).append(self._dicts_behind(found, base))
        for at in sorted(touched, key=lambda at: self._order_behind(at, out)):
            value, before = out[at], base.get(at)
            now = state[at]
            if (at[1] == GROWN or self._is_field(at)) and now is not value and (now.reduced or now.place.why):
                continue
            result = self._behind(node, at, value, before, found)
            if at[1] == GROWN and result is not None and result.place.kind is Kind.UNKNOWN:
                self._lose(value, result.place, base)
            if self.whole is not None:
                state[at] = whole.behind(self.whole, at, result if result is not None else value)
            elif result is not None:
                state[at] = result
            if before is not None and before.unbound:
                state[at] = replace(state[at], unbound=True)
        kept = (made for made in self.exits if made.loop is node and self._keeps_on(made, base, out))
        self.kept_on.update(made for made in kept if _is_named(made, found))
        return state

    def _dicts_behind(self, found: dict[Any, list[Path]], base: State) -> dict[str, tuple[Obj, frozenset[str]]]:
        """Return the dicts that can be named behind a loop, by their names, each with the keys it had before."""
        dicts = {ref: ways for ref, ways in found.items() if isinstance(ref, Obj) and ref.kind == "dict"}
        return {
            path.text: (ref, frozenset(key for key in self.keys.get(ref, ()) if (ref, key) in base))
            for ref, ways in dicts.items()
            for path in ways
            if not path.each
        }

    @staticmethod
    def _keeps_on(made: Exit, base: State, out: State) -> bool:
        """Tell whether a run of the loop keeps what an earlier run of it has left, and ``made`` has made serial."""
        before, now = base.get(made.at), out.get(made.at)
        if before is None or now is None or made not in before.pending:
            return False
        return now is before or now.place.untouched

    @staticmethod
    def _is_field(at: Location) -> bool:
        return isinstance(at[0], Obj) and at[0].kind == "instance"

    def _order_behind(self, at: Location, out: State) -> int:
        """Return when a location is reduced behind a loop: first the names of lists, which reduce their entries; then
        the lists; fields of objects, which a list may hold; last what is computed anew of sums that are reduced.
        """
        if out[at].place.kind is Kind.RATIO:
            return 3
        return 1 if at[1] == GROWN else 2 * (self._is_field(at) and out[at].place.kind is Kind.ENTRY)

    def _behind(
        self, node: Any, at: Location, value: Value, before: Value | None, found: dict[Any, list[Path]]
    ) -> Value | None:
        """Return what ``at`` holds behind the loop, with the reduction that makes it so."""
        place = value.place
        if value.items is not None and (tuples := self._items_behind(node, at, value, before, found)) is not None:
            return tuples
        if self.whole is not None and whole.inexact(place):
            return None
        if place.untouched and self._was_of(at, place.at):
            return before  # of the object that a name was bound to before the loop
        if isinstance(at[0], Obj) and isinstance(place.at, tuple) and self._moved(at, place.at):
            before = self._before_of(place.at)
            place = replace(place, at=at)
            value = replace(value, place=place)
        if "trimmed" in place.adds:
            return Value(
                unknown(node, "it keeps but some of this rank's entries: the first, the last, or the greatest", at)
            )
        if before is not None and before.const is None and "joined" in place.adds:
            before = EMPTY  # the first iteration makes it
        if before is not None and before.const is None and any(map(self._made_late, value.refs)):
            return value.at(unknown(node, "the first iteration makes it, and others add to it", at))
        if place.untouched and place.at == at:
            if before is not None and value.refs - before.refs:  # some iterations give it another object
                return join(before, Value(refs=value.refs))
            return before
        if place.at == at and (place.adds in ({"scaled"}, {"fraction"}) or place.adds - {"reset"} == {"fires"}):
            return value.at(SAME)
        if place.at == at and "reset" in place.adds and not place.adds & _ODD:
            return Value(replace(place, adds=place.adds - {"reset"}), scalar=value.scalar)  # this rank's window goes on
        if place.kind is Kind.ENTRY:
            return self._last(node, at, value, found)
        if place.kind is Kind.RUN and at[1] == GROWN and isinstance(place.at, tuple) and place.at[0] is not at[0]:
            return None  # of a list that a name was given anew; see below
        if (inner := self._rebound(value, at)) is not None:
            behind = self._reduce(node, at, value, before, found, inner)
            for ref in value.refs if behind.place.kind is Kind.UNKNOWN else ():
                self.write((ref, GROWN), Value(behind.place))
            return behind
        if place.kind in (Kind.RUN, Kind.EXTREME):
            if place.at != at and place.counts:
                return value.at(SAME if self.shards.parts else COUNT)  # of iterations, when it was kept: last = step
            if place.at != at:
                return value.at(unknown(node, "it is computed from what this rank has added up so far", at))
            return self._reduce(node, at, value, before, found, place)
        if isinstance(place.at, Quotient) and (anew := self._computed_anew(node, at, place.at, found)) is not None:
            return anew
        if place.kind is Kind.RATIO and self.whole is not None:
            return None
        if place.kind is Kind.RATIO and (path := next(iter(found.get(at, ())), None)) is not None:
            summed = "summed" in place.adds
            made = Exit(node, path, "total" if summed else "average", summed, scalar=True)
            self.exits[made] = None
            return Value(SAME, scalar=True, pending=frozenset([made]), reduced=True)
        if place.kind in (Kind.MIX, Kind.RATIO):
            return value.at(unknown(node, "it is computed from what this rank has added up so far", at))
        return None

    def _computed_anew(self, node: Any, at: Location, quotient: Quotient, found: dict[Any, list[Path]]) -> Value | None:
        """Return what a mean so far is behind the loop: computed once more, of the sums of all ranks."""
        path = next(iter(found.get(at, ())), None)
        texts, pending = [], frozenset[Any]()
        for part in (quotient.over, quotient.under):
            now = (self.state or {}).get(part.at)
            named = [p for p in found.get(part.at, ()) if path is not None and p.each == path.each]
            if now is None or not named or not now.reduced or self._last_places.get(part.at) != part:
                return None
            texts.append(named[0].text)
            pending |= now.pending
        assert path is not None
        made = Exit(node, path, "quotient", False, scalar=True, of=(texts[0], texts[1]))
        self.exits[made] = None
        return Value(SAME, scalar=True, pending=pending | {made}, reduced=True)

    def _made_late(self, ref: Any) -> bool:
        """Tell whether the loop has made an array that holds what this rank has computed."""
        held = (self.state or {}).get((ref, CONTENT)) if isinstance(ref, Obj) and ref.kind == "foreign" else None
        return held is not None and (ref, CONTENT) not in self._before_loop and held.place.kind is not Kind.SAME

    def _moved(self, at: Location, origin: Any) -> bool:
        """Tell whether ``at`` is a field of the object that a name is bound to now, and ``origin`` that field of it."""
        outer, name = origin
        held = (self.state or {}).get(outer) if isinstance(outer, tuple) else None
        return name == at[1] and held is not None and at[0] in held.refs

    def _was_of(self, at: Location, origin: Any) -> bool:
        """Tell whether ``at`` is a field of the object that a name was bound to before the loop, and no longer is."""
        outer, name = origin if isinstance(origin, tuple) else (None, "")
        before = self._before_loop.get(outer) if isinstance(outer, tuple) else None
        return name == at[1] and before is not None and at[0] in before.refs and not self._moved(at, origin)

    def _before_of(self, origin: Any) -> Value | None:
        outer, name = origin
        held = self._before_loop.get(outer)
        refs = [r for r in held.refs if isinstance(r, Obj)] if held is not None else []
        return self._before_loop.get((refs[0], name)) if refs else None

    def _rebound(self, value: Value, at: Location) -> Place | None:
        """Return the placement of a list that a name was given anew in each iteration: ``x = x + [y]``."""
        for ref in value.refs:
            held = (self.state or {}).get((ref, GROWN)) if isinstance(ref, Obj) else None
            if held is None or held.place.kind is not Kind.RUN or not held.place.adds:
                continue
            origin = held.place.at
            if origin == at or (isinstance(at[0], Obj) and isinstance(origin[0], tuple) and self._moved(at, origin)):
                return held.place
        return None

    def averaged(self, node: cst.For, before: State) -> None:
        """Make the numbers that a loop has left the means over the ranks, each of which has found others.

        What no line can name stays this rank's, as what its clock says: rank 0's is as good as another.
        """
        found = paths(self, self.frame, before)
        for at, value in list((self.state or {}).items()):
            listed = at[1] == GROWN and isinstance(at[0], Obj) and at[0].kind == "list"
            if before.get(at) == value or value.refs:
                continue
            path = next(iter(found.get(at[0] if listed else at, ())), None)
            named = at[1] not in (GROWN, REST, CONTENT) or listed
            if value.scalar and named and path is not None:
                made = Exit(node, path, "average", False, "list" if listed else "", listed, scalar=True)
                self.exits[made] = None
                self.write(at, Value(SAME, scalar=True, pending=frozenset([made]), reduced=True))
            elif value.place.kind is Kind.SAME and value.const is NOTHING:
                self.write(at, replace(value, place=CLOCK))

    def _last(self, node: Any, at: Location, value: Value, found: dict[Any, list[Path]]) -> Value | None:
        """Return what a location holds that each iteration sets anew: the last number is shown as the ranks' mean."""
        named = at[0] is self.frame or (isinstance(at[0], Obj) and at[0].kind == "instance")
        if not named or not value.scalar or value.refs:
            return None
        path = next(iter(found.get(at, ())), None)
        if path is None:
            return None
        summed = self.shards.parts and value.place.adds == parts.SUMMED.adds
        extreme = parts.extreme(value.place) if self.shards.parts else ""
        if value.place.adds and self.shards.parts and not (summed or extreme):
            return value.at(unknown(node, "the parts that the ranks have of it neither add up nor average", at))
        if value.name == POSITION and not self._ascends(node):
            return value.at(unknown(node, "it is of this rank's last iteration", at))
        how: How = extreme or ("maximum" if value.name == POSITION else "total" if summed else "average")
        made = Exit(node, path, how, summed, scalar=True)
        self.exits[made] = None
        return Value(SAME, scalar=True, pending=frozenset([made]), reduced=True)

    def _ascends(self, node: Any) -> bool:
        """Tell whether a loop goes through numbers that go up: ``range(0, n, 8)``."""
        calls = [n for n in walk(node.iter) if isinstance(n, cst.Call)] if isinstance(node, cst.For) else []
        ranges = [c for c in calls if self.script.name_of(c.func).rpartition(".")[2] in ("range", "arange")]
        return len(ranges) == 1 and not any(isinstance(arg.value, cst.UnaryOperation) for arg in ranges[0].args)

    def _reduce(
        self, node: Any, at: Location, value: Value, before: Value | None, found: dict[Any, list[Path]], place: Place
    ) -> Value:
        """Return what ``at`` holds once a reduction behind the loop has made it serial."""
        how = self._how(at, value, place)
        if how == "total" and "stored" in place.adds and not (node in self.passes and drawn_once(self.script)):
            again = "ranks may write one entry of it more than once: samples are drawn again in this loop"
            how = unknown(self.script.module, again, at)
        listed = at[1] == GROWN or any(ref.kind in ("list", "set") for ref in value.refs if isinstance(ref, Obj))
        grown = (self.state or {}).get((at[0], GROWN)) if at[1] == REST else None
        if how == "total" and grown is not None and grown.place.kind is Kind.RUN and grown.place.adds:
            how = unknown(node, "some of its entries are put behind the others, and some replace others", at)
        if listed and any(map(self.shared_by_calls, (at[0], *value.refs))):
            how = unknown(node, "a parameter defaults to it, and calls share it", at)
        by_key = "stored" in place.adds and isinstance(at[0], Obj) and at[0].kind == "dict" and how == "gather"
        if by_key and at[0] in self.asked:
            how = unknown(node, "what each rank keeps in it goes by what it has kept there before", at)
        if self.shards.parts and how == "gather" and not by_key and (node not in self.over or node in self.nameless):
            how = unknown(node, "no line behind the loop can name the loader whose samples it keeps", at)
        if isinstance(how, Place):
            return value.at(how) if how != SAME else replace(value, place=SAME)
        if how == "average" and self.whole is not None:
            return value.at(unknown(node, whole.MEAN, at))
        owner = at[0] if isinstance(at[0], Obj) else None
        inside = owner is not None and at[1] in (REST, GROWN, CONTENT)
        zero = (
            self._began_empty(owner)
            if inside and owner is not None
            else bool(before is not None and self._is_zero(before))
        )
        variable = owner is not None and owner.name.endswith("Variable") and at[1] == CONTENT
        earlier = (
            before is not None
            and before.reduced
            and all(getattr(made, "loop", None) is not node for made in before.pending)
        )
        serial = earlier and not self.looping  # another loop has made it serial, once and for all
        named = [(node, path.key) for path in found.get(owner if inside else at, [])[:1]]
        goes_on = not (zero or serial) or (variable and (self._in_checkpoint(owner) or self.count_on & {*named}))
        counts = place.adds <= {"same", "scaled"} and goes_on and how == "total" and (variable or not inside)
        counts = counts and (owner is None or not self._goes_with(owner, at, found))
        if counts and self.whole is None and self.beside_serial.isdisjoint(named):
            self.counters.update(named)
            self.counted_at.update(dict.fromkeys(named, at))
            mark = [Exit(node, path, "total", False, at=at, counts=True) for path in found.get(at, [])[:1]]
            return Value(COUNT, scalar=value.scalar, pending=frozenset(mark))  # all ranks hold the same number
        if owner is not None and owner.kind == "instance" and self.fixed(owner.cls):
            if how != "total" or not found.get(owner):
                return value.at(unknown(node, "no line behind the loop can set what its class fixes", at))
            made = Exit(node, found[owner][0], how, False, "instance", at=at)
            self.exits[made] = None
            return Value(SAME, scalar=value.scalar, pending=frozenset([made]), reduced=True)
        options = sorted(found.get(owner if inside else at, []), key=_how_sure)
        if options and options[0].fresh and owner is not None and not zero and how in ("total", "gather"):
            return value.at(unknown(node, "no line before the loop can name what it goes on from", at))
        if not options:
            return value.at(unknown(node, "what the loop adds up is kept where no line behind it can name it", at))
        if options[0].late and not zero and how in ("total", "gather"):
            text = "some of what goes on may be new: no line can tell what there was before"
            return value.at(unknown(node, text, at))
        kind = next((r.kind for r in value.refs if isinstance(r, Obj)), "") if not inside else owner.kind  # type: ignore[union-attr]
        shared = inside and owner is not None and (self._holders(owner) > 1 or options[0].fixed)
        if inside and owner is not None and owner.kind != "dict" and (around := self._dict_at(options[0], found)):
            kind, zero = "dict", self._began_empty(around)
            shared = self._holders(around) > 1 or options[0].fixed
        if inside and options[0].text.isidentifier() and not options[0].named:
            shared = True  # a variable of a function or module around this one: its object stays
        shared = shared or (inside and options[0].text.endswith("]") and _DEFAULTS in options[0].text)
        if owner is not None and owner.name.endswith(("Variable", ".add_weight")):
            kind = "variable"
        if owner is not None and rules.of_function(owner.name) is Row.STATE:
            kind = "metric"
            if how == "average" and not zero and not owner.name.endswith(".Sum"):
                how = "total"  # of what each rank has added: average() adds up the sums and counts of a mean, too
        ordered = "ordered" in place.adds
        if how == "gather" and "joined" in place.adds:
            zero = before is not None and self._is_empty(before)
        some = "some" in place.adds and not ordered
        made = Exit(
            node,
            options[0],
            how,
            zero and not (options[0].each and owner is not None and self._beside_older(owner)),
            kind,
            inside,
            bool(value.scalar),
            shared,
            ordered,
            in_order=not some,
            by_key=by_key,
            at=at,
            counts=place.adds <= {"same", "scaled"} and how == "total" and not inside,
        )
        self.exits[made] = None
        if how == "total" and owner in self.filled_by_memory:
            self.uninitialised[made] = self.filled_by_memory[owner]
        pending = frozenset([made])
        self._settle(value, pending, frozenset() if inside else value.refs)
        if place.adds == {"placed"}:
            means = unknown(node, "each of its entries is the mean over the ranks of those of one iteration", at)
            return Value(replace(means, adds=frozenset({"means"})), pending=pending, reduced=True)
        order = Place(at=self.whole, adds=frozenset({"some"})) if some else SAME
        anew = bool(value.refs) and self._rebound(value, at) is not None
        if not inside and value.refs and (how == "gather" or anew):
            for ref in value.refs:
                if isinstance(ref, Obj):
                    self.write((ref, GROWN), Value(order, pending=pending, reduced=True))
            return replace(value, place=SAME, pending=pending, reduced=True)
        name = value.name if value.name == "tuple" else ""
        return Value(order, refs=value.refs, name=name, scalar=value.scalar, pending=pending, reduced=True)

    def _beside_older(self, owner: Obj) -> bool:
        """Tell whether a container keeps ``owner`` beside those that earlier iterations of a loop around this one made.

        These have been reduced behind the loops over shards that filled them: ``rows.append(Row())`` in each epoch.
        """
        held, todo = {owner}, [owner]
        while todo:
            inner = todo.pop()
            for (holder, key), value in (self.state or {}).items():
                if not isinstance(holder, Obj) or holder in held or inner not in value.refs:
                    continue
                if key in (REST, GROWN) and any(n in inner.within and n not in holder.within for n in self.loops):
                    return True
                held.add(holder)
                todo.append(holder)
        return False

    def _goes_with(self, owner: Obj, at: Location, found: dict[Any, list[Path]]) -> bool:
        """Tell whether a field is reduced with all of ``owner``: a fixed object, or the entries of a dict."""
        box = found.get(owner, [])[:1]
        fixed = owner.kind == "instance" and self.fixed(owner.cls)
        return fixed or (bool(box) and box == found.get(at, [])[:1])

    def _in_checkpoint(self, owner: Obj | None) -> bool:
        """Tell whether a checkpoint holds a variable: a later run may go on from what it is inside the loop."""
        held = ((at[0], value) for at, value in (self.state or {}).items() if isinstance(at[0], Obj))
        return any(box.name.endswith("train.Checkpoint") and owner in value.refs for box, value in held)

    def _dict_at(self, path: Path, found: dict[Any, list[Path]]) -> Obj | None:
        """Return the dict that ``path`` names, where what it holds is reduced with it."""
        named = [at for at, known in found.items() if known[0].text == path.text and isinstance(at, Obj)]
        return next((at for at in named if at.kind == "dict"), None)

    def _holders(self, owner: Obj) -> int:
        """Return how many locations hold ``owner``."""
        return sum(owner in value.refs for value in (self.state or {}).values())

    def _how(self, at: Location, value: Value, place: Place) -> How | Place:
        """Return the reduction for what a loop has written, or why there is none."""
        node = self.script.module
        if self.shards.parts:
            return self._how_parts(
                at, place, at[1] == GROWN or (bool(value.refs) and self._rebound(value, at) is not None)
            )
        if place.kind is Kind.EXTREME:
            if len(place.adds) == 1:
                return "maximum" if "max" in place.adds else "minimum"
            return unknown(node, "it is the greatest and the least entry by turns", at)
        listed = at[1] == GROWN or (bool(value.refs) and self._rebound(value, at) is not None)
        bad = place.adds - {"entry", "same", "reset", "ordered", "some"}
        if listed and self.paced.get(at[0]):
            return unknown(node, "each rank keeps entries of its own as often as the serial script", at)
        if listed:
            rows = frozenset({"rows"} if not place.adds & {"some", "trimmed", "reset", "fires"} else ())
            lost = unknown(node, "what it keeps of each iteration is itself a sum so far", at)
            return replace(lost, adds=rows) if bad else "gather"
        if bad == {"part"} and not listed and "entry" not in place.adds:
            return "average"  # a mean: each rank has divided by the length of its shard
        if place.adds == {"joined"}:
            return "gather"
        if bad == {"mean"} or ("decayed" in bad and bad <= {"decayed", "scaled"}):
            return "average"  # a running mean; or a recurrence, near what the serial one is
        if not bad - {"scaled"}:
            return "total"
        if bad == {"stored"} and place.adds == {"stored"}:
            owner = at[0]
            if isinstance(owner, Obj) and owner.kind == "dict":
                return "gather"
            return "total"  # each rank has set entries of its own samples
        if bad == {"placed"} and place.adds == {"placed"}:
            return "average"  # an entry for each iteration
        return unknown(node, "what each rank has kept in it cannot be added up", at)

    def _how_parts(self, at: Location, place: Place, listed: bool) -> How | Place:
        how = parts.how(place.adds, listed) if place.kind is Kind.RUN else "?"
        if "stored" in place.adds and place.adds <= {"summed", "stored"} and getattr(at[0], "kind", "") == "dict":
            how = "gather"  # an entry is of its sample
        if how == "?":
            return unknown(self.script.module, "the parts that the ranks have of it neither add up nor average", at)
        return how if how else SAME  # type: ignore[return-value]

    def _began_empty(self, owner: Obj) -> bool:
        """Tell whether an object was empty, or all zeros, when the loop began."""
        base = self._before_loop
        held = {k: v for k in self.keys.get(owner, ()) if (v := base.get((owner, k))) is not None}
        entries = [v for k, v in held.items() if k.startswith("[") or k == CONTENT]
        return all(self._is_zero(v) for v in entries)

    @property
    def _before_loop(self) -> State:
        return self._bases[-1] if self._bases else {}

    def is_first(self, value: Value) -> bool:
        """Tell whether ``value`` is what a loop carries from a None: ``x if total is None else total + x``."""
        held = self._before_loop.get(value.place.at) if value.place.untouched else None
        return held is not None and held.const is None

    def began_as_truth(self, value: Value) -> bool:
        """Tell whether what a loop carries was True or False when it began."""
        held = self._before_loop.get(value.place.at)
        return held is not None and isinstance(held.const, bool)

    def _is_zero(self, value: Value) -> bool:
        if value.const is None:
            return True
        if (value.zero and not value.refs) or value.place.kind is Kind.RUN:
            return True  # what an earlier loop left is this rank's part
        objects = [ref for ref in value.refs if isinstance(ref, Obj)]
        return bool(objects) and not value.reduced and all(self._empty(ref) for ref in objects)

    def _is_empty(self, value: Value) -> bool:
        """Tell whether an array has no entries."""
        if value.reduced:
            return False  # at times it is what an earlier loop has left
        if value.const is None or value.const == () or value.name == "empty":
            return True
        held = [self._before_loop.get((r, CONTENT)) for r in value.refs if isinstance(r, Obj)]
        return bool(held) and all(v is not None and v.const == () for v in held)

    def _empty(self, ref: Obj) -> bool:
        held = [v for k, v in self.fields(ref) if k.startswith("[") or k == CONTENT]
        before = [self._before_loop.get((ref, k)) for k in self.keys.get(ref, ()) if k.startswith("[") or k == CONTENT]
        known = [v for v in before if v is not None] if self._before_loop else held
        return all(v.zero for v in known)

    def _settle(self, value: Value, pending: frozenset[Any], but: frozenset[Any]) -> None:
        """Make what the objects in a gathered list hold serial, too: they are those of all ranks."""
        for ref in self.reachable([replace(value, items=None)]):
            if ref in but:
                continue
            for key, held in self.fields(ref):
                if held.place.kind is Kind.ENTRY:
                    self.write(
                        (ref, key), Value(SAME, refs=held.refs, scalar=held.scalar, pending=pending, reduced=True)
                    )
                    self._forget_last(ref)

    def _lose(self, value: Value, place: Place, base: State) -> None:
        """Make unknown what the objects hold that iterations made for a list that no reduction makes serial."""
        for ref in self.reachable([value]):
            for key, held in self.fields(ref):
                if held.place.kind is Kind.ENTRY and (ref, key) not in base:
                    self.write((ref, key), held.at(place))

    def _items_behind(
        self, node: Any, at: Location, value: Value, before: Value | None, found: dict[Any, list[Path]]
    ) -> Value | None:
        """Return a tuple that goes on from iteration to iteration: one of sums becomes serial, any other is local."""
        items = value.items or ()
        own = [Place(Kind.RUN, (at[0], f"{at[1]}[{k}]")) for k in range(len(items))]
        on = [now.place.at == p.at for now, p in zip(items, own, strict=True)]
        if before is None or before.items is None or not any(on):
            return None
        ways = {self._how(at, now, now.place) for now in items if now.place.adds}
        if all(on) and all(now.place.kind is Kind.RUN for now in items) and ways == {"total"}:
            added = Place(Kind.RUN, at, frozenset().union(*(now.place.adds for now in items)))
            first = constant(0) if all(map(self._is_zero, before.items)) else before
            made = self._reduce(node, at, replace(value, place=added, items=None), first, found, added)
            return made if made.place != SAME else replace(made, items=tuple(now.at(SAME) for now in items))
        lost = unknown(node, "it is computed from what this rank has added up so far", at)
        left = [
            was if now.place == p else now.at(lost) if now.place.at == p.at else now
            for now, p, was in zip(items, own, before.items, strict=False)
        ]
        return replace(value, items=tuple(left))

    def _forget_last(self, ref: Obj) -> None:
        """Let no name hold the last of the objects that iterations made for a list: it is this rank's last."""
        for at, value in list((self.state or {}).items()):
            if isinstance(at[0], Frame) and ref in value.refs:
                self.write(at, Value(unknown(self.script.module, "it is the object that the last iteration made", at)))


def _how_sure(path: Path) -> tuple[bool, bool, bool]:
    """Sort the ways to name something: first those that surely name it before the loop, too."""
    return path.fresh, bool(path.bound), _DEFAULTS not in path.text


def _is_named(made: Exit, found: dict[Any, list[Path]]) -> bool:
    """Tell whether what ``made`` names is still what it has made serial."""
    named = [*found.get(made.at, ()), *found.get(made.at[0], ())]
    return made.path.key in [path.key for path in named]
