"""What is shown, and what decides, inside a loop over a shard: made serial where it is read, or doubted."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import libcst as cst

from dlrun.port.edits import Doubt, Edit
from dlrun.port.facts import ScriptFacts
from dlrun.port.facts.models.kinds import ends
from dlrun.port.facts.numbers.bends import bend_of, bent
from dlrun.port.facts.numbers.computed import computed
from dlrun.port.facts.numbers.formats import numbers
from dlrun.port.facts.updates.session import runs_session
from dlrun.port.insert import expression, in_brackets
from dlrun.port.placement import cadences
from dlrun.port.placement.fields import as_argument
from dlrun.port.placement.fields import numbers as numbers_of
from dlrun.port.placement.interpret import Interpreter, parts
from dlrun.port.placement.interpret.machine import Field, Sink, Tested
from dlrun.port.placement.reduce import Reductions
from dlrun.port.placement.rules import Row, of_function
from dlrun.port.placement.store import Obj
from dlrun.port.placement.values import (
    COUNT,
    ENTRY,
    INDEX,
    MIXED,
    SAME,
    Kind,
    Place,
    Why,
    join_places,
    power,
    unknown,
)
from dlrun.port.program.script import argument, calls_method, children, dotted, walk
from dlrun.port.steps.counts.conditions import divided as rests_of
from dlrun.port.steps.counts.milestones import in_strides, updates

_ENDS = (cst.Break, cst.Continue, cst.Return, cst.Raise)
_ANSWERS = ("isnan", "isinf", "isfinite", "any", "all", "is_nan", "is_inf", "is_finite", "bool")
_FILES = ("exists", "is_dir", "is_file", "isdir", "isfile")
_BOXES = (cst.FormattedString, cst.ConcatenatedString, cst.List, cst.Dict, cst.Tuple)
_EXITS = ("sys.exit", "builtins.exit", "builtins.quit", "os._exit")
_STEERS = ("lr", "learning_rate", "stop_training", "param_groups", "requires_grad")
_AS_THEY_ARE = ("int", "float", "abs")
_COMPUTES = (
    cst.BinaryOperation,
    cst.UnaryOperation,
    cst.Comparison,
    cst.BooleanOperation,
    cst.IfExp,
    cst.Tuple,
    cst.List,
    cst.Dict,
    cst.FormattedString,
    cst.FormattedStringExpression,
    cst.Element,
    cst.DictElement,
    cst.ComparisonTarget,
    cst.ConcatenatedString,
    cst.Arg,
    cst.Call,
    cst.StarredElement,
    cst.GeneratorExp,
    cst.ListComp,
    cst.DictComp,
)


_COMPARED = (cst.Comparison, cst.ComparisonTarget, cst.BooleanOperation, cst.UnaryOperation, cst.BinaryOperation)
_OPERATORS = (cst.BinaryOperation, cst.UnaryOperation, cst.Comparison, cst.BooleanOperation, cst.Attribute)
_SILENT = (Kind.ENTRY, Kind.COUNT, Kind.INDEX, Kind.CLOCK)  # where it is shown and no number
_COUNTED = {1: "serial_steps", -1: "over_ranks"}  # by how many times n makes a count serial
_NUMBERS = (cst.BinaryOperation, cst.UnaryOperation, cst.Name, cst.Attribute, cst.Subscript)


@dataclass(frozen=True)
class Wrap:
    """An expression and what makes it serial where it is read."""

    node: cst.BaseExpression
    how: str
    since: str = ""


class Shown:
    """Finds what is to be made serial where it is read."""

    def __init__(self, facts: ScriptFacts, run: Interpreter, reductions: Reductions) -> None:
        """Take what the abstract run has found, and what is reduced behind the loops."""
        self.reductions = reductions
        self.facts = facts
        self.script = facts.script
        self.run = run
        self.done: dict[cst.CSTNode, str] = {}
        self.doubted: set[Why | cst.CSTNode] = set()
        self.formatted: set[cst.CSTNode] = set()
        self.agreed: set[cst.CSTNode] = set()  # the tests that all ranks answer alike by now
        self.told_of: set[str] = set()  # counts that tests ask for, and that are told as such
        self.goes_on = False  # within a quotient whose parts are made serial one by one
        self.sink: Sink | None = None  # what is looked at
        self.lost: list[cst.CSTNode] = []  # what nothing makes serial, of the expression that is looked at

    def edits(self) -> Iterator[Edit | Doubt]:
        """Yield what decides first, then what is shown, then the counts that meet serial numbers."""
        for tested in self.run.tests.values():
            yield from self._decided(tested)
        yield from cadences.edits(self.facts, self.run)
        for number, loop in self.run.forced.items():
            if not self._alike_in_all_calls(number):
                yield from self._unknown(
                    number, unknown(number, "its line is run for sums over samples, and for others")
                )
                continue
            call = next((up for up in self.script.above(number) if isinstance(up, cst.Call)), None)
            self.lost, self.sink = [], Sink(call, (number,), loop, ()) if call is not None else None
            self._note_formats(number)
            wraps = self.wraps(number, not self.run.shards.parts)
            yield from self._once(wraps, "of all ranks: each has a part of the iteration")
            if self.lost or wraps is None or (not wraps and not self._place(number).uniform):
                yield from self._unknown(number, self._place(number))
        for value in self.run.steered:
            yield from self._steered(value)
        for sinks in self.run.sinks.values():
            yield from self._shown(sinks)
        for number, counts in self.run.iteration_numbers.items():
            if any(value.place.kind is Kind.SAME for value in self.run.seen.get(number, ())):
                yield from self._unknown(number, unknown(number, "its line is run for iterations, and for others"))
                continue
            first, by = counts or (0, 1)
            begins = f"{first}, {by}" if by != 1 else str(first or "")
            to = "serial_steps" if counts is None else "serial_iteration"
            yield from self._once([Wrap(number, to, begins)], "it numbers the serial script's iterations")
        for count in self.run.restored:
            place = self._place(count)
            if (place.kind in (Kind.COUNT, Kind.INDEX) or place.counts) and count not in self.done:
                how = "serial_index" if place == INDEX else _COUNTED.get(power(place))
                if how is not None:
                    yield self._edit(Wrap(count, how), "as many as the serial script counts")  # type: ignore[arg-type]
                else:
                    yield from self._unknown(count, place)

    def _alike_in_all_calls(self, number: cst.CSTNode) -> bool:
        """Tell whether one reduction of ``number`` is right in all calls of its function."""
        if not self.run.shards.parts:
            return True
        places = [value.place for value in self.run.seen.get(number, ())]
        found = {p.adds & {"summed", "bent"} if p.kind is Kind.ENTRY else p.kind for p in places}
        return len(found) < 2 or found <= {frozenset(), Kind.SAME}  # the mean of what is one number is that number

    def weighed(self) -> Iterator[Doubt]:
        """Yield doubts about losses that are computed from what each rank has kept, where nothing makes that serial."""
        for call, place in self.run.losses.items():
            kept = place.kind in (Kind.RUN, Kind.MIX, Kind.RATIO, Kind.UNKNOWN, Kind.EXTREME)
            if kept or "earlier" in place.adds:
                yield from self._weighed(call)

    # -- what is known of an expression --------------------------------------------------------------------------

    def _place(self, node: cst.CSTNode) -> Place:
        place: Place | None = None
        for value in self.run.seen.get(node, ()):
            here = self.run.content(value) if value.items is not None else value.place
            place = here if place is None else join_places(place, here)
        return place if place is not None else SAME

    def _number(self, node: cst.CSTNode) -> bool:
        values = self.run.seen.get(node, ())
        if node in self.formatted or (bool(values) and any(v.scalar for v in values)):
            return True
        return bool(self.run.shards.runs) and bool(values) and self.run.shards.number(node)

    def wraps(self, node: cst.CSTNode, shown: bool) -> list[Wrap] | None:
        """Return what makes ``node`` serial, as few places as can be; None where nothing does."""
        place = self._place(node)
        if isinstance(node, cst.FormattedStringExpression) and node.format_spec:
            self.formatted.add(node.expression)
        if isinstance(node, (cst.GeneratorExp, cst.ListComp, cst.DictComp)) and shown:
            lost = [n for n in (node, node.for_in.iter) if self._place(n).kind in (Kind.UNKNOWN, Kind.MIX)]
            if lost:
                self.lost.append(lost[0])
                return None
            return self._parts(node, True, ENTRY)
        computed = isinstance(node, _COMPUTES)
        if place.kind is Kind.CLOCK:  # what stands beside the time in a text, or a dict, may be no clock's
            if shown and not computed and (texts := self._texts_of(node)):
                return self._of_texts(texts)
            return self._parts(node, True, place) if shown and self._is_text_or_row(node) else []
        if place.kind is Kind.SAME and not (computed and node not in self.run.seen):
            return []
        if shown and not computed and any(value.name == "row" for value in self.run.seen.get(node, ())):
            self.lost.append(node)  # counts beside others
            return None
        if isinstance(node, cst.BaseExpression):
            if place.kind in (Kind.COUNT, Kind.INDEX) or place.counts:
                made = isinstance(node, (cst.Name, cst.Attribute, cst.Subscript, cst.Call))
                texts = self._texts_of(node) if shown and made else []
                if texts and not self.run.shards.parts:
                    return self._of_texts(texts)
                return self._count(node, place) if not self.run.shards.parts else []
            if self.run.shards.parts and (found := self._of_part(node, place)) is not None:
                return found
            if self.run.shards.parts and place.kind is Kind.RUN and not computed:
                self.lost.append(node)
                return None
            if place.kind is Kind.ENTRY and "part" in place.adds and self._number(node):
                self.lost.append(node)  # n times the serial one
                return None
            inner = bend_of(self.script, node) or bent(self.script, node)
            if place.kind is Kind.ENTRY and inner is not None:
                return self.wraps(inner, shown)  # the root of the mean, not the mean of the roots
            literal = isinstance(node, (cst.List, cst.Dict, cst.Tuple))
            if place.kind is Kind.ENTRY and self._number(node) and not self._truth(node) and not literal:
                return [Wrap(node, "average")]
            if self._corrected(node):
                return [Wrap(node, "average")]
            of_metric = isinstance(node, cst.Call) and self._number(node) and self._from_zero(place)
            if place.kind is Kind.RATIO and (isinstance(node, _NUMBERS) or of_metric) and not self._descends(node):
                return [Wrap(node, "average")]
            if place.kind is Kind.RUN and place.adds - {"reset"} in ({"fraction"}, {"fires"}):
                return []  # as in the serial script
            if place.kind is Kind.RUN and place.adds & {"decayed", "mean", "part"}:
                return [Wrap(node, "average")]
            since = (
                "" if self._from_zero(place) or place.kind is not Kind.RUN else self.reductions.before(place.at, node)
            )
            inside = isinstance(node, cst.BinaryOperation) and "scaled" in place.adds
            if (
                place.kind is Kind.RUN
                and (self._from_zero(place) or since)
                and not inside
                and not place.adds & {"stored", "run", "joined", "numbers", "trimmed"}
                and not (self.sink is not None and self.sink.loop is not None and self._is_window(node))
            ):
                return [Wrap(node, "total", since)]
            if place.kind is Kind.EXTREME and len(place.adds) == 1 and not self._is_text_or_row(node):
                return [Wrap(node, "maximum" if "max" in place.adds else "minimum")]
        if computed and not self._opaque(node):
            before, self.goes_on = self.goes_on, self.goes_on or place.kind is Kind.RATIO
            parts = self._parts(node, shown, place)
            self.goes_on = before
            return parts
        texts = self._texts_of(node)
        if shown and texts:
            return self._of_texts(texts)
        behind = self.sink is not None and self.sink.loop is None
        if place.kind is Kind.ENTRY and shown and not behind:
            return []  # of one iteration: no number
        self.lost.append(node)  # nothing is known that makes it serial
        return None

    def _is_window(self, node: cst.CSTNode) -> bool:
        """Tell whether ``node`` reads the last K entries, and K stays: those of all ranks are n times as many."""
        divided = self.run.shards.divided
        for n in walk(node):
            match n:
                case cst.Slice(lower=cst.UnaryOperation(operator=cst.Minus(), expression=last), upper=None):
                    if isinstance(last, cst.Integer) and last not in divided:
                        return True
            for ref in (ref for value in self.run.seen.get(n, ()) for ref in value.refs):
                most = argument(ref.site, "maxlen", 1) if getattr(ref, "kind", "") == "deque" else None
                if most is not None and most not in divided and dotted(most) != "None":
                    return True
        return False

    def _is_text_or_row(self, node: cst.CSTNode) -> bool:
        """Tell whether ``node`` only puts values side by side, and computes nothing with them."""
        if isinstance(node, cst.BinaryOperation):
            return isinstance(node.operator, (cst.Add, cst.Modulo))
        if isinstance(node, cst.Call):
            text = of_function(self.script.name_of(node.func)) is Row.TEXT
            return text or calls_method(node, "format") or self.script.name_of(node.func) == "builtins.format"
        return isinstance(node, _COMPUTES) and not isinstance(node, (cst.UnaryOperation, cst.Comparison, cst.IfExp))

    def _of_part(self, node: cst.BaseExpression, place: Place) -> list[Wrap] | None:
        """Return what makes a number serial that is of this rank's part of each batch; None of what is no number."""
        if place.kind is Kind.ENTRY and self._number(node) and not isinstance(node, (cst.List, cst.Dict, cst.Tuple)):
            if "summed" in place.adds:
                return [Wrap(node, "total")]
            if isinstance(node, cst.BinaryOperation) and isinstance(node.operator, cst.Divide):
                sums = [n for n in (node.left, node.right) if "summed" in self._place(n).adds]
                if len(sums) == 2:
                    return [Wrap(n, "total") for n in sums]
            before = len(self.lost)
            found = self._parts(node, False, place) if "bent" in place.adds and isinstance(node, _COMPUTES) else None
            if found is not None:
                return found
            if "bent" in place.adds:
                del self.lost[before:]
                self.lost.append(node)
                return []
            return [Wrap(node, "average")] if not place.adds and not self._truth(node) else None
        if place.kind is Kind.RATIO and "summed" in place.adds and isinstance(node, _NUMBERS):
            return [Wrap(node, "total")]
        if place.kind is not Kind.RUN:
            return None
        how = parts.how(place.adds, False)
        since = "" if self._from_zero(place) or how != "total" else self.reductions.before(place.at, node)
        if how == "total" and not (self._from_zero(place) or since):
            return None
        return [Wrap(node, how, since)] if how in ("total", "average") else [] if not how else None

    def _count(self, node: cst.BaseExpression, place: Place) -> list[Wrap]:
        """Return what makes a count serial where it is shown: behind the loop, and every so many steps inside it."""
        sink = self.sink
        if sink is None or node in self.run.shards.divided:
            return []
        if isinstance(node, cst.Name) and self._at_times_serial(node):
            return self._handed(node)
        how = "serial_index" if place.kind is Kind.INDEX else _COUNTED.get(power(place), "")
        how = "" if place.at == "bent" else how
        plain = how == "serial_steps" or place == INDEX
        if isinstance(node, _COMPUTES) and (not plain or self._bends(node, place)):
            return self._parts(node, True, place) or []
        behind = sink.loop is None or self.goes_on
        if not how or (behind and place.at == "scaled" and not isinstance(node, _COMPUTES)):
            self.lost.append(node)
            return []
        if isinstance(node, _BOXES) or not self._number(node):
            return (self._parts(node, True, place) or []) if isinstance(node, _COMPUTES) else []
        if behind:
            return [Wrap(node, how)]
        number = self._multiplied(node)
        if number is not None and self._asked_around(sink, INDEX) == "serial_index":
            return [Wrap(number, "serial_index")]  # i * len(x), at the last of so many
        asked = self._asked_around(sink, place) or (how if sink.curve else None)
        return [Wrap(node, asked)] if asked is not None else []

    def _multiplied(self, node: cst.BaseExpression) -> cst.BaseExpression | None:
        """Return the number of an iteration that ``node`` multiplies by the size of a batch; else None."""
        if not isinstance(node, cst.BinaryOperation) or not isinstance(node.operator, cst.Multiply):
            return None
        return next((side for side in (node.left, node.right) if self._place(side) == INDEX), None)

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
            found += self._count(value, self._place(value)) if self._counted(value) else []  # type: ignore[arg-type]
        self.sink = sink
        return found

    def _corrected(self, node: cst.CSTNode) -> bool:
        """Tell whether ``node`` corrects a moving average for how few iterations of this rank it is of yet."""
        if not isinstance(node, cst.BinaryOperation) or not isinstance(node.operator, cst.Divide):
            return False
        over, under = self._place(node.left), self._place(node.right)
        return over.kind is Kind.RUN and "decayed" in over.adds and under.uniform and under.kind is not Kind.SAME

    def _remainders(self, part: cst.CSTNode) -> list[Wrap]:
        """Return what makes remainders of counts serial, ``step % 7``, wherever they are in what is shown."""
        found: list[Wrap] = []
        for n in walk(part):
            if not any(v.name in ("remainder", "undivided") for v in self.run.seen.get(n, ())[-1:]):
                continue
            if isinstance(n, cst.BinaryOperation):
                for side in (n.left, n.right):
                    found += self._count(side, self._place(side)) if self._counted(side) else []
            elif isinstance(n, (cst.Name, cst.Attribute)) and self._count(n, COUNT):
                self.lost.append(n)  # of what it is the remainder, is no longer seen
        return found

    def _fractions(self, part: cst.CSTNode) -> list[Wrap]:
        """Return what makes ``i / len(loader)`` serial at the last of so many: its parts, for i is no multiple then."""
        if self.sink is None or self.sink.loop is None or self._asked_around(self.sink, INDEX) != "serial_index":
            return []
        found: list[Wrap] = []
        for n in walk(part):
            if not isinstance(n, cst.BinaryOperation) or not isinstance(n.operator, cst.Divide):
                continue
            number = next((m for m in walk(n.left) if self._place(m) == INDEX), None)
            if self._place(n) == SAME and number is not None and self._place(n.right) == COUNT:
                found += [Wrap(number, "serial_index"), Wrap(n.right, "serial_steps")]  # type: ignore[arg-type]
        return found

    def _bends(self, node: cst.BaseExpression, place: Place) -> bool:
        """Tell whether ``node`` is computed from counts, and is no multiple of them: ``int(step / 5)``."""
        if isinstance(node, cst.Call):
            own = any(not isinstance(r, Obj) for v in self.run.seen.get(node.func, ()) for r in v.refs)
            return not own and any(self._counted(arg.value) for arg in node.args)
        if not isinstance(node, cst.BinaryOperation) or not place.counts:
            return False
        if not isinstance(node.operator, (cst.Add, cst.Subtract)):
            return False
        sides = [v for side in (node.left, node.right) for v in self.run.seen.get(side, ())[-1:]]
        return any(v.place.kind is Kind.SAME and v.const not in (0, 1) for v in sides)

    def _counted(self, node: cst.CSTNode) -> bool:
        """Tell whether ``node`` is a number that counts iterations."""
        place = self._place(node)
        return (place.kind in (Kind.COUNT, Kind.INDEX) or place.counts) and self._number(node)

    def _asked_at(self, test: cst.BaseExpression, place: Place) -> str | None:
        """Return what makes a count serial that is shown where ``test`` asks for every so many, or a divided number.

        The number of an iteration is that of the last of those that it stands for where as many are behind it.
        """
        index = place.kind is Kind.INDEX
        divided = [n for n in walk(test) if n in self.run.shards.divided]
        rest = next((n for n in walk(test) if isinstance(n, cst.BaseExpression) and rests_of(n)), None)
        if rest is not None:
            last = not isinstance(rests_of(rest)[0][0], cst.Name) or self._asks_for_last(test) or _of_rest(test, rest)
            return "serial_index" if index and last else "serial_steps"
        if not divided:
            return None
        handed = any(isinstance(self.script.parents[n], cst.Arg) for n in divided)  # is_due(100)
        return "serial_index" if index and handed else "serial_steps"

    def _asks_for_last(self, test: cst.BaseExpression) -> bool:
        """Tell whether a test is true at the last of so many steps: ``step % 100 == 99``, both of them divided."""
        sides = [c.comparator for c in test.comparisons] if isinstance(test, cst.Comparison) else []
        return any(side in self.run.shards.divided for side in sides)

    def _descends(self, node: cst.BaseExpression) -> bool:
        """Tell whether a quotient of sums so far is made of its parts: each summed up, then divided.

        So it is where both are local sums, and where one goes on from before the loop: no mean is right then.
        """
        if not isinstance(node, cst.BinaryOperation):
            return False
        places = [self._place(side) for side in (node.left, node.right)]
        runs = [p for p in places if p.kind is Kind.RUN]
        goes_on = any(not self._from_zero(p) for p in runs) or any(p.kind is Kind.RATIO for p in places)
        return len(runs) == 2 or goes_on

    def _texts_of(self, node: cst.CSTNode) -> list[cst.CSTNode]:
        """Return the formatted texts that ``node`` may be, made elsewhere: ``line = f"{loss:.3f}"``."""
        texts = dict.fromkeys(text for value in self.run.seen.get(node, ()) for text in value.texts)
        return [text for text in texts if text is not node]

    def _of_texts(self, texts: list[cst.CSTNode]) -> list[Wrap] | None:
        """Return what makes the numbers in ``texts`` serial where these are made, if all ranks come there together."""
        if any(not self.agreed.issuperset(self.run.made_apart.get(text, ())) for text in texts):
            self.lost.extend(texts)
            return None
        for text in texts:
            self._note_formats(text)
        return [wrap for text in texts for wrap in self.wraps(text, True) or ()]

    def _truth(self, node: cst.CSTNode) -> bool:
        """Tell whether ``node`` is true or false: what it compares is made serial, not the answer."""
        if isinstance(node, cst.Call):
            return dotted(node.func).rpartition(".")[2] in _ANSWERS
        return isinstance(node, (cst.Comparison, cst.BooleanOperation)) or (
            isinstance(node, cst.UnaryOperation) and isinstance(node.operator, (cst.Not, cst.BitInvert))
        )

    def _opaque(self, node: cst.CSTNode) -> bool:
        return isinstance(node, cst.Call) and of_function(self.script.name_of(node.func)) is Row.CHANCE

    def _parts(self, node: cst.CSTNode, shown: bool, place: Place) -> list[Wrap] | None:
        found: list[Wrap] = []
        lost = len(self.lost)
        for part in self._read_by(node):
            wraps = self.wraps(part, shown)
            if wraps is None and not shown:
                return None
            found += wraps or []
        if len(self.lost) > lost and isinstance(node, cst.BinaryOperation) and isinstance(node.operator, cst.Divide):
            return []  # a local sum over its own count is nearer than over that of all
        silent = place.kind is not Kind.SAME and not found and isinstance(node, cst.BaseExpression)
        silent = silent and len(self.lost) == lost
        if silent and (place == MIXED or not (shown and place.kind in _SILENT)):
            self.lost.append(node)
            return None
        return found

    def _read_by(self, node: cst.CSTNode) -> list[cst.CSTNode]:
        if isinstance(node, cst.Call):
            receiver = [node.func.value] if isinstance(node.func, cst.Attribute) else []
            fields = self.run.fields_of.get(node, {})
            self.formatted.update(fields[name].read for name in numbers_of(node).intersection(fields))
            apart = [field.source for field in fields.values()]
            given = [arg.value for arg in node.args if arg.value not in apart]
            return [*(r for r in receiver if r in self.run.seen), *given, *(field.read for field in fields.values())]
        if isinstance(node, cst.IfExp):
            return [node.body, node.orelse]
        if isinstance(node, cst.DictElement):
            return [node.value]
        if isinstance(node, (cst.GeneratorExp, cst.ListComp, cst.DictComp)):
            literal = isinstance(node.for_in.iter, (cst.List, cst.Tuple))
            alike = literal or self._place(node.for_in.iter).kind is Kind.SAME  # all ranks go through as many entries
            each = node.value if isinstance(node, cst.DictComp) else node.elt
            return [each] if alike and not node.for_in.ifs and node.for_in.inner_for_in is None else []
        return [c for c in children(node) if isinstance(c, (cst.BaseExpression, *_COMPUTES))]

    def _from_zero(self, place: Place) -> bool:
        return place.at in self.run.from_zero or "reset" in place.adds

    def _edit(self, wrap: Wrap, why: str) -> Edit:
        self.done[wrap.node] = wrap.how
        template = partial(
            expression, "reduced_value", dl=self.facts.alias, how=wrap.how, since=wrap.since, over=self._over(wrap)
        )
        if wrap.how == "serial_index":
            template = partial(expression, "serial_index", dl=self.facts.alias)
            if isinstance(self.script.parents.get(wrap.node), _OPERATORS):
                return Edit(wrap.node, why, lambda node: in_brackets(template({"value": node})))
        if wrap.how == "serial_iteration":
            template = partial(expression, "serial_iteration", dl=self.facts.alias, first=wrap.since)
        if wrap.how == "over_ranks":
            template = partial(expression, "over_ranks", dl=self.facts.alias)
        field = next(self._field_at(wrap.node), None)
        if field is not None:
            named, text = field.named, self.script.code(wrap.node)
            return Edit(field.call, why, lambda node: as_argument(node, named, text, template({"value": wrap.node})))
        return Edit(wrap.node, why, lambda node: template({"value": node}))

    def _field_at(self, node: cst.CSTNode) -> Iterator[Field]:
        """Yield the field of a template that reads ``node``, if one does."""
        yield from (field for known in self.run.fields_of.values() for field in known.values() if field.read is node)

    def _over(self, wrap: Wrap) -> str:
        """Return the loader whose batches are counted, where it is no padded share each time.

        Of a sum so far that which the loop goes through, where that is whole data at times.
        """
        around = [up for up in self.script.above(wrap.node) if up in self.run.sharded and up in self.run.plain_loops]
        if wrap.how in ("total", "maximum", "minimum") and around:
            return self.reductions.over(around[0])
        counted = wrap.node.args[0].value if isinstance(wrap.node, cst.Call) and len(wrap.node.args) == 1 else None
        if wrap.how != "serial_steps" or not isinstance(counted, (cst.Name, cst.Attribute)):
            return ""
        places = [v.place for v in self.run.seen.get(counted, ())]
        alike = all(p.kind is Kind.SHARD and p.at is None for p in places)
        text, shards = self.script.code(counted), [p.kind is Kind.SHARD for p in places]
        loops = [loop for loop, source in self.run.over.items() if self.script.code(source) == text]
        reduced = all(shards) or any(loop in self.run.plain_loops for loop in loops)  # with over=, as behind the loop
        return "" if alike or not any(shards) or not reduced else text

    def _once(self, wraps: list[Wrap] | None, why: str) -> Iterator[Edit]:
        for wrap in wraps or ():
            if wrap.node not in self.done and not any(up in self.done for up in self.script.above(wrap.node)):
                yield self._edit(wrap, why)

    # -- what is shown -------------------------------------------------------------------------------------------

    def _note_formats(self, node: cst.CSTNode) -> None:
        self.formatted.update(numbers(node))

    def _shown(self, sinks: list[Sink]) -> Iterator[Edit | Doubt]:
        sink = sinks[-1]
        if sink.kept:
            yield from self._kept(sink)
            return
        diverged = next((s for s in sinks if not self.agreed.issuperset(s.diverged)), None)
        for part in sink.shows:
            self.lost = []
            self.sink = sink
            self._note_formats(part)
            wraps = self.wraps(part, True)
            rests = [*self._remainders(part), *self._fractions(part)]
            wraps = [*(wraps or ()), *rests] if rests else wraps
            for node in self.lost:
                yield from self._unknown(node, self._place(node))
            if wraps and diverged is not None:
                yield from self._apart(part, diverged)
            else:
                yield from self._once(wraps, "of all ranks, where it is shown")

    def _unknown(self, node: cst.CSTNode, place: Place) -> Iterator[Doubt]:
        node = next((field.source for field in self._field_at(node)), node)
        why = place.why
        kept = getattr(why.node, "func", None) if why is not None else None  # told where it is given away
        if (why or node) in self.doubted or kept in self.doubted:
            return
        self.doubted.add(why or node)
        text = self.script.code(node)
        own = any(getattr(ref, "kind", "") == "instance" for v in self.run.seen.get(node, ())[-1:] for ref in v.refs)
        if own and (self.sink is None or self.sink.loop is not None):
            yield Doubt(node, f"{text}: rank 0's so far: it shows itself", "low", name="shown-by-rank-0")
            return
        counted = place.at == "bent" or place.kind is Kind.SAME
        if counted and text in self.told_of:
            return
        last = place.kind is Kind.ENTRY and self.sink is not None and self.sink.loop is None
        because = (
            why.text
            if why is not None
            else "it is of this rank's last batch"
            if last
            else "it is computed from a count of this rank's iterations, and is no multiple of it"
            if counted
            else "how the ranks' values make the serial one is not known"
        )
        whose = "of all ranks" if "some" in place.adds else "local to rank 0"
        yield Doubt(node, f"{text}: {whose}: {because}", "medium", name="unknown-placement")

    def _kept(self, sink: Sink) -> Iterator[Doubt]:
        if sink.call.func not in self.doubted:
            self.doubted.add(sink.call.func)
            text = self.script.code(sink.call.func)
            why = (
                f"{text}() is out of sight and may keep what each rank gives it: what it shows later is local to rank 0"
            )
            yield Doubt(sink.call, why, "medium", name="unknown-placement")

    def _apart(self, node: cst.BaseExpression, sink: Sink) -> Iterator[Doubt]:
        if node not in self.doubted:
            self.doubted.add(node)
            why = f"{self.script.code(node)}: local to rank 0: the ranks do not come here together"
            yield Doubt(node, why, "low", name="shown-by-rank-0")

    # -- what decides --------------------------------------------------------------------------------------------

    def _decided(self, tests: list[Tested]) -> Iterator[Edit | Doubt]:
        node = tests[-1].node
        self.sink = None
        place = self._place(node.test)
        inside = [t for t in tests if t.loop is not None]
        if inside and (self._asks_elsewhere(node) or self._asks_otherwise(node)):
            text = self.script.code(node.test)
            why = f"{text}: every so many iterations of a rank, n times as many serial ones: the number is not divided"
            yield Doubt(node.test, why, "medium", name="unknown-placement")
            self.told_of.update(self.script.code(n) for n in walk(node.test) if isinstance(n, cst.Name))
        if place.uniform or self._of_sizes(node.test) or not (self._decides(node) if inside else self._leaves(node)):
            return
        if self._counts_alike(node.test):
            return
        if self.run.shards.episodes and (node in self.run.shards.plays or ends(self.facts.kinds, node.test)):
            return
        if place.kind is Kind.CLOCK:
            if any(calls_method(n, *_FILES) for n in walk(node.test)):
                return  # a path that holds the time: what is there, rank 0 tells
            if not any(d not in self.agreed for t in tests for d in t.diverged):
                self.agreed.add(node.test)
                why = "each rank has a clock and random numbers of its own: rank 0 decides"
                yield self._edit(Wrap(node.test, "agree"), why)
            return
        wraps = self.wraps(node.test, False) if place.kind is not Kind.UNKNOWN else None
        apart = [d for t in tests for d in t.diverged if d is not node.test and d not in self.agreed]
        if wraps and not apart:
            self.agreed.add(node.test)
            how = self._draws_locally(node, wraps)
            wraps = [Wrap(node.test, how)] if how else wraps
            why = (
                "what is drawn from here is local: each rank must hold enough" if how else "all ranks must decide alike"
            )
            yield from self._once(wraps, why)
        elif not self._by_chance(node.test) and not self.run.shards.episodes:  # of these see ``steps/metrics/guards``
            text = self.script.code(node.test)
            why = f"{text}: the ranks may decide differently, and wait for each other for ever"
            yield Doubt(node.test, why, "high", name="may-hang")

    def _asks_elsewhere(self, node: cst.CSTNode) -> bool:
        """Tell whether a function that counts by itself answers a test, ``if is_due():``, under which is no update."""
        test = getattr(node, "test", node)
        if not isinstance(node, cst.If) or any(isinstance(n, cst.Modulo) for n in walk(test)):
            return False
        told = any(v.name == "undivided" for n in walk(test) for v in self.run.seen.get(n, ())[-1:])
        return told and self.run.shards.steps.isdisjoint(walk(node.body))

    def _asks_otherwise(self, node: cst.If | cst.While | cst.IfExp | cst.Assert) -> bool:
        """Tell whether a test goes by a number that is computed from this rank's iterations: ``if step & 15 == 0:``.

        What compares the count itself with a number is a cadence, which is divided, or a bound.
        """
        if self.run.shards.parts or self.run.shards.episodes or not self._place(node.test).uniform:
            return False
        known = {*self.run.shards.divided, *self.run.shards.counted, *self.run.shards.lengths}
        if any(test is node.test for test, _, _ in in_strides(self.facts)):
            return False  # told there
        rests = ("remainder", "cadence", "length")
        if any(n in known or any(v.name in rests for v in self.run.seen.get(n, ())) for n in walk(node.test)):
            return False
        bodies: list[cst.CSTNode] | None = None
        for n in walk(node.test):
            if isinstance(n, (cst.Name, cst.Attribute)) and self._counted(n) and self._is_computed_with(n, node.test):
                bodies = bodies or cadences.governed(self.facts, self.run, node.test) or []
        return bool(bodies) and not updates(self.facts, bodies or [])

    def _is_computed_with(self, count: cst.CSTNode, test: cst.CSTNode) -> bool:
        """Tell whether what ``test`` compares is computed from ``count``, other than by adding a number."""
        below = count
        for up in self.script.above(count):
            sums = isinstance(up, cst.BinaryOperation) and isinstance(up.operator, (cst.Add, cst.Subtract))
            if isinstance(up, cst.Call) and up.func is below:
                return False
            if isinstance(up, cst.Call) and dotted(up.func) not in _AS_THEY_ARE:
                return True
            if isinstance(up, (cst.Call, cst.BinaryOperation)) and not sums:
                return not self._place(up).counts and self._place(up) != COUNT
            if isinstance(up, (cst.Comparison, cst.BooleanOperation)) or below is test:
                return False
            below = up
        return False

    def _draws_locally(self, node: cst.CSTNode, wraps: list[Wrap]) -> str:
        """Return how the ranks agree on a test of a length where they draw from what has it: "" where none does.

        Each from its local entries: ``if len(memory) >= 32: batch = random.sample(memory, 32)``, or ``if len(memory) <
        32: continue`` before that.
        """
        sized = [w.node for w in wraps if w.how == "total" and isinstance(w.node, cst.Call) and w.node.args]
        kept = {self.script.code(n.args[0].value) for n in sized if isinstance(n, cst.Call) and dotted(n.func) == "len"}
        if not isinstance(node, cst.If) or not kept:
            return ""
        block = self.script.block(node)
        after = block[block.index(node) + 1 :]
        for how, read in (("all_ranks", [node.body]), ("any_rank", after)):
            drawn = [n for part in read for n in walk(part) if isinstance(n, cst.Call) and self._opaque(n)]
            if any(self.script.code(arg.value) in kept for call in drawn for arg in call.args):
                return how
        return ""

    def _counts_alike(self, test: cst.CSTNode) -> bool:
        """Tell whether a test goes by iterations since the last update alone: ``if pending == 3:``, on all ranks."""
        names = [n for n in walk(test) if isinstance(n, (cst.Name, cst.Attribute)) and n in self.run.seen]
        places = [self._place(n) for n in names]
        alike = frozenset({"same", "reset", "scaled"})
        runs = [p for p in places if p.kind is Kind.RUN and p.adds <= alike]
        return any(p.adds for p in runs) and all(p.uniform or p in runs for p in places)

    def _of_sizes(self, node: cst.CSTNode) -> bool:
        """Tell whether a test goes by how large a batch is: see ``steps/metrics/guards``."""
        values = self.run.seen.get(node, ())
        if values and all(v.place.uniform or v.name == "size" for v in values):
            return True
        inner = [c for c in children(node) if isinstance(c, (cst.BaseExpression, cst.ComparisonTarget))]
        return isinstance(node, _COMPARED) and all(map(self._of_sizes, inner))

    def _steered(self, value: cst.BaseExpression) -> Iterator[Edit | Doubt]:
        self.lost, self.sink = [], None
        if self._place(value).uniform:  # a count: the rate follows the serial one, which each rank has of parts
            counts = [] if self.run.shards.parts or self._measured(value) else self._counts_in(value)
            yield from self._once([Wrap(n, "serial_steps") for n in counts], "the serial count")
            return
        wraps = self.wraps(value, False)
        if wraps:
            yield from self._once(wraps, "the rate is the same on all ranks")
        else:
            yield from self._unknown(value, self._place(value))

    def _measured(self, value: cst.BaseExpression) -> bool:
        """Tell whether a rate is measured by what counts local steps, too: the length of a share, a divided number."""
        made = computed(self.facts.flow, [value]).nodes
        lengths = [n for n in made if isinstance(n, cst.Call) and self.script.name_of(n.func) == "builtins.len"]
        return any(n in self.run.shards.divided or (n in lengths and self._place(n) == COUNT) for n in made)

    def _counts_in(self, value: cst.BaseExpression) -> list[cst.BaseExpression]:
        """Return the names and attributes in ``value`` that count iterations or samples, and are not made serial."""
        known = (*self.run.shards.divided, *self.run.shards.counted)
        names = [n for n in walk(value) if isinstance(n, (cst.Name, cst.Attribute)) and n in self.run.seen]
        counts = [n for n in names if self._place(n).kind is Kind.COUNT or self._place(n).counts]
        return [n for n in counts if not any(up in known for up in (n, *self.script.above(n)))]

    def _weighed(self, call: cst.Call) -> Iterator[Doubt]:
        """Doubt a loss that is computed from what this rank has kept of earlier iterations."""
        if call not in self.doubted:
            self.doubted.add(call)
            why = "the loss is computed from what this rank alone has added up or kept so far: the ranks weigh it apart"
            yield Doubt(call, why, "medium", name="unknown-placement")

    def _by_chance(self, test: cst.CSTNode) -> bool:
        """Tell whether chance decides: see ``steps/metrics/guards``."""
        calls = [n for n in walk(test) if isinstance(n, cst.Call)]
        return any(of_function(self.script.name_of(c.func)) is Row.CHANCE for c in calls)

    def _decides(self, node: cst.If | cst.While | cst.IfExp | cst.Assert) -> bool:
        """Tell whether a test decides over what all ranks must do alike: leave, update, save, set a rate."""
        if isinstance(node, (cst.While, cst.IfExp, cst.Assert)):
            return isinstance(node, cst.While) and node in self.facts.loops
        steps = self.run.shards.steps
        if node.test in self.run.steers:
            return True
        for n in walk(node):
            if calls_method(n, "load_state_dict", "requires_grad_") or (isinstance(n, cst.Call) and runs_session(n)):
                return True
            if self._leaves_out_sums(n):
                continue
            if isinstance(n, _ENDS) or n in steps or calls_method(n, "backward", "step"):
                return self._in_training(node, n)
            if isinstance(n, cst.Call):
                name = self.script.name_of(n.func)
                if name in _EXITS or "save" in dotted(n.func) or _sets_rate(n):
                    return True
            if isinstance(n, (cst.Assign, cst.AugAssign)):
                targets = [n.target] if isinstance(n, cst.AugAssign) else [t.target for t in n.targets]
                if any(
                    isinstance(m, (cst.Attribute, cst.SimpleString)) and _steers(m) for t in targets for m in walk(t)
                ):
                    return True
        return False

    def _leaves_out_sums(self, end: cst.CSTNode) -> bool:
        """Tell whether a `continue`, or a `raise` that is caught, leaves out no update: each rank goes its own way."""
        if not isinstance(end, (cst.Continue, cst.Raise)):
            return False
        caught = False
        for up in self.script.above(end):
            caught = caught or isinstance(up, cst.Try)
            if isinstance(up, (cst.For, cst.While)):
                behind = self.script.line(end)
                left = [n for n in walk(up.body) if not isinstance(n, cst.Module) and self._acts(n)]
                return (caught or isinstance(end, cst.Continue)) and all(self.script.line(n) <= behind for n in left)
            if isinstance(up, cst.FunctionDef):
                return False
        return False

    def _acts(self, node: cst.CSTNode) -> bool:
        """Tell whether all ranks must come to ``node`` together: an update, what saves, what ends the loop."""
        if isinstance(node, (cst.Break, cst.Return)) or node in self.run.shards.steps:
            return True
        return calls_method(node, "backward", "step", "zero_grad", "train_on_batch", "apply_gradients", "minimize") or (
            isinstance(node, cst.Call) and "save" in dotted(node.func)
        )

    def _leaves(self, node: cst.CSTNode) -> bool:
        """Tell whether a test outside the loops over shards decides over what all ranks must do alike."""
        return any(isinstance(n, (cst.Break, cst.Return, cst.Raise)) for n in walk(node)) or isinstance(node, cst.While)

    def _in_training(self, node: cst.CSTNode, end: cst.CSTNode) -> bool:
        """Tell whether ``end`` under ``node`` leaves a loop that trains, not one through a batch."""
        if not isinstance(end, _ENDS):
            return True
        for up in self.script.above(end):
            if isinstance(up, (cst.For, cst.While)):
                return isinstance(end, (cst.Return, cst.Raise)) or up in self.facts.loops
            if isinstance(up, cst.FunctionDef):
                return isinstance(end, cst.Raise) or up in self._training
        return True

    @property
    def _training(self) -> set[cst.CSTNode]:
        return {self.script.function_of(n) for n in (*self.facts.loops, *self.run.shards.steps)}


def _steers(node: cst.CSTNode) -> bool:
    word = node.attr.value if isinstance(node, cst.Attribute) else str(getattr(node, "evaluated_value", ""))
    return word in _STEERS


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


def _is_rest(node: cst.BaseExpression) -> bool:
    return isinstance(node, cst.BinaryOperation) and isinstance(node.operator, cst.Modulo)


def _sets_rate(call: cst.Call) -> bool:
    """Tell whether ``call`` sets a rate: ``opt.learning_rate.assign(...)``, ``K.set_value(opt.lr, ...)``."""
    if dotted(call.func).endswith(".set_value") and call.args:
        return dotted(call.args[0].value).endswith((".lr", ".learning_rate"))
    return dotted(call.func).endswith((".lr.assign", ".learning_rate.assign"))
