"""Calls around expressions that make them serial, each once; a Doubt about what nothing makes serial."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import libcst as cst

from dlrun.port.edits import Doubt, Edit
from dlrun.port.facts import ScriptFacts
from dlrun.port.facts.numbers.formats import numbers
from dlrun.port.facts.numbers.integers import integers
from dlrun.port.insert import expression, in_brackets
from dlrun.port.placement.beside_sums import beside_counts
from dlrun.port.placement.fields import as_argument
from dlrun.port.placement.interpret import Interpreter, parts
from dlrun.port.placement.interpret.machine import Field, Sink
from dlrun.port.placement.reduce import Reductions
from dlrun.port.placement.values import MIXED, SAME, Kind, Place, Why, join_places, unknown

_OPERATORS = (cst.BinaryOperation, cst.UnaryOperation, cst.Comparison, cst.BooleanOperation, cst.Attribute)


@dataclass(frozen=True)
class Wrap:
    """An expression and what makes it serial where it is read."""

    node: cst.BaseExpression
    how: str
    since: str = ""


class Wraps:
    """Writes what makes expressions serial, and tells of the others."""

    def __init__(self, facts: ScriptFacts, run: Interpreter, reductions: Reductions) -> None:
        """Take what the abstract run has found, and what is reduced behind the loops."""
        self.reductions = reductions
        self.facts = facts
        self.script = facts.script
        self.run = run
        self.done: dict[cst.CSTNode, str] = {}
        self.doubted: set[Why | cst.CSTNode] = set()
        self.formatted: set[cst.CSTNode] = set()
        self.whole: set[cst.CSTNode] = set()  # what must stay an integer
        self.agreed: set[cst.CSTNode] = set()  # the tests that all ranks answer alike by now
        self.told_of: set[str] = set()  # counts that tests ask for, and that are told as such
        self.goes_on = False  # within a quotient whose parts are made serial one by one
        self.sink: Sink | None = None  # what is looked at
        self.within: list[cst.CSTNode] = []  # the texts whose numbers are being made serial, each in the one before
        self.lost: list[cst.CSTNode] = []  # what nothing makes serial, of the expression that is looked at

    def place(self, node: cst.CSTNode) -> Place:
        """Return the placement of an expression over all times that it was evaluated."""
        place: Place | None = None
        for value in self.run.seen.get(node, ()):
            here = self.run.content(value) if value.items is not None else value.place
            alike = place is not None and self._means(place) and place.adds == here.adds
            place = here if place is None or alike else join_places(place, here)
        if place is not None and beside_counts(self.run, node):
            return MIXED
        return place if place is not None else SAME

    def _means(self, place: Place) -> bool:
        """Tell whether a number so far averages, from wherever it began: of a list that is made anew at times."""
        return self.run.shards.parts and place.kind is Kind.RUN and parts.how(place.adds, False) == "average"

    def is_number(self, node: cst.CSTNode) -> bool:
        """Tell whether an expression is one number."""
        values = self.run.seen.get(node, ())
        if node in self.formatted or (bool(values) and any(v.scalar for v in values)):
            return True
        return bool(self.run.shards.runs) and bool(values) and self.run.shards.number(node)

    def from_zero(self, place: Place) -> bool:
        """Tell whether a sum so far began at zero when its loop began."""
        return place.at in self.run.from_zero or "reset" in place.adds

    def note_formats(self, node: cst.CSTNode) -> None:
        """Note what the formats in a text show as numbers, and what only a whole number can be there."""
        self.formatted.update(numbers(node))
        self.whole.update(integers(node, self._is_text))

    def _is_text(self, node: cst.CSTNode) -> bool:
        """Tell whether ``node`` is a text."""
        return any(isinstance(value.const, str) for value in self.run.seen.get(node, ()))

    def edit(self, wrap: Wrap, why: str) -> Edit:
        """Return the edit that puts the call of a wrap around its expression."""
        self.done[wrap.node] = wrap.how
        template = partial(
            expression, "reduced_value", dl=self.facts.alias, how=wrap.how, since=wrap.since, over=self._over(wrap)
        )
        if wrap.how == "average" and wrap.node in self.whole:
            template = partial(expression, "rounded", dl=self.facts.alias)
        if wrap.how == "serial_index":
            by, over = wrap.since or "1", self._over(wrap)
            template = partial(expression, "serial_index", dl=self.facts.alias, by=by, over=over)
            if isinstance(self.script.parents.get(wrap.node), _OPERATORS):
                return Edit(wrap.node, why, lambda node: in_brackets(template({"value": node})))
        if wrap.how == "serial_iteration":
            template = partial(expression, "serial_iteration", dl=self.facts.alias, first=wrap.since)
        if wrap.how == "serial_steps" and not wrap.since and self._is_length_shown(wrap.node):
            length = partial(expression, "reduced_value", dl=self.facts.alias, how="serial_length", since="", over="")
            return Edit(wrap.node, why, lambda node: length({"value": node.args[0].value}))
        if wrap.how == "over_ranks":
            template = partial(expression, "over_ranks", dl=self.facts.alias)
        field = next(self._field_at(wrap.node), None)
        if field is not None:
            named, text = field.named, self.script.code(wrap.node)
            return Edit(field.call, why, lambda node: as_argument(node, named, text, template({"value": wrap.node})))
        return Edit(wrap.node, why, lambda node: template({"value": node}))

    def _is_length_shown(self, node: cst.BaseExpression) -> bool:
        """Tell whether ``node`` is the length of a shared loader, and shown by itself, outside of the loader's loop.

        A sum over its batches counts those that pad the shares, too: what it is divided by is n times the length. So is
        what the steps so far are shown beside.
        """
        if not isinstance(node, cst.Call) or self.script.name_of(node.func) != "builtins.len" or len(node.args) != 1:
            return False
        of = node.args[0].value
        places = [v.place for v in self.run.seen.get(of, ())]
        shares = bool(places) and all(p.kind is Kind.SHARD and p.at is None for p in places)
        if self.facts.framework != "torch" or not shares or not isinstance(of, (cst.Name, cst.Attribute)):
            return False
        up = self.script.parents[node]
        if any(loop in self.run.sharded for loop in self.script.above(node)):
            return False
        return isinstance(up, (cst.FormattedStringExpression, cst.Arg, cst.Element, cst.DictElement))

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
        if wrap.how in ("serial_steps", "serial_index") and isinstance(wrap.node, cst.Name):
            return self._over_at_times(wrap.node)
        counted = wrap.node.args[0].value if isinstance(wrap.node, cst.Call) and len(wrap.node.args) == 1 else None
        if wrap.how != "serial_steps" or not isinstance(counted, (cst.Name, cst.Attribute)):
            return ""
        places = [v.place for v in self.run.seen.get(counted, ())]
        alike = all(p.kind is Kind.SHARD and p.at is None for p in places)
        text, shards = self.script.code(counted), [p.kind is Kind.SHARD for p in places]
        loops = [loop for loop, source in self.run.over.items() if self.script.code(source) == text]
        reduced = all(shards) or any(loop in self.run.plain_loops for loop in loops)  # with over=, as behind the loop
        return "" if alike or not any(shards) or not reduced else text

    def _over_at_times(self, count: cst.Name) -> str:
        """Return what a loop goes through that ``count`` counts, where that is whole data at times; else ""."""
        function = self.script.function_of(count)
        if any(self.script.function_of(b.node) is not function for b in self.script.bindings_of(count)):
            return ""
        for up in self.script.above(count):
            source = up.iter if isinstance(up, cst.For) else None
            kinds = {v.place.kind for v in self.run.seen.get(source, ())} if source is not None else set()
            if Kind.SHARD in kinds:
                plain = isinstance(source, (cst.Name, cst.Attribute)) and len(kinds) > 1
                return self.script.code(source) if plain else ""  # type: ignore[arg-type]
        return ""

    def once(self, wraps: list[Wrap] | None, why: str) -> Iterator[Edit | Doubt]:
        """Yield the edits of wraps, but for what is made serial already."""
        for wrap in wraps or ():
            if wrap.node in self.done or any(up in self.done for up in self.script.above(wrap.node)):
                continue
            seen = self.run.seen.get(wrap.node, ())
            if wrap.how == "total" and any(v.place.kind is Kind.SAME and v.reduced for v in seen):
                text = "its line is run for sums so far within a loop, and for all ranks' behind it"
                yield from self.told(wrap.node, unknown(self.sink.call if self.sink else wrap.node, text))
                continue
            yield self.edit(wrap, why)

    def told(self, node: cst.CSTNode, place: Place) -> Iterator[Doubt]:
        """Yield the doubt about an expression that nothing makes serial, one for each cause."""
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
