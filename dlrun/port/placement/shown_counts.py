"""Counts where they are shown: of local iterations they become the serial ones."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from dlrun.port.placement.interpret.machine import Sink
from dlrun.port.placement.made_serial import COMPUTES, MadeSerial
from dlrun.port.placement.store import Obj
from dlrun.port.placement.values import BY, COUNT, INDEX, NOTHING, SAME, Kind, Place, Value, power
from dlrun.port.placement.wraps import Wrap
from dlrun.port.program.script import walk
from dlrun.port.steps.counts.conditions import divided as rests_of
from dlrun.port.steps.counts.conditions import is_one_less

_NEXT = (cst.Add, cst.Subtract)
_BOXES = (cst.FormattedString, cst.ConcatenatedString, cst.List, cst.Dict, cst.Tuple)
_BETWEEN = "between"  # of those that a local iteration stands for it is neither the first nor the last
COUNTED = {1: "serial_steps", -1: "over_ranks"}  # by how many times n makes a count serial


class ShownCounts(MadeSerial):
    """Finds what makes counts serial where they are shown."""

    def count(self, node: cst.BaseExpression, place: Place) -> list[Wrap]:
        """Return what makes a count serial where it is shown: behind the loop, and every so many steps inside it."""
        sink = self.sink
        if sink is None or node in self.run.shards.divided:
            return []
        handed = [n for n in walk(node) if isinstance(n, cst.Name) and self._at_times_serial(n)]
        if handed:
            return [wrap for name in handed for wrap in self._handed(name)]
        how = "serial_index" if place.kind is Kind.INDEX else COUNTED.get(power(place), "")
        how = "" if place.at == "bent" else how
        plain = how == "serial_steps" or place == INDEX
        if isinstance(node, cst.Subscript) and place.at in ("bent", "mixed") and self.place(node.value) == SAME:
            keys = [e.slice.value for e in node.slice if isinstance(e.slice, cst.Index)]
            return [wrap for key in keys if self.is_count(key) for wrap in self.count(key, self.place(key))]
        if isinstance(node, COMPUTES) and (not plain or self._bends(node, place)):
            found = self.wraps_inside(node, True, place) or []
            if not found and place.at == "bent" and isinstance(node, cst.Call) and self._is_own(node):
                self.lost.append(node)  # a function of the program's has made it of local counts
            return found
        behind = sink.loop is None or self.goes_on
        if stride := self._stride(node):
            asked = self._asked_around(sink, INDEX) if not behind else "serial_index"
            asked = None if asked == _BETWEEN else asked
            return [Wrap(node, asked, stride if asked == "serial_index" else "")] if asked is not None else []
        if not how or (behind and place.at == "scaled" and not isinstance(node, COMPUTES)):
            self.lost.append(node)
            return []
        if isinstance(node, _BOXES) or not self.is_number(node):
            computes = isinstance(node, COMPUTES) and not (isinstance(node, cst.Call) and self._is_own(node))
            if not computes and any(map(_holds_counts, self.run.seen.get(node, ()))):
                self.lost.append(node)  # best = (accuracy, step), shown as a whole
            return (self.wraps_inside(node, True, place) or []) if isinstance(node, COMPUTES) else []
        if behind:
            return [Wrap(node, how)]
        first = self._one_more(node)
        if first is not None and self._asked_around(sink, INDEX) == "serial_steps":
            return [Wrap(first, "serial_steps")]  # i + 1, at the first of so many
        number = self._multiplied(node)
        if number is not None and self._asked_around(sink, INDEX) == "serial_index":
            return [Wrap(number, "serial_index")]  # i * len(x), at the last of so many
        asked = self._asked_around(sink, place) or (
            how if sink.curve or (sink.ended and not self._counts_ends(place)) else None
        )
        if asked == _BETWEEN:
            self.lost.append(node)
            return []
        return [Wrap(node, asked)] if asked is not None else []

    def _counts_ends(self, place: Place) -> bool:
        """Tell whether a count goes up where a shard ends, as often as in the serial script: ``epoch += 1``."""
        values = (v for values in self.run.seen.values() for v in values)
        return any(v.place.at == place.at and "fires" in v.place.adds for v in values if v.place.kind is Kind.RUN)

    def _stride(self, node: cst.BaseExpression) -> str:
        """Return the stride by which the number of an iteration goes up, as it is written: 8 of ``range(0, n, 8)``."""
        names = (value.name for value in self.run.seen.get(node, ()))
        return next((name.removeprefix(BY) for name in names if name.startswith(BY)), "")

    def _multiplied(self, node: cst.BaseExpression) -> cst.BaseExpression | None:
        """Return the number of an iteration that ``node`` multiplies by the size of a batch; else None."""
        if not isinstance(node, cst.BinaryOperation) or not isinstance(node.operator, cst.Multiply):
            return None
        return next((side for side in (node.left, node.right) if self.place(side) == INDEX), None)

    def _one_more(self, node: cst.BaseExpression) -> cst.BaseExpression | None:
        """Return the number of an iteration to which ``node`` adds 1, counting from there; else None."""
        if not isinstance(node, cst.BinaryOperation) or not isinstance(node.operator, cst.Add):
            return None
        for side, other in ((node.left, node.right), (node.right, node.left)):
            if self.place(side) == INDEX and isinstance(other, cst.Integer) and other.evaluated_value == 1:
                return side
        return None

    def _asked_around(self, sink: Sink, place: Place) -> str | None:
        """Return what makes a count serial by the tests around what is shown, up to its loop; see ``_asked_at``."""
        asked: list[str | None] = []
        for up in self.script.above(sink.call):
            asked += [self._asked_at(up.test, place)] if isinstance(up, cst.If) else []
            if sink.loop is not None and up is sink.loop.node:
                break
        asked += [self._asked_at(made, place) for test in sink.paces for made in self._made_of(test)]
        return "serial_index" if "serial_index" in asked else next(filter(None, asked), None)

    def _made_of(self, test: cst.BaseExpression, deep: int = 3) -> Iterator[cst.BaseExpression]:
        """Yield ``test`` and what names and functions of the program in it answer: ``due``, ``is_due(step, 100)``."""
        yield test
        for n in walk(test) if deep else ():
            made: list[cst.BaseExpression | None] = []
            if isinstance(n, cst.Name):
                made = [b.value for b in self.script.bindings_of(n) if isinstance(b.node, (cst.Assign, cst.NamedExpr))]
            elif isinstance(n, cst.Call):
                made = [each for target in self.facts.flow.targets(n) for each in self.facts.flow.returns(target)]
            for each in made:
                yield from self._made_of(each, deep - 1) if each is not None else ()

    def _at_times_serial(self, node: cst.Name) -> bool:
        """Tell whether a parameter is a count in some calls of its function, and a serial number in others."""
        if any(bound.how != "param" for bound in self.script.bindings_of(node)):
            return False
        values = [v for v in self.run.seen.get(node, ()) if v.scalar]
        serial = any(v.place.kind is Kind.SAME and not v.zero and v.const is not None for v in values)
        return serial and any(v.place.kind in (Kind.COUNT, Kind.INDEX) or v.place.counts for v in values)

    def _handed(self, node: cst.Name) -> list[Wrap]:
        """Return what makes the counts serial that calls hand to a function as ``node``, if all it does is show it."""
        function, sink = self.script.function_of(node), self.sink
        shows = {n for sinks in self.run.sinks.values() for s in sinks for part in s.shows for n in walk(part)}
        uses = [n for n in walk(function) if isinstance(n, cst.Name) and n.value == node.value and n in self.run.seen]
        calls = self.facts.flow.callers(function)
        given = [self.facts.flow.argument(call, function, node.value) for call in calls]  # type: ignore[arg-type]
        if sink is None or not shows.issuperset(uses) or any(value is None for value in given):
            self.lost.append(node)
            return []
        found: list[Wrap] = []
        for call, value in zip(calls, given, strict=True):
            loops = [s.loop for s in self.run.sinks[sink.call] if s.loop and self.script.inside(call, s.loop.node)]
            self.sink = Sink(call, (value,), loops[0] if loops else None, ())  # type: ignore[arg-type]
            found += self.count(value, self.place(value)) if self.is_count(value) else []  # type: ignore[arg-type]
        self.sink = sink
        return found

    def remainders(self, part: cst.CSTNode) -> list[Wrap]:
        """Return what makes remainders of counts serial, ``step % 7``, wherever they are in what is shown."""
        found: list[Wrap] = []
        for n in walk(part):
            if not any(v.name in ("remainder", "undivided") for v in self.run.seen.get(n, ())[-1:]):
                continue
            if isinstance(n, cst.BinaryOperation):
                for side in (n.left, n.right):
                    found += self.count(side, self.place(side)) if self.is_count(side) else []
            elif isinstance(n, (cst.Name, cst.Attribute)) and self.count(n, COUNT):
                self.lost.append(n)  # of what it is the remainder, is no longer seen
        return found

    def fractions(self, part: cst.CSTNode) -> list[Wrap]:
        """Return what makes ``i / len(loader)`` serial at the last of so many: its parts, for i is no multiple then."""
        if self.sink is None or self.sink.loop is None or self._asked_around(self.sink, INDEX) != "serial_index":
            return []
        found: list[Wrap] = []
        for n in walk(part):
            if not isinstance(n, cst.BinaryOperation) or not isinstance(n.operator, cst.Divide):
                continue
            number = next((m for m in walk(n.left) if self.place(m) == INDEX), None)
            if self.place(n) == SAME and number is not None and self.place(n.right) == COUNT:
                found += [Wrap(number, "serial_index"), Wrap(n.right, "serial_steps")]  # type: ignore[arg-type]
        return found

    def compared(self, node: cst.Comparison) -> list[Wrap]:
        """Return what makes counts serial that are compared behind the loops with numbers that are: ``steps == 24``.

        Not those that are compared with a number of local steps, as what is divided is.
        """
        sides = [node.left, *(c.comparator for c in node.comparisons)]
        known = (self.run.shards.divided, self.run.shards.counted, self.run.iteration_numbers, self.done)
        if any(n in each for n in walk(node) for each in known):
            return []
        counts = [side for side in sides if self.is_count(side)]
        if not counts or not any(map(self._is_serial_number, sides)):
            return []
        self.sink = Sink(node, tuple(counts), None, ())  # type: ignore[arg-type]
        return [wrap for side in counts for wrap in self.count(side, self.place(side))]

    def _is_serial_number(self, side: cst.BaseExpression) -> bool:
        """Tell whether ``side`` is a number that all ranks have serially; a few steps are as good as one, or none."""
        values = self.run.seen.get(side, ())
        return bool(values) and all(v.place == SAME and v.scalar and v.const not in (0, 1) for v in values)

    def _bends(self, node: cst.BaseExpression, place: Place) -> bool:
        """Tell whether ``node`` is computed from counts, and is no multiple of them: ``int(step / 5)``."""
        if isinstance(node, cst.Call):
            return not self._is_own(node) and any(self.is_count(arg.value) for arg in node.args)
        if not isinstance(node, cst.BinaryOperation) or not place.counts:
            return False
        if not isinstance(node.operator, (cst.Add, cst.Subtract)):
            return False
        sides = [v for side in (node.left, node.right) for v in self.run.seen.get(side, ())[-1:]]
        return any(v.place.kind is Kind.SAME and v.const not in (0, 1) for v in sides)

    def _is_own(self, call: cst.Call) -> bool:
        """Tell whether a call runs a function of the program's."""
        return any(not isinstance(r, Obj) for value in self.run.seen.get(call.func, ()) for r in value.refs)

    def is_count(self, node: cst.CSTNode) -> bool:
        """Tell whether ``node`` is a number that counts iterations."""
        place = self.place(node)
        return (place.kind in (Kind.COUNT, Kind.INDEX) or place.counts) and self.is_number(node)

    def _asked_at(self, test: cst.BaseExpression, place: Place) -> str | None:
        """Return what makes a count serial that is shown where ``test`` asks for every so many, or a divided number.

        The number of an iteration is that of the last of those that it stands for where as many are behind it.
        """
        index = place.kind is Kind.INDEX or (place.untouched and place.counts)  # i, where i += 1 follows
        divided = [n for n in walk(test) if n in self.run.shards.divided]
        rest = next((n for n in walk(test) if isinstance(n, cst.BaseExpression) and rests_of(n)), None)
        if rest is not None:
            asked = rests_of(rest)[0][0]
            before = any(isinstance(n, cst.Comparison) and _is_last(n, rest) for n in walk(test))
            if self._is_counted_before(asked):
                less = before or isinstance(asked, cst.BinaryOperation)  # it asks for the step before each of so many
                return _BETWEEN if less and index else "serial_index" if less or index else "serial_steps"
            last = not isinstance(asked, cst.Name) or before or self._asks_for_last(test) or _of_rest(test, rest)
            return "serial_index" if index and last else "serial_steps"
        if not divided:
            once = any(value.name == "cadence" for n in walk(test) for value in self.run.seen.get(n, ())[-1:])
            last = any(isinstance(n, cst.BinaryOperation) and isinstance(n.operator, _NEXT) for n in walk(test))
            return ("serial_index" if index and last else "serial_steps") if once else None  # i == len(loader) - 1
        handed = any(isinstance(self.script.parents[n], cst.Arg) for n in divided)  # is_due(100)
        last = any(cadence.index for n in divided if (cadence := self.run.shards.cadences.get(n)) is not None)
        last = last or any(isinstance(n, cst.BinaryOperation) and isinstance(n.operator, cst.Subtract) for n in divided)
        return "serial_index" if index and (handed or last) else "serial_steps"

    def _is_counted_before(self, asked: cst.BaseExpression) -> bool:
        """Tell whether a test asks for steps among which this iteration is counted: ``step += 1`` is above it."""
        count = asked.left if isinstance(asked, cst.BinaryOperation) else asked
        place = self.place(count)
        return place.kind is Kind.RUN and place.counts and not place.untouched

    def _asks_for_last(self, test: cst.BaseExpression) -> bool:
        """Tell whether a test is true at the last of so many steps: ``step % 100 == 99``, both of them divided."""
        sides = [c.comparator for c in test.comparisons] if isinstance(test, cst.Comparison) else []
        return any(side in self.run.shards.divided for side in sides)


def _holds_counts(value: Value) -> bool:
    """Tell whether a value that is no number may hold counts: a tuple, a dict; no text, and nothing out of sight."""
    boxes = bool(value.items) or any(isinstance(ref, Obj) and ref.kind in ("dict", "list") for ref in value.refs)
    of_counts = value.place in (COUNT, INDEX) and not value.refs and not value.texts
    return boxes or (of_counts and value.const is NOTHING and value.scalar is None)


def _is_last(test: cst.Comparison, remainder: cst.CSTNode) -> bool:
    """Tell whether ``test`` asks for the step before each of so many: ``step % 100 == 99``, ``step % n == n - 1``."""
    asked, every = test.comparisons[0], rests_of(remainder)[0][1]  # type: ignore[arg-type]
    less = asked.comparator
    by_one = isinstance(less, cst.BinaryOperation) and isinstance(less.operator, cst.Subtract)
    by_one = by_one and less.left.deep_equals(every)  # type: ignore[attr-defined]
    return test.left is remainder and isinstance(asked.operator, cst.Equal) and (by_one or is_one_less(less, every))


def _of_rest(test: cst.CSTNode, remainder: cst.CSTNode) -> bool:
    """Tell whether ``test`` asks for a remainder other than 0: ``i % 100 == 99``."""
    return any(
        isinstance(n, cst.Comparison)
        and n.left is remainder
        and isinstance(n.comparisons[0].operator, (cst.Equal, cst.NotEqual))
        and not (
            isinstance(n.comparisons[0].comparator, cst.Integer) and not n.comparisons[0].comparator.evaluated_value
        )
        for n in walk(test)
    )
