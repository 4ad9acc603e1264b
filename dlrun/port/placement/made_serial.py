"""What makes an expression serial where it is read: as few reductions as can be, in as few places."""

from __future__ import annotations

import libcst as cst

from dlrun.port.facts.numbers.bends import bend_of, bent
from dlrun.port.facts.numbers.integers import indexes
from dlrun.port.placement.fields import numbers as numbers_of
from dlrun.port.placement.interpret import parts
from dlrun.port.placement.rules import Row, of_function
from dlrun.port.placement.values import ENTRY, MIXED, SAME, Kind, Place
from dlrun.port.placement.wraps import Wrap, Wraps
from dlrun.port.program.script import argument, calls_method, children, dotted, walk

_ANSWERS = ("isnan", "isinf", "isfinite", "any", "all", "is_nan", "is_inf", "is_finite", "bool")
COMPUTES = (
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
_SILENT = (Kind.ENTRY, Kind.COUNT, Kind.INDEX, Kind.CLOCK)  # where it is shown and no number
_SUMMED = (Kind.RUN, Kind.EXTREME, Kind.RATIO)
_NUMBERS = (cst.BinaryOperation, cst.UnaryOperation, cst.Name, cst.Attribute, cst.Subscript)


class MadeSerial(Wraps):
    """Finds what makes an expression serial where it is read."""

    def wraps(self, node: cst.CSTNode, shown: bool) -> list[Wrap] | None:
        """Return what makes ``node`` serial, as few places as can be; None where nothing does."""
        place = self.place(node)
        if isinstance(node, cst.FormattedStringExpression) and node.format_spec:
            self.formatted.add(node.expression)
        if isinstance(node, (cst.GeneratorExp, cst.ListComp)) and shown and self._goes_through_literal(node):
            return self.wraps_inside(node.for_in.iter, True, SAME)  # each where it is written
        if isinstance(node, (cst.GeneratorExp, cst.ListComp, cst.DictComp)) and shown:
            lost = [n for n in (node, node.for_in.iter) if self.place(n).kind in (Kind.UNKNOWN, Kind.MIX)]
            if lost:
                self.lost.append(lost[0])
                return None
            return self.wraps_inside(node, True, ENTRY)
        computed = isinstance(node, COMPUTES)
        if place.kind is Kind.CLOCK:  # what stands beside the time in a text, or a dict, may be no clock's
            if shown and not computed and (texts := self._texts_of(node)):
                return self._of_texts(texts)
            return self.wraps_inside(node, True, place) if shown and self._is_text_or_row(node) else []
        if place.kind is Kind.SAME and not (computed and node not in self.run.seen):
            return []
        counts = self.run.shards.parts and place.kind in (Kind.COUNT, Kind.INDEX)  # of serial iterations
        if shown and not computed and not counts and any(v.name == "row" for v in self.run.seen.get(node, ())):
            self.lost.append(node)  # counts beside others
            return None
        text = any(value.texts for value in self.run.seen.get(node, ()))  # "at %s" % total
        if isinstance(node, cst.BaseExpression) and not (text and place.kind in _SUMMED):
            if place.kind in (Kind.COUNT, Kind.INDEX) or place.counts:
                made = isinstance(node, (cst.Name, cst.Attribute, cst.Subscript, cst.Call))
                texts = self._texts_of(node) if shown and made else []
                if texts and not self.run.shards.parts:
                    return self._of_texts(texts)
                return self.count(node, place) if not self.run.shards.parts else []
            if self.run.shards.parts and (found := self._of_part(node, place)) is not None:
                return found
            if self.run.shards.parts and place.kind in (Kind.RUN, Kind.EXTREME):
                if computed:
                    return self.wraps_inside(node, shown, place)
                self.lost.append(node)
                return None
            if place.kind is Kind.ENTRY and "part" in place.adds and self.is_number(node):
                self.lost.append(node)  # n times the serial one
                return None
            inner = bend_of(self.script, node) or bent(self.script, node)
            if place.kind is Kind.ENTRY and inner is not None:
                return self.wraps(inner, shown)  # the root of the mean, not the mean of the roots
            literal = isinstance(node, (cst.List, cst.Dict, cst.Tuple))
            if place.kind is Kind.ENTRY and self.is_number(node) and not self._truth(node) and not literal:
                return [Wrap(node, "average")]
            if self._corrected(node):
                return [Wrap(node, "average")]
            of_metric = isinstance(node, cst.Call) and self.is_number(node) and self.from_zero(place)
            in_loop = self.sink is not None and self.sink.loop is not None
            window = in_loop and not self.run.shards.parts and self._is_window(node)
            if place.kind is Kind.RATIO and (isinstance(node, _NUMBERS) or of_metric) and not self._descends(node):
                self.lost += [node] if window else []
                return [Wrap(node, "average")] if not window else None
            if place.kind is Kind.RUN and place.adds - {"reset"} in ({"fraction"}, {"fires"}):
                return []  # as in the serial script
            if place.kind is Kind.RUN and place.adds & {"decayed", "mean", "part"} and not window:
                return [Wrap(node, "average")]
            since = "" if self.from_zero(place) or place.kind is not Kind.RUN else self.reductions.before(place, node)
            inside = isinstance(node, cst.BinaryOperation) and "scaled" in place.adds
            if (
                place.kind is Kind.RUN
                and (self.from_zero(place) or since)
                and not inside
                and not (isinstance(node, cst.Call) and self._is_text_or_row(node))
                and not place.adds & {"stored", "run", "joined", "numbers", "trimmed"}
                and not window
            ):
                return [Wrap(node, "total", since)]
            if place.kind is Kind.EXTREME and len(place.adds) == 1 and not self._is_text_or_row(node):
                return [Wrap(node, "maximum" if "max" in place.adds else "minimum")]
        if calls_method(node, "index") and not self.place(node).uniform:
            self.lost.append(node)  # where it lies in what each rank has
            return None
        if computed and not self.draws(node):
            before, self.goes_on = self.goes_on, self.goes_on or place.kind is Kind.RATIO
            alike = self.run.shards.parts and place.kind is Kind.RUN and not parts.how(place.adds, False)
            found = self.wraps_inside(node, shown, SAME if alike else place)
            self.goes_on = before
            return found
        texts = self._texts_of(node)
        if shown and texts:
            return self._of_texts(texts)
        behind = self.sink is not None and self.sink.loop is None
        rows = any(value.refs and self.run.numbers(value) for value in self.run.seen.get(node, ()))
        if place.kind is Kind.ENTRY and shown and not behind and not rows:
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
            return text or calls_method(node, "format")
        return isinstance(node, COMPUTES) and not isinstance(node, (cst.UnaryOperation, cst.Comparison, cst.IfExp))

    def _of_part(self, node: cst.BaseExpression, place: Place) -> list[Wrap] | None:
        """Return what makes a number serial that is of this rank's part of each batch; None of what is no number."""
        if place.kind is Kind.ENTRY and self.is_number(node) and not isinstance(node, (cst.List, cst.Dict, cst.Tuple)):
            if "summed" in place.adds:
                return [Wrap(node, "total")]
            if extreme := parts.extreme(place):
                return [Wrap(node, extreme)]
            if isinstance(node, cst.BinaryOperation) and isinstance(node.operator, cst.Divide):
                sums = [n for n in (node.left, node.right) if "summed" in self.place(n).adds]
                if len(sums) == 2:
                    return [Wrap(n, "total") for n in sums]
            before = len(self.lost)
            found = (
                self.wraps_inside(node, False, place) if "bent" in place.adds and isinstance(node, COMPUTES) else None
            )
            if found is not None:
                return found
            if "bent" in place.adds:
                del self.lost[before:]
                self.lost.append(node)
                return []
            return [Wrap(node, "average")] if not place.adds and not self._truth(node) else None
        if place.kind is Kind.RATIO and "summed" in place.adds and isinstance(node, _NUMBERS):
            over = self.place(node.left) if isinstance(node, cst.BinaryOperation) else place
            goes_on = over.kind is Kind.RUN and not self.from_zero(over)
            return None if goes_on else [Wrap(node, "total")]
        if place.kind is not Kind.RUN:
            return None
        how = parts.how(place.adds, False)
        since = "" if self.from_zero(place) or how != "total" else self.reductions.before(place, node)
        if how == "total" and not (self.from_zero(place) or since):
            return None
        return [Wrap(node, how, since)] if how in ("total", "average") else [] if not how else None

    def _corrected(self, node: cst.CSTNode) -> bool:
        """Tell whether ``node`` corrects a moving average for how few iterations of this rank it is of yet."""
        if not isinstance(node, cst.BinaryOperation) or not isinstance(node.operator, cst.Divide):
            return False
        over, under = self.place(node.left), self.place(node.right)
        return over.kind is Kind.RUN and "decayed" in over.adds and under.uniform and under.kind is not Kind.SAME

    def _descends(self, node: cst.BaseExpression) -> bool:
        """Tell whether a quotient of sums so far is made of its parts: each summed up, then divided.

        So it is where both are local sums, and where one goes on from before the loop: no mean is right then.
        """
        if not isinstance(node, cst.BinaryOperation):
            return False
        places = [self.place(side) for side in (node.left, node.right)]
        runs = [p for p in places if p.kind is Kind.RUN]
        goes_on = any(not self.from_zero(p) for p in runs) or any(p.kind is Kind.RATIO for p in places)
        return len(runs) == 2 or goes_on

    def _texts_of(self, node: cst.CSTNode) -> list[cst.CSTNode]:
        """Return the formatted texts that ``node`` may be, made elsewhere: ``line = f"{loss:.3f}"``."""
        texts = dict.fromkeys(text for value in self.run.seen.get(node, ()) for text in value.texts)
        return [text for text in texts if text is not node]

    def _of_texts(self, texts: list[cst.CSTNode]) -> list[Wrap] | None:
        """Return what makes the numbers in ``texts`` serial where these are made, if all ranks come there together."""
        if any(not self.agreed.issuperset(self.run.made_diverged.get(text, ())) for text in texts):
            self.lost.extend(texts)
            return None
        for text in texts:
            self.note_formats(text)
        return [wrap for text in texts for wrap in self._of_text(text) or ()]

    def _of_text(self, text: cst.CSTNode) -> list[Wrap] | None:
        """Return what makes the numbers in one text serial: ``line = "{} {}".format(line, loss)`` holds itself."""
        if text in self.within:
            return []
        self.within.append(text)
        found = self.wraps(text, True)
        self.within.pop()
        return found

    def _truth(self, node: cst.CSTNode) -> bool:
        """Tell whether ``node`` is true or false: what it compares is made serial, not the answer."""
        if isinstance(node, cst.Call):
            return dotted(node.func).rpartition(".")[2] in _ANSWERS
        return isinstance(node, (cst.Comparison, cst.BooleanOperation)) or (
            isinstance(node, cst.UnaryOperation) and isinstance(node.operator, (cst.Not, cst.BitInvert))
        )

    def draws(self, node: cst.CSTNode) -> bool:
        """Tell whether an expression draws random numbers."""
        return isinstance(node, cst.Call) and of_function(self.script.name_of(node.func)) is Row.CHANCE

    def wraps_inside(self, node: cst.CSTNode, shown: bool, place: Place) -> list[Wrap] | None:
        """Return what makes serial what an expression is computed of; None where nothing does."""
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
            given = [a.value for a in node.args if a.value not in apart and not indexes(self.facts.flow, node, a.value)]
            return [*(r for r in receiver if r in self.run.seen), *given, *(field.read for field in fields.values())]
        if isinstance(node, cst.IfExp):
            return [node.body, node.orelse] if self._decided(node.test) else []
        if isinstance(node, cst.DictElement):
            return [node.value]
        if isinstance(node, (cst.GeneratorExp, cst.ListComp, cst.DictComp)):
            literal = isinstance(node.for_in.iter, (cst.List, cst.Tuple))
            alike = literal or self.place(node.for_in.iter).kind is Kind.SAME  # all ranks go through as many entries
            alike = alike and (self.run.shards.parts or node not in self.run.over_grown)
            each = node.value if isinstance(node, cst.DictComp) else node.elt
            counted = self.place(each).kind in (Kind.COUNT, Kind.INDEX) or self.place(each).counts
            if not alike and counted and not self.run.shards.parts:
                self.lost.append(each)  # counts, and maybe others beside them
            return [each] if alike and not node.for_in.ifs and node.for_in.inner_for_in is None else []
        return [c for c in children(node) if isinstance(c, (cst.BaseExpression, *COMPUTES))]

    def _decided(self, test: cst.BaseExpression) -> bool:
        """Tell whether all ranks answer a test alike, by numbers that are made serial, too: else they part there."""
        if isinstance(test, cst.BooleanOperation):
            return self._decided(test.left) and self._decided(test.right)
        if isinstance(test, cst.UnaryOperation):
            return self._decided(test.expression)
        sides: list[cst.BaseExpression] = [test]
        if isinstance(test, cst.Comparison):
            sides = [test.left, *(c.comparator for c in test.comparisons)]
        elif isinstance(test, cst.Call) and test not in self.run.forced:
            sides = [arg.value for arg in test.args] or sides
        forced = not self.run.shards.parts or all(self.place(s).uniform or s in self.run.forced for s in sides)
        return self.place(test).uniform or forced

    def _goes_through_literal(self, node: cst.GeneratorExp | cst.ListComp) -> bool:
        """Tell whether a comprehension makes a text or number of each of several entries: ``for e in (step, loss)``."""
        loop = node.for_in
        if not isinstance(loop.iter, (cst.Tuple, cst.List)) or not isinstance(loop.target, cst.Name):
            return False
        kinds = {self.place(element.value).kind for element in loop.iter.elements}
        return not kinds <= {Kind.ENTRY, Kind.SAME} and not loop.ifs and loop.inner_for_in is None

    def count(self, node: cst.BaseExpression, place: Place) -> list[Wrap]:
        """Return what makes a count serial where it is shown; see ``counts``."""
        raise NotImplementedError
