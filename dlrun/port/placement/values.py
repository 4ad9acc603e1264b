"""Placements: what a value of one rank is to the value of the serial script."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

import libcst as cst


class Kind(Enum):
    """What a value of one rank is to the serial one; see the table in ``values.Place``."""

    SAME = "same"
    COUNT = "count"
    INDEX = "index"
    CLOCK = "clock"
    SHARD = "shard"
    ENTRY = "entry"
    RUN = "run"
    EXTREME = "extreme"
    RATIO = "ratio"
    MIX = "mix"
    UNKNOWN = "unknown"


UNIFORM = (Kind.SAME, Kind.COUNT, Kind.INDEX)  # the same number on all ranks


@dataclass(frozen=True)
class Why:
    """What made a value unknown: where, in what words, and of which location, where that is known."""

    node: cst.CSTNode
    text: str
    at: Any = None


@dataclass(frozen=True)
class Place:
    """The placement of a value.

    SAME     all ranks hold the serial value
    COUNT    all ranks hold the same number, and the serial one is n times it: iterations so far, len(shard);
             ``at`` is the power of n where that is not 1: -1 of 1 / len(shard); or "bent" of what is computed from
             counts, and is no multiple of them: 100 - steps, steps // 5
    INDEX    likewise the number of an iteration, from 0; ``at`` is "scaled" of a multiple of it, "bent" of that of
             an iteration that a loop has left before its update
    CLOCK    read from this rank's clock, or drawn at random outside loops over shards: rank 0's is as good as another
    SHARD    an iterable of this rank's shard of the batches; ``adds`` has "at times" where it may be whole data as
             well, "wrapped" where it goes through the shard, or counts its batches: enumerate(shard), range(steps)
    ENTRY    exactly the value of one serial iteration, of another one on each rank; ``adds`` has "earlier" where it is
             made of a number of an iteration before this one, which is another number on each rank
    RUN      what the location ``at`` held before the loop, and ``adds`` to it: a sum so far over this rank's iterations
    EXTREME  the ``adds`` (max, min) of the entries so far and of what ``at`` held before
    RATIO    a sum so far over a count so far: the ranks' mean of it is the serial one, exactly where shares are even;
             ``at`` is the ``Quotient`` of which runs it is, where that is known
    MIX      computed from runs: neither an entry nor a sum itself
    UNKNOWN  depends on local samples, and nothing is known that makes it serial; ``why``
    """

    kind: Kind = Kind.SAME
    at: Any = None
    adds: frozenset[str] = frozenset()
    why: Why | None = None
    counts: bool = False  # of a run: whether all ranks add the same

    @property
    def uniform(self) -> bool:
        """Whether all ranks hold the same number."""
        return self.kind in UNIFORM or self.counts

    @property
    def untouched(self) -> bool:
        """Whether it is what a location held when this iteration began."""
        return self.kind is Kind.RUN and not self.adds


@dataclass(frozen=True)
class Quotient:
    """Of which runs a RATIO is the quotient, as they were placed when it was computed."""

    over: Place
    under: Place


SAME, ENTRY, COUNT, INDEX = Place(), Place(Kind.ENTRY), Place(Kind.COUNT), Place(Kind.INDEX)
SO_FAR = Place(Kind.ENTRY, adds=frozenset({"earlier"}))  # the mean over the entries that this rank has kept
BENT_COUNT = Place(Kind.COUNT, at="bent")
MIXED = Place(Kind.COUNT, at="mixed")  # made of counts: alike on all ranks, and not n times as much serially
AT_TIMES, WRAPPED = frozenset({"at times"}), frozenset({"wrapped"})
CLOCK, SHARD, MIX, RATIO = Place(Kind.CLOCK), Place(Kind.SHARD), Place(Kind.MIX), Place(Kind.RATIO)


def unknown(node: cst.CSTNode, text: str, at: Any = None) -> Place:
    """Return the placement of what became unknown at ``node``; ``at`` is the location that did."""
    return Place(Kind.UNKNOWN, why=Why(node, text, at))


class Nothing(Enum):
    """No constant is known."""

    NOTHING = 0


NOTHING = Nothing.NOTHING


@dataclass(frozen=True)
class Value:
    """An abstract value: its placement, and what of its structure is followed.

    ``refs`` are the objects, functions and classes that it may be; ``items`` the entries of a tuple; ``const`` a
    literal; ``name`` the qualified name of something foreign (``torch.nn``); ``zero`` tells that it is neutral to
    addition; ``scalar`` whether it is one number (None: not known); ``pending`` the reductions that made it serial.
    ``of`` are the arrays whose memory it may share: a row, a view.
    """

    place: Place = SAME
    refs: frozenset[Any] = frozenset()
    items: tuple[Value, ...] | None = None
    const: Any = NOTHING
    name: str = ""
    zero: bool = False
    scalar: bool | None = None
    pending: frozenset[Any] = frozenset()
    texts: frozenset[Any] = frozenset()  # the formatted texts that it is, by the expressions that make them
    reduced: bool = False  # whether it is made of what a reduction made serial
    of: frozenset[Any] = frozenset()
    late: bool = field(default=False, compare=False)  # of a variable: whether a loop's first iteration may lack it
    unbound: bool = field(default=False, compare=False)  # of a location: whether some runs never bind it

    def at(self, place: Place) -> Value:
        """Return it with another placement."""
        return replace(self, place=place, const=NOTHING, pending=frozenset())


ANY = Value()
FROM = "from "  # the name of an iteration's number, with what it counts from, where it is not known to be of a share
BY = "by "  # the name of an iteration's number times a stride, with the stride's code: i of range(0, n, 8)
POSITION = "position"  # the name of a number that a loop over a share takes: the ranks' last ones are no mean
TUPLES = "tuples"  # the name of a tuple that is written with one or another number of entries
OR_END = "batch or end"  # the name of what next(batches, None) returns
EMPTY = Value(zero=True, name="empty")  # nothing, so far


def constant(value: Any) -> Value:
    """Return the value of a literal."""
    number = isinstance(value, (int, float, complex))
    return Value(const=value, zero=number and value == 0 and not isinstance(value, bool), scalar=number or None)


def join_places(a: Place, b: Place) -> Place:
    """Return what holds of a value that is placed as ``a`` or as ``b``, all ranks alike."""
    if a == b:
        return a
    kinds = {a.kind, b.kind}
    if Kind.UNKNOWN in kinds:
        return a if a.kind is Kind.UNKNOWN else b
    if a.kind is b.kind is Kind.RATIO:
        return RATIO
    if a.kind is b.kind is Kind.RUN and a.at == b.at:
        return replace(a, adds=a.adds | b.adds, counts=a.counts and b.counts)
    for one, other in ((a, b), (b, a)):
        if other.untouched and one.kind is Kind.EXTREME and one.at == other.at:
            return one
        if other.kind is Kind.RUN and one.kind in (Kind.SAME, Kind.COUNT) and other.adds:
            return replace(other, adds=other.adds | {"reset"})  # a window: set back every K iterations
        if other.kind is Kind.RUN and other.adds & {"decayed", "joined"} and one.kind is Kind.ENTRY:
            return other  # a moving average, or an array, that begins at the first entry
        if other.untouched and one.kind is Kind.RUN and one.counts and one.at != other.at:
            return COUNT  # of iterations, when it was kept: last = step
        if other.untouched and one.kind in (Kind.ENTRY, Kind.SAME, Kind.COUNT, Kind.INDEX, Kind.CLOCK):
            return one if one.kind is not Kind.SAME else other
    if kinds & {Kind.RUN, Kind.EXTREME, Kind.MIX, Kind.RATIO} or kinds == {Kind.CLOCK, Kind.COUNT}:
        return MIX
    one_summed = Kind.ENTRY in kinds and bool(kinds & {Kind.SAME, Kind.COUNT}) and bool((a.adds | b.adds) & {"summed"})
    if (kinds == {Kind.ENTRY} and (a.adds | b.adds) & {"summed", "bent"}) or one_summed:
        return Place(Kind.ENTRY, adds=frozenset({"bent"}) | ((a.adds | b.adds) & {"spread"}))
    if kinds == {Kind.ENTRY} and "earlier" in a.adds | b.adds:
        return replace(a, adds=a.adds | {"earlier"})
    if kinds == {Kind.COUNT}:
        return MIXED
    if kinds == {Kind.INDEX}:
        return a if a.at == "bent" else b
    for kind in (Kind.ENTRY, Kind.SHARD, Kind.CLOCK, Kind.COUNT, Kind.INDEX):
        if kind in kinds:
            found = a if a.kind is kind else b
            return replace(found, adds=found.adds | AT_TIMES) if kinds == {Kind.SHARD, Kind.SAME} else found
    return a


def _joined_scalar(a: Value, b: Value) -> bool | None:
    """Return whether what is ``a`` or ``b`` is one number: None says as little as the other one does."""
    if isinstance(a.const, str) and isinstance(b.const, str):
        return False
    if a.const is None:
        return b.scalar
    return a.scalar if b.const is None or a.scalar == b.scalar else None


def one_more(known: Value, entry: Value) -> bool | None:
    """Return whether the entries of what holds ``known``, and ``entry`` now, are one number each."""
    return True if entry.scalar and (known.scalar or known.place.untouched) else None


def join(a: Value | None, b: Value | None, beside: bool = False) -> Value:
    """Return what holds of a value that is ``a`` or ``b``: of one location, or of entries that are ``beside``."""
    if a is None or b is None or a == b:
        if a is None or b is None:
            return a or b or ANY
        return replace(a, unbound=True) if b.unbound and not a.unbound else a
    for empty, other in ((a, b), (b, a)):
        if empty.name == "empty" and empty.place.kind is Kind.SAME:
            return replace(other, zero=False, unbound=a.unbound or b.unbound)
    items = None
    if a.items is not None and b.items is not None and len(a.items) == len(b.items):
        items = tuple(join(x, y, beside) for x, y in zip(a.items, b.items, strict=True))
    elif a.const is None or b.const is None:
        items = a.items or b.items  # best = None, and later (step, loss): what is read of it is an item of that
    same = a.const is not NOTHING and type(a.const) is type(b.const) and a.const == b.const
    place = join_places(a.place, b.place)
    for one, other in ((a, b), (b, a)):
        if one.const is None and other.place.kind is Kind.SHARD:
            place = other.place  # no data
        if is_serial(one, beside) and place.kind is other.place.kind and place.kind in (Kind.COUNT, Kind.INDEX):
            place = MIXED  # a count or a serial number: which of them, nobody knows later
    if items is None:
        for part in (*(a.items or ()), *(b.items or ())):
            place = join_places(place, part.place)
    name = a.name if a.name == b.name else ""
    if items is None and all(v.name == TUPLES or (v.name == "tuple" and v.items is not None) for v in (a, b)):
        name = TUPLES
    return Value(
        place=place,
        refs=a.refs | b.refs,
        items=items,
        const=a.const if same else NOTHING,
        name=name,
        zero=a.zero and b.zero,
        scalar=_joined_scalar(a, b),
        pending=a.pending | b.pending,
        texts=a.texts | b.texts,
        reduced=a.reduced or b.reduced,
        of=a.of | b.of,
        unbound=a.unbound or b.unbound,
    )


def is_serial(value: Value, beside: bool) -> bool:
    """Tell whether a value, or one of entries that are ``beside`` others, is a number that all ranks have serially."""
    number = value.scalar or (beside and (value.reduced or value.scalar is None))
    return value.place.kind is Kind.SAME and value.const is NOTHING and not value.zero and bool(number)


def joined(values: Iterable[Value]) -> Value:
    """Return what holds of a value that is one of ``values``."""
    found: Value | None = None
    for value in values:
        found = join(found, value)
    return found if found is not None else ANY


def diverged(a: Value, b: Value, test: cst.CSTNode, drawn: bool = False) -> Value:
    """Return what holds of a location that is ``a`` on some ranks and ``b`` on others, by a test that diverges.

    Where the test is ``drawn``, or asks a clock, rank 0's outcome is as good as another.
    """
    if a == b:
        return a
    both = join(a, b)
    if both.name == TUPLES:
        both = replace(both, name="")
    kinds = {a.place.kind, b.place.kind}
    if a.items is not None and b.items is not None and len(a.items) == len(b.items) and kinds == {Kind.SAME}:
        return replace(both, items=tuple(diverged(x, y, test) for x, y in zip(a.items, b.items, strict=True)))
    if drawn and (both.place.kind is Kind.CLOCK or kinds == {Kind.SAME}):
        return of_clock(both)
    if a.place.untouched or b.place.untouched:
        own, other = (a, b) if a.place.untouched else (b, a)
        goes_on = other.place.kind in (Kind.RUN, Kind.EXTREME) and other.place.at == own.place.at
        if goes_on and "scaled" not in other.place.adds:
            return both
        if other.const is True or other.const is False:
            adds = frozenset({"max" if other.const else "min"})
            return both.at(Place(Kind.EXTREME, own.place.at, adds))
        return both.at(unknown(test, "it is set under a test that differs between ranks"))
    if kinds <= {Kind.SAME, Kind.COUNT, Kind.INDEX, Kind.ENTRY, Kind.CLOCK}:
        if (a.refs or b.refs) and kinds == {Kind.SAME}:
            return both
        return both.at(ENTRY)
    if both.place.counts and both.place.adds - (a.place.adds | b.place.adds):  # set back on some ranks
        return both.at(replace(both.place, counts=False))
    return both


def chosen_locally(a: Value, b: Value, test: cst.CSTNode) -> Value:
    """Return what holds of a result that is ``a`` on some ranks and ``b`` on others, by a test that diverges.

    What is local already, or a sum so far, stays what it is.
    """
    plain = all(v.place.kind in (*UNIFORM, Kind.CLOCK) for v in (a, b))
    return diverged(a, b, test) if plain else join(a, b)


def of_clock(value: Value) -> Value:
    """Return what a rank's clock has chosen of what is alike on all ranks; objects stay what they are."""
    if value.place.kind is not Kind.SAME or value.items is not None:
        return value
    held = [getattr(ref, "kind", "") for ref in value.refs]
    return value.at(CLOCK) if all(kind in ("list", "set", "dict") for kind in held) else value


def trimmed(place: Place) -> Place:
    """Return the placement of what lost some of the entries that this rank's iterations put into it."""
    return replace(place, adds=place.adds | {"trimmed"}) if place.kind is Kind.RUN else place


def combine(places: Iterable[Place]) -> Place:
    """Return the placement of what is computed from values placed so, within one iteration."""
    found = [COUNT if p.counts else p for p in places if p.kind is not Kind.SAME]
    if not found:
        return SAME
    for p in found:
        if p.kind is Kind.UNKNOWN:
            return p
    kinds = {p.kind for p in found}
    if Kind.CLOCK in kinds and all(p.kind is Kind.CLOCK or p.untouched for p in found):
        return CLOCK
    if kinds & {Kind.RUN, Kind.EXTREME, Kind.MIX, Kind.RATIO}:
        if len(found) > 1 or found[0].kind is not Kind.RATIO:
            return MIX
        return RATIO if isinstance(found[0].at, Quotient) else found[0]  # 100 * total / seen
    if Kind.ENTRY in kinds or Kind.SHARD in kinds:
        marks = {p.adds for p in found if p.kind is Kind.ENTRY}
        if len(marks) > 1 and frozenset({"summed"}) in marks:
            return Place(Kind.ENTRY, adds=frozenset({"bent"}))  # of what adds up over the ranks, and what averages
        marked = next((p for p in found if p.kind is Kind.ENTRY and p.adds), ENTRY)
        return replace(marked, adds=marked.adds - {"max", "min"}) if marked.adds & {"max", "min"} else marked
    if Kind.CLOCK in kinds:
        return CLOCK
    for special in (MIXED, BENT_COUNT):
        if special in found:
            return special
    return found[0] if len(set(found)) == 1 and found[0].kind is Kind.COUNT else COUNT


def earlier(value: Value) -> Value:
    """Return a number of an iteration as a later one finds it."""
    if value.place.kind is not Kind.ENTRY:
        return value
    return replace(value, place=replace(value.place, adds=value.place.adds | {"earlier"}))


def power(place: Place) -> int:
    """Return how many times a count is to be multiplied by the number of ranks; of what is serial 0."""
    if place.kind is Kind.SAME:
        return 0
    if place.kind is Kind.COUNT and place.at == "mixed":
        return 0
    return place.at if place.kind is Kind.COUNT and isinstance(place.at, int) else 1


def out_of_sight(place: Place) -> Place:
    """Return the placement of what something out of sight computes: of a count no count, but alike on all ranks."""
    return MIXED if place.kind in (Kind.COUNT, Kind.INDEX) else place


def count(times: int) -> Place:
    """Return the placement of a count that is to be multiplied by the number of ranks so many times."""
    return SAME if times == 0 else COUNT if times == 1 else Place(Kind.COUNT, at=times)
