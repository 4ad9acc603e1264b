"""Operators: sums, products, comparisons, tests, and what they make of sums so far."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import libcst as cst

from dlrun.port.placement.interpret import parts, samples
from dlrun.port.placement.interpret.expressions import Expressions
from dlrun.port.placement.interpret.machine import arrays
from dlrun.port.placement.rules import Row
from dlrun.port.placement.store import REST, Obj, key_of, merge_diverged
from dlrun.port.placement.values import (
    BENT_COUNT,
    BY,
    CLOCK,
    COUNT,
    FROM,
    INDEX,
    MIX,
    MIXED,
    NOTHING,
    RATIO,
    SAME,
    Kind,
    Place,
    Quotient,
    Value,
    combine,
    constant,
    count,
    diverged,
    join,
    of_clock,
    power,
    unknown,
)
from dlrun.port.program.script import calls_method, dotted, walk

_SUMS = (cst.Add, cst.Subtract, cst.AddAssign, cst.SubtractAssign)
_SCALES = (cst.Multiply, cst.MultiplyAssign, cst.Divide, cst.DivideAssign)
_DIVIDES = (cst.Divide, cst.DivideAssign)
_ADDED = "it is added up where {} holds, which goes by what this rank alone has left so far"
_BETWEEN = "it is made with what this rank's iteration before left: in the serial script, others lie between"
_CARRIED = (Kind.RUN, Kind.EXTREME, Kind.MIX, Kind.RATIO, Kind.UNKNOWN)  # what earlier iterations have left
_UNEQUAL = (cst.NotEqual, cst.NotIn, cst.IsNot)
_SIZES = ("size", "some sizes")  # of an iteration's batch, and times a number: len(x), 20 * len(x)
_FINITE = ("isfinite", "isnan", "isinf")
_UNIONS = (cst.BitOr, cst.BitOrAssign)
_FLAGS = (*_UNIONS, cst.BitAnd, cst.BitAndAssign)
_COMPARES: dict[type[Any], Any] = {
    cst.Equal: operator.eq,
    cst.NotEqual: operator.ne,
    cst.LessThan: operator.lt,
    cst.GreaterThan: operator.gt,
    cst.LessThanEqual: operator.le,
    cst.GreaterThanEqual: operator.ge,
}

_BITS = (cst.BitAnd, cst.BitOr, cst.BitXor)
_BOUNDS = ("builtins.max", "builtins.min", "builtins.float", "builtins.int")


class Operators(Expressions):
    """Evaluates operators; each method returns the value of one kind of node."""

    def _BinaryOperation(self, node: cst.BinaryOperation) -> Value:  # noqa: N802
        left, right = self.eval(node.left), self.eval(node.right)
        for side, value in ((node.left, left), (node.right, right)):
            if self.recording and arrays(value) and (run := self.one_run(value)) is not None:
                self.seen[side][-1] = replace(self.seen_last(side), place=run)  # of counts / counts.sum() each is one
        return self.operated(node.operator, left, right, node)

    def operated(self, op: Any, left: Value, right: Value, node: cst.CSTNode) -> Value:
        """Return what an operator makes of two values."""
        custom = self.special(op, left, right, node)
        if custom is not None:
            return custom
        if isinstance(op, _UNIONS) and self._sets(left):
            return self._united(left, right, node)
        if isinstance(op, (cst.Add, cst.AddAssign)) and self._lists(left) and self._is_list(right):
            return self._united(left, right, node)
        if isinstance(op, (cst.Multiply, cst.MultiplyAssign)) and (self._lists(left) or self._lists(right)):
            return self._repeated(left if self._lists(left) else right, node)
        left, right = self._of_sample(left), self._of_sample(right)
        a, b = (self.one_run(v) or self.content(v) for v in (left, right))
        if isinstance(op, cst.Modulo) and isinstance(left.const, str):
            return self.text(node, b)
        if isinstance(op, cst.Multiply) and (isinstance(left.const, str) or isinstance(right.const, str)):
            return Value(combine([a, b]), scalar=False)  # "-" * 40
        if isinstance(op, (cst.Add, cst.AddAssign)) and (_is_text(left) or _is_text(right)):
            if Kind.RUN in (a.kind, b.kind) and not self.cadenced:
                text = "each rank writes the text of its own iterations into it"
                return Value(unknown(node, text), scalar=False, name="grown text")
            known = left.texts | right.texts if Kind.UNKNOWN not in (a.kind, b.kind) else frozenset()
            if isinstance(left.const, str) and isinstance(right.const, str):
                return constant(left.const + right.const)
            name = "grown text" if any(p.why is not None and p.why.node is node for p in (a, b)) else ""
            return Value(combine([a, b]), texts=known, scalar=False, name=name)
        if isinstance(op, (cst.Add, cst.AddAssign)) and left.name == "tuple" and a.kind is Kind.RUN:
            return Value(replace(a, adds=a.adds | {"joined"}, counts=False), scalar=False, name="tuple")
        if isinstance(op, _FLAGS) and (flag := self._flagged(left, right, _sides(node)[1], isinstance(op, _UNIONS))):
            return flag
        sure = not {left.name, right.name} & {"guessed"}
        if self.shards.parts and not isinstance(op, _SUMS):
            left, right = parts.unguessed(left), parts.unguessed(right)
        scalar = True if left.scalar and right.scalar else None
        if (
            isinstance(op, _SUMS)
            and (left.scalar or right.scalar)
            and left.scalar is not False
            and right.scalar is not False
            and not (arrays(left) or arrays(right))
        ):
            scalar = scalar or (True if left.place.uniform or left.place.counts else None)
        if a.kind is Kind.SAME and b.kind is Kind.SAME:
            return self._folded(op, left, right, scalar, node)
        if self.shards.parts and not isinstance(op, _SUMS) and Kind.ENTRY in (a.kind, b.kind):
            a, b = (SAME if p.counts else p for p in (a, b))
        if self.shards.parts and parts.contracts(op, replace(left, place=a), replace(right, place=b)):
            return Value(self.of_episode(parts.SUMMED))
        if self.shards.parts and (place := parts.operated(op, left, right, a, b)) is not None:
            name = parts.named(op, left, right, place) if not self.shards.episodes else ""
            if isinstance(op, _BITS) and parts.MASK in (left.name, right.name):
                name = parts.MASK
            name = name or ("guessed" if scalar and not (sure and left.scalar and right.scalar) else "")
            return Value(self.of_episode(place), scalar=None if name == "centered" else scalar, name=name)
        if self.cadenced and isinstance(op, _SUMS):
            a, b = self._meant(a, b, node)
        for one, other in ((a, right), (b, left)):
            if (
                one.kind in (Kind.INDEX, Kind.COUNT)
                and other.name == "size"
                and isinstance(op, (cst.Multiply, cst.Add))
            ):
                return Value(COUNT, scalar=True)  # samples so far
        if isinstance(op, (cst.Add, cst.AddAssign)) and a.untouched and b.kind is Kind.CLOCK:
            return Value(CLOCK, scalar=scalar)  # the time so far is this rank's, too
        if isinstance(op, _SUMS) and (place := _summed(a, b, isinstance(op, (cst.Add, cst.AddAssign)))) is not None:
            if not self.shards.ramped.isdisjoint(_sides(node)) and place.adds == {"same"}:
                return Value(replace(place, adds=frozenset({"fires"})), scalar=scalar)  # by as much an epoch
            if self.cadenced and place.adds == {"same"}:
                if self.loop is not None and len(self.diverged) > self.loop.outer and not self.shards.parts:
                    text = "ranks add to it by tests of their own, each as often as the serial script"
                    return Value(unknown(node, text, place.at), scalar=scalar)
                place = replace(place, adds=frozenset({"fires"}))  # as often as the serial script adds it
            if (test := self.under_carried) is not None and not self.shards.parts:
                return Value(unknown(node, _ADDED.format(self.script.code(test)), place.at), scalar=scalar)
            if any(p.kind is Kind.ENTRY and "earlier" in p.adds for p in (a, b)):
                return Value(unknown(node, _BETWEEN, place.at), scalar=scalar)
            if self.shards.parts:
                return Value(self._added(a, b, place, node), scalar=scalar)
            return Value(place if not self.is_diverged else self.counted(place), scalar=scalar)
        if not self.shards.parts:
            a, b = COUNT if a.counts else a, COUNT if b.counts else b
        elif (a.counts or b.counts) and a.uniform and b.uniform and isinstance(op, (*_SCALES, cst.Power)):
            decays = isinstance(op, cst.Multiply) and (a.untouched or b.untouched)  # m = 0.9 * m + ...
            if not decays:
                return Value(SAME, scalar=scalar)  # the serial number: ranks keep the serial steps
        if isinstance(op, (cst.Subtract, cst.SubtractAssign)) and b.untouched and a.kind is Kind.ENTRY:
            how = {parts.added(a, self.is_diverged)} if self.shards.parts else set[str]()
            return Value(replace(b, adds=frozenset({"lag", *how}), counts=False), scalar=scalar)
        if a.kind is Kind.RUN and a.adds == {"lag"} and isinstance(op, _DIVIDES) and b.kind in (Kind.COUNT, Kind.INDEX):
            return Value(replace(a, adds=frozenset({"lag", "step"})), scalar=scalar)
        b = SAME if self.shards.parts and "lag" in a.adds and b.counts else b  # ranks keep the serial steps
        sizes = set() if self.shards.parts else {left.name, right.name} & {*_SIZES}
        if right.name in sizes and isinstance(op, _DIVIDES) and a.kind in (Kind.RUN, Kind.RATIO):
            b = SAME  # full batches are as large on all ranks
        if isinstance(op, _SCALES) and a.kind is Kind.RUN and right.const == 1:
            return replace(left, place=a, refs=frozenset())
        if isinstance(op, _SCALES) and (place := _scaled(a, b, isinstance(op, _DIVIDES))) is not None:
            often = self.cadenced and not self.shards.parts and not self.is_diverged
            often = (often or not self.shards.ramped.isdisjoint(_sides(node))) and place.adds == {"scaled"}
            place = replace(place, adds=frozenset({"fires"})) if often else place  # as often as the serial script
            return Value(place, scalar=scalar)
        if (
            isinstance(op, cst.Divide)
            and a.kind is Kind.RUN
            and (b.kind is Kind.RUN or b.kind in (Kind.COUNT, Kind.INDEX))
        ):
            if self.shards.parts:
                return Value(parts.quotient(a, b), scalar=scalar)
            of_runs = a.adds and b.kind is Kind.RUN and b.adds
            return Value(replace(RATIO, at=Quotient(a, b)) if of_runs else RATIO, scalar=scalar)
        if isinstance(op, (cst.Modulo, cst.FloorDivide, cst.ModuloAssign)) and a.uniform and b.uniform:
            epochs = a.kind is not Kind.SAME and b.kind is Kind.COUNT  # of steps so far, by the steps of an epoch
            rest = isinstance(op, (cst.Modulo, cst.ModuloAssign))
            if not rest and left.name.startswith(BY) and self.script.code(_sides(node)[1]) == left.name[len(BY) :]:
                return Value(INDEX, scalar=True)  # i // 8 of range(0, n, 8)
            whole = self.shards.parts or b.kind is not Kind.SAME or a.kind is Kind.SAME
            name = "" if not rest else "remainder" if whole else "undivided"
            return Value(SAME if rest or epochs else BENT_COUNT, scalar=True, name=name)
        if a.uniform and b.uniform:
            return self._with_count(op, left, right, node, scalar)
        if (found := self._with_length(op, left, right, node)) is not None:
            return replace(found, scalar=scalar)
        if sizes and isinstance(op, cst.Multiply) and Kind.SAME in (a.kind, b.kind):
            return Value(combine([a, b]), scalar=scalar, name=_SIZES[1])
        bends = not isinstance(op, (*_SCALES, *_SUMS)) or (isinstance(op, _DIVIDES) and parts.is_mean(b))
        means = any(map(parts.is_mean, (a, b)))
        return Value(MIX if bends and means else combine([a, b]), scalar=scalar)

    def _meant(self, a: Place, b: Place, node: Any) -> tuple[Place, Place]:
        """Let what all ranks add as often as the serial script be the mean of theirs: it stands for one iteration's."""
        sides = _sides(node)
        for run, other, side in ((a, b, sides[1]), (b, a, sides[0])):
            if run.kind is Kind.RUN and other.kind is Kind.ENTRY and side is not None:
                forced = self.force(side, Value(other)).place
                return (run, forced) if run is a else (forced, run)
        return a, b

    def counted(self, place: Place) -> Place:
        """Return the placement of what is added on some ranks only, or more often on some: no count of iterations."""
        if self.shards.parts and not self.shards.episodes:
            entries = place.adds & {"same", "entry"}
            return Place(place.kind, place.at, place.adds - entries | {"summed"}) if entries else place
        if "same" not in place.adds:
            return place
        self.held_back.add(place.at)
        return Place(place.kind, place.at, place.adds - {"same"} | {"entry"})

    def at_cadence(self, node: cst.BaseExpression | None, entry: Value) -> Value:
        """Return what all ranks keep together every so many steps: the number of all of them, as the serial script's.

        The steps between are 1/n of the serial ones, so each keeps as many entries as the serial script.
        """
        alike = [v for v in entry.items or () if v.scalar or self.content(v).kind is Kind.SAME]
        numbers = entry.scalar or (entry.items and len(alike) == len(entry.items)) or entry.texts
        place = self.content(entry)
        objects = any(isinstance(r, Obj) and r.kind == "instance" for r in entry.refs)
        here = self.cadenced and not self.is_diverged and self.loop is not None
        if here and place.kind is Kind.SAME and not objects:
            return replace(entry, name="fires")
        told = numbers or (entry.refs and self.numbers(entry))
        if not self.cadenced or not told or place.kind in (Kind.SAME, Kind.UNKNOWN):
            return entry
        if entry.refs and place.uniform and isinstance(node, cst.Dict):
            self.note(node, Value(place, refs=entry.refs))  # the counts in it are looked for
        same = self.force(node, entry).place.kind is Kind.SAME
        return Value(SAME, scalar=entry.scalar, name="fires") if same else entry

    @staticmethod
    def _of_sample(value: Value) -> Value:
        """Return the number of a sample in a part as what is computed with: other parts have the same numbers."""
        return Value(parts.LOCAL, scalar=True) if value.name == samples.NTH else value

    def _added(self, a: Place, b: Place, place: Place, node: Any) -> Place:
        """Return ``place``, of a run with what each part adds to it."""
        run, other = (a, b) if a.kind is Kind.RUN else (b, a)
        if place.kind is not Kind.RUN or "lag" in other.adds or place.adds - run.adds - {"entry", "same", "decayed"}:
            return place
        how = parts.added(other, self.is_diverged)
        if how == "summed" and self._by_a_test_of_parts(other):
            how = "bent"
        elif how == "bent":
            sides = _sides(node)
            how = "same" if self.force(sides[run is a], Value(other)).place == SAME else "bent"
        how = "entry" if how == "summed" and self.shards.episodes else how
        return replace(place, adds=run.adds | {how} | (place.adds & {"decayed"}), counts=run.counts and how == "same")

    def _by_a_test_of_parts(self, other: Place) -> bool:
        """Tell whether a number that all ranks have is added by a test of each one's part: ``if odd(loss): n += 1``."""
        around = self.diverged[self.loop.outer :] if self.loop is not None and not self.shards.episodes else []
        if any(self.seen_last(test).name == samples.NTH for test in around):
            return True  # for the first samples of each part: if k < 3
        within = self.playing or self.loop is None or self.loop.inner > 0 or self.shards.episodes
        return other.uniform and self.is_diverged and not within

    def _with_length(self, op: Any, left: Value, right: Value, node: Any) -> Value | None:
        """Return what an entry over the length of a shard is: over the serial length; a loss is n times its part."""
        sides = _sides(node)
        for length, other, side in ((left, right, sides[0]), (right, left, sides[1])):
            if length.name != "length" or self.content(other).kind is not Kind.ENTRY or not isinstance(op, _SCALES):
                continue
            if other.name == "number" and side is not None and side not in self.shards.divided:
                self.restored.setdefault(side, None) if self.recording else None
                return Value(self.content(other), name="number")
            if isinstance(op, _DIVIDES) and length is right:
                return Value(Place(Kind.ENTRY, adds=frozenset({"part"})))
        return None

    def _with_count(self, op: Any, left: Value, right: Value, node: Any, scalar: bool | None) -> Value:
        """Return what is made with a count; where the other side is serial already, the count becomes so, too."""
        a, b = self.content(left), self.content(right)
        sides = _sides(node)
        counts = (Kind.COUNT, Kind.INDEX)
        for value, own, place, side in ((left, a, b, sides[1]), (right, b, a, sides[0])):
            serial = self.loop is None and self.serial(value) and own.kind not in counts
            if serial and place.kind in counts and place.at not in ("bent", "mixed") and side is not None:
                self.restored.setdefault(side, None) if self.recording else None
                return Value(SAME, scalar=scalar, reduced=True)
            if serial and place.at == "bent" and (inner := self._counts_in(side)):
                self.restored.update(dict.fromkeys(inner))
                return Value(SAME, scalar=scalar, reduced=True)
            if self.loop is None and self.recording and own.kind in counts and side is not None:
                self.restored.pop(side, None)  # the first epoch alone began with a serial number
        if isinstance(op, _SUMS) and (left.zero or right.zero):
            return Value(b if left.zero else a, scalar=scalar)
        if isinstance(op, _SCALES) and left.zero and a == SAME:
            return Value(SAME, scalar=scalar, zero=True)
        one = isinstance(op, cst.Add) and 1 in (left.const, right.const)
        a, b = COUNT if a.counts else a, COUNT if b.counts else b
        if isinstance(op, _DIVIDES) and a == COUNT and self._above_zero(sides[1]):
            b = COUNT  # the share of steps that did something: clipped / max(1, steps)
        return Value(_ratio(op, a, b, one, self.loop is not None), scalar=scalar)

    def _counts_in(self, side: cst.BaseExpression | None) -> list[cst.BaseExpression]:
        """Return the counts that a call holds within bounds, or converts: ``n`` of ``max(n, 1)``."""
        if not isinstance(side, cst.Call) or self.script.name_of(side.func) not in _BOUNDS or not self.recording:
            return []
        places = {arg.value: self.seen_last(arg.value).place for arg in side.args}
        return [n for n, p in places.items() if p.kind in (Kind.COUNT, Kind.INDEX) and p.at is None]

    def _above_zero(self, side: cst.BaseExpression | None) -> bool:
        """Tell whether ``side`` is a count that is held above zero: ``max(1, steps)``."""
        if not isinstance(side, cst.Call) or self.script.name_of(side.func) != "builtins.max" or len(side.args) != 2:
            return False
        values = [self.seen_last(arg.value) for arg in side.args]
        least = any(isinstance(value.const, (int, float)) and value.const <= 1 for value in values)
        return least and any(value.place == COUNT or value.place.counts for value in values)

    def special(self, op: Any, left: Value, right: Value, node: cst.CSTNode) -> Value | None:
        """Return what a dunder method of the program makes of two values; see ``classes``."""
        raise NotImplementedError

    def _folded(self, op: Any, left: Value, right: Value, scalar: bool | None, node: Any) -> Value:
        if isinstance(left.const, str) and isinstance(right.const, str) and isinstance(op, cst.Add):
            return constant(left.const + right.const)
        zero = isinstance(op, (cst.Multiply, cst.Divide)) and left.zero
        made = Value(SAME, scalar=scalar, zero=zero, reduced=self.serial(left) or self.serial(right))
        return self.array(made, node) if not scalar and (arrays(left) or arrays(right)) else made

    def _repeated(self, value: Value, node: cst.CSTNode) -> Value:
        made = self.new("list", node, "repeated")
        entry = self.entries(value)
        self.write((made, REST), entry)
        return Value(refs=frozenset([made]), zero=entry.zero)

    def _UnaryOperation(self, node: cst.UnaryOperation) -> Value:  # noqa: N802
        value = self.eval(node.expression)
        if isinstance(node.operator, cst.Not) and isinstance(value.const, bool):
            return constant(not value.const)
        if isinstance(node.operator, cst.Minus) and isinstance(value.const, (int, float)):
            return constant(-value.const)
        place = self.content(value)
        if place.kind is Kind.SAME and arrays(value) and not isinstance(node.operator, cst.Not):
            return self.array(Value(zero=value.zero, scalar=value.scalar, reduced=self.serial(value)), node)
        linear = isinstance(node.operator, (cst.Minus, cst.Plus)) and place.kind is Kind.RUN
        negated = {"remainder": "cadence", "between": "cadence", "cadence": "between"}
        name = negated.get(value.name, "") if isinstance(node.operator, cst.Not) else ""
        if isinstance(node.operator, cst.BitInvert) and value.name == parts.MASK:
            name = parts.MASK
        return Value(place if linear else combine([place]), scalar=value.scalar, name=name)

    def _BooleanOperation(self, node: cst.BooleanOperation) -> Value:  # noqa: N802
        left = self.eval(node.left)
        ends = isinstance(node.operator, cst.And)
        if left.const is not NOTHING and bool(left.const) is not ends:
            return left
        place, before = self.content(left), self.state
        with self.at_pace(node.left, left, otherwise=not ends), self.branching(node.left, place):
            right = self.eval(node.right)
        self.state = merge_diverged(self.state, before, node.left) if self._splits(place) else self.state
        if left.const is not NOTHING:
            return right
        if (self.content(left).kind is Kind.SAME or self.objects_in([left])) and (left.refs or right.refs):
            return join(left, right)
        if (flag := self._flagged(left, right, node.right, not ends)) is not None:
            return flag
        name = self._name_of_test(node, [left, right]) if left.place.uniform and right.place.uniform else ""
        return Value(combine([self.content(left), self.content(right)]), scalar=True, name=name)

    def _flagged(self, left: Value, right: Value, node: cst.CSTNode | None, either: bool) -> Value | None:
        """Return what ``seen = seen or x > 1`` (``either``), or ``fine = fine and x > 1``, carries on; else None."""
        how = frozenset({"max" if either else "min"})
        goes_on = left.place.untouched or (left.place.kind is Kind.EXTREME and left.place.adds == how)
        if self.shards.parts and (goes_on or left.place.uniform):
            test = isinstance(node, cst.BaseExpression) and not right.place.uniform and self.of_iteration(node)
            return Value(scalar=True) if test else None
        if not goes_on or self.shards.parts or right.place.kind is not Kind.ENTRY:
            return None
        truth = isinstance(node, cst.Comparison) or (
            isinstance(node, cst.UnaryOperation) and isinstance(node.operator, cst.Not)
        )
        return (
            Value(Place(Kind.EXTREME, left.place.at, how), scalar=True) if truth and self.began_as_truth(left) else None
        )

    def dunder(
        self, value: Value, name: str, args: list[Value], node: cst.CSTNode, keywords: dict[str, Value] | None = None
    ) -> Value | None:
        """Return what a special method of the program's objects returns; see ``protocols``."""
        raise NotImplementedError

    def objects_in(self, given: list[Value]) -> frozenset[Any]:
        """Return the objects of the program's plain classes among ``given``; see ``given``."""
        raise NotImplementedError

    def began_as_truth(self, value: Value) -> bool:
        """Tell whether what a loop carries was True or False when it began; see ``loops``."""
        raise NotImplementedError

    def is_of_kind(self, value: Value, kinds: cst.BaseExpression) -> Value | None:
        """Return whether ``value`` is of one of ``kinds``, where it is known to be a tuple; else None."""
        named = [e.value for e in kinds.elements] if isinstance(kinds, (cst.Tuple, cst.List)) else [kinds]
        names = [self.script.name_of(kind) for kind in named]
        if value.items is None or value.name != "tuple" or not all(name.startswith("builtins.") for name in names):
            return None
        return constant("builtins.tuple" in names)

    def _kind_compared(self, node: cst.Comparison) -> Value | None:
        """Return what ``type(x) in (tuple, list)`` tells, or ``type(x) is tuple``; None of another test."""
        asked, (first, *more) = node.left, node.comparisons
        typed = isinstance(asked, cst.Call) and self.script.name_of(asked.func) == "builtins.type"
        if more or not typed or len(asked.args) != 1:  # type: ignore[attr-defined]
            return None
        found = self.is_of_kind(self.seen_last(asked.args[0].value), first.comparator)  # type: ignore[attr-defined]
        if found is None or isinstance(first.operator, (cst.In, cst.Is, cst.Equal)):
            return found
        negated = isinstance(first.operator, (cst.NotIn, cst.IsNot, cst.NotEqual))
        return constant(not found.const) if negated else None

    def _Comparison(self, node: cst.Comparison) -> Value:  # noqa: N802
        sides = [self.eval(node.left), *(self.eval(c.comparator) for c in node.comparisons)]
        if (known := self._kind_compared(node)) is not None:
            return known
        numbers = any(isinstance(s.const, (int, float)) for s in sides)  # size is not 32: of numbers, as good as !=
        if any(isinstance(c.operator, (cst.Is, cst.IsNot)) for c in node.comparisons) and not numbers:
            return self._identity(node, sides)
        if len(sides) == 2 and all(s.const is not NOTHING for s in sides):
            compare = _COMPARES.get(type(node.comparisons[0].operator))
            try:
                return constant(compare(sides[0].const, sides[1].const)) if compare else Value(scalar=True)
            except TypeError:
                return Value(scalar=True)
        if any(s.name == samples.NTH for s in sides):
            return Value(parts.LOCAL, scalar=True, name=samples.NTH)
        places = [self.content(s) for s in sides]
        if isinstance(node.comparisons[0].operator, (cst.In, cst.NotIn)) and len(sides) == 2:
            if (own := self.dunder(sides[1], "__contains__", sides[:1], node)) is not None:
                return own
            dicts = [r for r in sides[1].refs if isinstance(r, Obj) and r.kind == "dict"]
            if dicts and len(dicts) == len(sides[1].refs):
                places[1] = combine(self.keys_in(ref) for ref in dicts)  # it asks for a key, whatever is held there
        if all(p.uniform for p in places):
            if self.recording:
                self.compared[node] = self.compared.get(node, True) and self.loop is None
            return Value(SAME, scalar=True, name=self._name_of_test(node, sides))
        scalar = True if all(s.scalar for s in sides) else None
        place = combine(places)
        if self.shards.parts and place.kind is Kind.ENTRY and (scalar or parts.beside_means(sides)):
            place = (
                parts.BENT if scalar else self.of_episode(parts.LOCAL)
            )  # that of the mean, not the mean of the ranks' answers
        masks = self.shards.parts and parts.is_of_samples(Value(scalar=scalar), place)
        return Value(place, scalar=scalar, name=parts.MASK if masks else "")

    def _name_of_test(self, node: cst.BaseExpression, sides: list[Value]) -> str:
        """Return what a test of counts is: a cadence, what asks for a rest that is not divided, or neither."""
        if any(s.name == "undivided" for s in sides):
            return "undivided"
        if self.shards.parts:
            return ""
        names = {"between" if s.name == "remainder" else s.name for s in sides} & {"between", "cadence"}
        if isinstance(node, cst.Comparison):
            others = (*_UNEQUAL, cst.GreaterThan) if names else _UNEQUAL  # a rest above 0
            unequal = any(isinstance(c.operator, others) for c in node.comparisons)
            asks = bool(names) or self._is_met_once(node, sides) or self.asks_cadence(node)
            return ("between" if unequal else "cadence") if asks else ""
        either = isinstance(node, cst.BooleanOperation) and isinstance(node.operator, cst.Or)
        return min(names, key=lambda name: (name == "cadence") is either, default="")

    def _is_met_once(self, node: cst.Comparison, sides: list[Value]) -> bool:
        """Tell whether a count of iterations is compared with one from before the loop: ``i + 1 == len(loader)``.

        Or with 0: the first of all iterations, or that at which nothing of a number of steps is left.
        """
        same = (cst.Equal, cst.NotEqual, cst.Is, cst.IsNot)
        if len(sides) != 2 or not isinstance(node.comparisons[0].operator, same):
            return False
        counting = [self._counts_on(side) for side in (node.left, node.comparisons[0].comparator)]
        if counting not in ([True, False], [False, True]):
            return False
        other, count = sides[counting.index(False)], (node.left, node.comparisons[0].comparator)[counting.index(True)]
        none = other.const == 0 and other.const is not False and isinstance(count, (cst.Name, cst.Attribute))
        return none or other.place.kind is Kind.COUNT

    def _counts_on(self, side: cst.BaseExpression) -> bool:
        """Tell whether ``side`` is made of what counts the iterations of the loop that is run."""
        with self.unrecorded():
            names = (n for n in walk(side) if isinstance(n, (cst.Name, cst.Attribute)) and n in self.script.scopes)
            values = [self.eval(n) for n in names]
        places = [value.place for value in values]
        numbers = any(value.name.startswith(FROM) for value in values)
        return numbers or any(p.kind is Kind.INDEX or (p.kind is Kind.RUN and p.counts) for p in places)

    def keys_in(self, ref: Obj) -> Place:
        """Return the placement of a dict's keys; see ``containers``."""
        raise NotImplementedError

    def _identity(self, node: cst.Comparison, sides: list[Value]) -> Value:
        none = len(sides) == 2 and sides[1].const is None
        if none and (got := self.got(node.left)) is not None and (asked := self._of_keys(got)) is not None:
            return asked
        if none and (sides[0].refs or sides[0].items is not None) and sides[0].const is NOTHING:
            return (
                Value(scalar=True)
                if len(sides[0].refs) > 1
                else constant(isinstance(node.comparisons[0].operator, cst.IsNot))
            )
        if none and sides[0].const is not NOTHING:
            return constant((sides[0].const is None) is isinstance(node.comparisons[0].operator, cst.Is))
        if none and self.is_first(sides[0]):
            return constant(isinstance(node.comparisons[0].operator, cst.IsNot))
        return Value(scalar=True)

    def got(self, node: cst.BaseExpression) -> cst.Call | None:
        """Return the ``d.get(key)`` that ``node`` is, or names: None where there is no such key."""
        bound = [b.value for b in self.script.bindings_of(node)] if isinstance(node, cst.Name) else []
        calls = [n for n in bound if isinstance(n, cst.Call) and calls_method(n, "get") and len(n.args) == 1]
        if calls and calls[0] is bound[0]:
            return calls[0]  # row = d.get(key), before if row is None: row = d[key] = {}
        return node if isinstance(node, cst.Call) and calls_method(node, "get") and len(node.args) == 1 else None

    def _of_keys(self, got: cst.Call) -> Value | None:
        """Return what asks whether a dict has the key of ``d.get(key)``; None where it is known that it has it."""
        assert isinstance(got.func, cst.Attribute)
        owner, key = self.seen_last(got.func.value), self.seen_last(got.args[0].value)
        dicts = [ref for ref in owner.refs if isinstance(ref, Obj) and ref.kind == "dict"]
        known = key_of(key.const)
        if not dicts or (known is not None and all((self.state or {}).get((ref, known)) is not None for ref in dicts)):
            return None
        return Value(combine([self.content(key), *map(self.keys_in, dicts)]), scalar=True)

    def is_first(self, value: Value) -> bool:
        """Tell whether ``value`` is what a loop carries from a None that stands for zero; see ``loops``."""
        raise NotImplementedError

    def of_serial_number(self, node: cst.If | cst.IfExp, test: Value) -> Value:
        """Return a test of an iteration's number as one of the serial number; see ``control_flow``."""
        raise NotImplementedError

    def _IfExp(self, node: cst.IfExp) -> Value:  # noqa: N802
        test = self.of_serial_number(node, self.eval(node.test))
        self.tested(node)
        if test.const is not NOTHING:
            return self.eval(node.body if test.const else node.orelse)
        agreed = self.of_iteration(node.test)
        place = SAME if agreed else self.content(test)
        before = self.state
        with self.at_pace(node.test, test), self.branching(node.test, place):
            body = self.eval(node.body)
        then, self.state = self.state, before if self._splits(place) else self.state
        with self.at_pace(node.test, test, otherwise=True), self.branching(node.test, place):
            orelse = self.eval(node.orelse)
        self.state = merge_diverged(then, self.state, node.test) if self._splits(place) else self.state
        value = join(body, orelse)
        if "cut" in (body.name, orelse.name):
            value = replace(value, name="cut")  # recent[-9:] if len(recent) > 9 else recent
        row = self._row_of_choice(node.test, node.body, node.orelse)
        if row is not None and not self.shards.parts:
            return self.reduced(row, [body, orelse], {}, node)
        if row is not None and (kept := self._kept_of_parts(node, body, orelse)) is not None:
            return kept
        if self.loop is None and place.kind is Kind.CLOCK:
            return value if body == orelse else of_clock(value)
        if place.uniform or self.loop is None:
            return value
        chosen = self._chosen_by(node.test, place, body, orelse)
        return replace(chosen, name=value.name, items=self._items_chosen(node, place, body, orelse))

    def _splits(self, place: Place) -> bool:
        """Tell whether some ranks go one way by a test that is placed so, and some the other."""
        return self.loop is not None and not place.uniform

    @contextmanager
    def branching(self, test: cst.BaseExpression, place: Place) -> Iterator[None]:
        """Run what a test that is placed so lets some ranks run, within an expression: ``loss > 9 and warn(loss)``."""
        before, around = self.state, len(self.diverged)
        if self._splits(place):
            self.state = dict(before) if before is not None else None
            self.diverged.append(test)
            self.by_carried[test] = self.is_carried(test, place)
        try:
            yield
        finally:
            del self.diverged[around:]

    def is_carried(self, test: cst.BaseExpression, place: Place) -> bool:
        """Tell whether a test asks for what this rank's iteration before has set: ``loss > before``."""
        if place.kind in _CARRIED:
            return True
        names = [n.value for n in walk(test) if isinstance(n, cst.Name)]
        places = [(home, name) for name in names if (home := self.home(name)) is not None]
        left = [
            value for at in places if (value := (self.state or {}).get(at)) is not None and value is self.begun.get(at)
        ]
        return any(value.place.kind is Kind.ENTRY for value in left)

    def _chosen_by(self, test: cst.BaseExpression, place: Place, one: Value, other: Value) -> Value:
        """Return what a test that diverges chooses: where it is what earlier iterations left, as an ``if`` sets it."""
        either = join(one, other)
        if one.place.untouched is not other.place.untouched:
            set_by = diverged(one, other, test)
            if set_by.place.kind is Kind.UNKNOWN:
                return set_by
        return either.at(combine([place, self.content(either)]))

    def _items_chosen(self, node: cst.IfExp, place: Place, body: Value, orelse: Value) -> tuple[Value, ...] | None:
        """Return each entry of a tuple that a test placed so chooses: ``low, at = (v, k) if v < low else low, at``."""
        if body.items is None or orelse.items is None or len(body.items) != len(orelse.items):
            return None
        written = [n.elements if isinstance(n, cst.Tuple) else () for n in (node.body, node.orelse)]
        found = []
        for k, (one, other) in enumerate(zip(body.items, orelse.items, strict=True)):
            sides = [elements[k].value for elements in written if len(elements) == len(body.items)]
            row = self._row_of_choice(node.test, *sides) if len(sides) == 2 else None
            if row is not None and not self.shards.parts:
                found.append(self.reduced(row, [one, other], {}, node))
            else:
                found.append(self._chosen_by(node.test, place, one, other))
        return tuple(found)

    def _row_of_choice(
        self, test: cst.BaseExpression, body: cst.BaseExpression, orelse: cst.BaseExpression
    ) -> Row | None:
        """Return whether ``x if x < low else low`` is the lesser or the greater of two; None where it is neither."""
        if not isinstance(test, cst.Comparison) or len(test.comparisons) != 1:
            return None
        operator_ = test.comparisons[0].operator
        less = isinstance(operator_, (cst.LessThan, cst.LessThanEqual))
        sides = [self.script.code(test.left), self.script.code(test.comparisons[0].comparator)]
        chosen = [self.script.code(body), self.script.code(orelse)]
        if not (less or isinstance(operator_, (cst.GreaterThan, cst.GreaterThanEqual))) or sides[0] == sides[1]:
            return None
        if sorted(sides) != sorted(chosen):
            return None
        return Row.MIN if less is (chosen[0] == sides[0]) else Row.MAX

    def _kept_of_parts(self, node: cst.IfExp, body: Value, orelse: Value) -> Value | None:
        """Return the extreme so far of whole iterations, of which ranks have parts; None of anything else."""
        compared = node.test.comparisons[0].comparator if isinstance(node.test, cst.Comparison) else None
        for mine, value, other in ((node.body, body, orelse), (node.orelse, orelse, body)):
            if not other.place.untouched or self.content(value).kind is not Kind.ENTRY or not value.scalar:
                continue
            first = self.script.code(mine) == self.script.code(node.test.left)  # type: ignore[attr-defined]
            self.force(node.test.left if first else compared, value)  # type: ignore[attr-defined]
            if self.force(mine, value).place == SAME:
                return Value(replace(other.place, adds=frozenset({"same"})), scalar=True)
        return None

    def reduced(self, row: Row, args: list[Value], keywords: dict[str, Value], node: cst.CSTNode) -> Value:
        """Return the extreme of several values; see ``libraries``."""
        raise NotImplementedError

    def of_iteration(self, test: cst.BaseExpression) -> bool:
        """Let the numbers that a test compares be those of the iteration, where ranks have parts of it; tell whether.

        All ranks answer it alike then, as the serial script does: ``if loss.item() > 10``.
        """
        if not self.shards.parts or self.is_diverged or self.loop is None:
            return False
        if isinstance(test, cst.BooleanOperation):
            return self.of_iteration(test.left) and self.of_iteration(test.right)
        if isinstance(test, cst.UnaryOperation) and isinstance(test.operator, cst.Not):
            return self.of_iteration(test.expression)
        if isinstance(test, cst.Call) and dotted(test.func).rpartition(".")[2] in _FINITE and len(test.args) == 1:
            with self.unrecorded():
                number = self.eval(test.args[0].value)
            if number.place.kind is Kind.ENTRY and number.scalar and not number.refs:
                self.force(test.args[0].value, number)
                return True
        compares = isinstance(test, cst.Comparison)
        sides = [test.left, *(c.comparator for c in test.comparisons)] if isinstance(test, cst.Comparison) else [test]
        with self.unrecorded():
            values = [self.eval(side) for side in sides]
        local = [(side, value) for side, value in zip(sides, values, strict=True) if not self.content(value).uniform]
        counted = all("summed" in value.place.adds for _, value in local)  # if hits: all ranks' together are those
        if not local or not (compares or counted):
            return not local
        if any(value.place.kind is not Kind.ENTRY or not value.scalar or value.refs for _, value in local):
            return False
        for side, value in local:
            self.force(side, value)
        return True

    def tested(self, node: Any) -> None:
        """Note a test; see ``control_flow``."""
        raise NotImplementedError


def _is_text(value: Value) -> bool:
    return bool(value.texts) or isinstance(value.const, str) or value.scalar is False


def _sides(node: Any) -> tuple[Any, Any]:
    """Return the two sides of an operation; of ``x += y`` the right one, of a call none."""
    if isinstance(node, cst.BinaryOperation):
        return node.left, node.right
    return None, getattr(node, "value", None)


def _summed(a: Place, b: Place, adds: bool) -> Place | None:
    """Return the placement of a sum or difference in which a run takes part, or a count."""
    for run, lag in ((a, b), (b, a)):  # m + (x - m) / n, a running mean; m + r * (x - m), a moving average
        if run.untouched and lag.kind is Kind.RUN and lag.at == run.at and "lag" in lag.adds and adds:
            parted = lag.adds & {"entry", "summed", "bent"}  # where iterations have parts
            return replace(run, adds=parted | {"mean" if "step" in lag.adds else "decayed"}, counts=False)
    for run, other in ((a, b), (b, a)):
        if run.kind is Kind.RUN and (adds or run is a):
            if other.kind in (Kind.ENTRY, Kind.SAME, Kind.COUNT, Kind.INDEX):
                what = {("part" if "part" in other.adds else "entry") if other.kind is Kind.ENTRY else "same"}
                if other.kind is Kind.COUNT and power(other) == -1:  # 1 / len(loader): n times as much, 1/n as often
                    part = replace(run, adds=frozenset({"fraction"}), counts=False)
                    return part if run.adds <= part.adds else MIX
                if other.kind is Kind.INDEX:
                    what = {"numbers"}  # of iterations: others than the serial script adds up
                what |= {"decayed"} if "scaled" in run.adds else set()
                return replace(run, adds=run.adds | what, counts=run.counts and other.kind is not Kind.ENTRY)
            if run.untouched and other.kind is Kind.CLOCK:
                return other  # the time that this rank took so far
            return MIX if other.kind is not Kind.UNKNOWN else other
    return None


def _scaled(a: Place, b: Place, divides: bool) -> Place | None:
    """Return the placement of a run that is multiplied or divided by a serial number: it stays linear."""
    for run, other in ((a, b), (b, a)):
        if run.kind is Kind.RUN and other.kind is Kind.SAME and (run is a or not divides):
            return replace(run, adds=run.adds | {"scaled"})
    return None


def _ratio(op: Any, a: Place, b: Place, one: bool, inside: bool) -> Place:
    """Return what an operator makes of two numbers that are alike on all ranks; ``one``: it adds 1, ``inside`` a loop.

    What is no multiple of the counts is bent: 100 - steps. To be shown, it is computed anew from the serial counts.
    """
    marks = {p.at for p in (a, b) if p.kind is Kind.COUNT}
    if marks & {"mixed", "bent"}:
        return MIXED if "mixed" in marks else BENT_COUNT
    if isinstance(op, _SCALES):
        if {a.kind, b.kind} == {Kind.INDEX, Kind.SAME}:
            return BENT_COUNT if isinstance(op, _DIVIDES) and a.kind is Kind.SAME else replace(INDEX, at="scaled")
        return count(power(a) - power(b) if isinstance(op, _DIVIDES) else power(a) + power(b))
    if not isinstance(op, _SUMS):
        return BENT_COUNT
    if {a, b} == {COUNT, INDEX}:
        return INDEX if isinstance(op, cst.Add) else BENT_COUNT
    if one and ({a, b} == {INDEX, SAME} or (inside and {a, b} == {COUNT, SAME})):
        return COUNT  # of what is counted from 0, the number so far
    return a if a == b else BENT_COUNT
