"""What is shown, and what decides, inside a loop over a shard: made serial where it is read, or doubted."""

from __future__ import annotations

import re
from collections.abc import Iterator

import libcst as cst

from dlrun.port.edits import Doubt, Edit
from dlrun.port.placement import cadences
from dlrun.port.placement.beside_sums import keys_of
from dlrun.port.placement.decisions import Decisions
from dlrun.port.placement.interpret.machine import Sink, Tested
from dlrun.port.placement.shown_counts import COUNTED
from dlrun.port.placement.values import INDEX, SAME, Kind, Value, power, unknown
from dlrun.port.placement.wraps import Wrap
from dlrun.port.program.script import walk

_COUNTS = (Kind.COUNT, Kind.INDEX)
_HANDS_ON = re.compile(r"\.(group|tuple|summary\.\w+|\w+_initializer|train\.Saver|identity|no_op)$")  # no operands


class Shown(Decisions):
    """Finds what is to be made serial where it is read."""

    def edits(self) -> Iterator[Edit | Doubt]:
        """Yield what decides first, then what is shown, then the counts that meet serial numbers."""
        for tested in self.run.tests.values():
            yield from self.decided(tested)
        for chosen in self.run.matched:
            yield from self.matched(chosen)
        yield from cadences.edits(self.facts, self.run)
        for number, loop in self.run.forced.items():
            if not self._alike_in_all_calls(number):
                yield from self.told(number, unknown(number, "its line is run for sums over samples, and for others"))
                continue
            call = next((up for up in self.script.above(number) if isinstance(up, cst.Call)), None)
            ended = number in self.run.at_ends
            self.lost, self.sink = [], Sink(call, (number,), loop, (), ended=ended) if call is not None else None
            self.note_formats(number)
            wraps = self.wraps(number, not self.run.shards.parts)
            yield from self.once(wraps, "of all ranks: each has a part of the iteration")
            if self.lost or wraps is None or (not wraps and not self.place(number).uniform):
                yield from self.told(number, self.place(number))
        for value in self.run.steered:
            yield from self.steered(value)
        for sinks in self.run.sinks.values():
            yield from self._shown(sinks)
        for tested in self.run.tests.values():
            yield from self._chosen(tested)
        for number, counts in self.run.iteration_numbers.items():
            if not all(v.place.counts or v.place.kind in _COUNTS for v in self.run.seen.get(number, ())):
                yield from self.told(number, unknown(number, "its line is run for iterations, and for others"))
                continue
            first, by = counts or (0, 1)
            begins = f"{first}, {by}" if by != 1 else str(first or "")
            to = "serial_steps" if counts is None else "serial_iteration"
            yield from self.once([Wrap(number, to, begins)], "it numbers the serial script's iterations")
        for compared in (node for node, behind in self.run.compared.items() if behind and not self._counts_serially()):
            self.lost = []
            yield from self.once(self.compared(compared), "as many as the serial script counts")
            for node in self.lost:
                yield from self.told(node, self.place(node))
        yield from self._kept_in_graph()
        for count in self.run.restored:
            place = self.place(count)
            seen = self.run.seen.get(count, ())
            if any(map(self._is_reduced, seen)) and any(v.place.kind in _COUNTS for v in seen):
                text = "its line is run for counts of local iterations, and for those of all ranks"
                yield from self.told(count, unknown(count, text))
            elif (place.kind in (Kind.COUNT, Kind.INDEX) or place.counts) and count not in self.done:
                how = "serial_index" if place == INDEX else COUNTED.get(power(place))
                if how is not None:
                    yield self.edit(Wrap(count, how), "as many as the serial script counts")  # type: ignore[arg-type]
                else:
                    yield from self.told(count, place)
            elif place.kind in (Kind.MIX, Kind.UNKNOWN):
                yield from self.told(count, place)

    def _kept_in_graph(self) -> Iterator[Doubt]:
        """Doubt the first variable that a graph updates by local samples, and computes with: means of a BatchNorm."""
        for ref, place in self.run.updates_of_graph.items():
            update = place.why.node if place.why is not None else ref.site
            held = (n for n, values in self.run.seen.items() if any(ref in value.refs for value in values))
            reads = [n for n in held if self._computes_with(n) and not self.script.inside(n, update)]
            if reads:
                name = self.script.code(reads[0])
                why = f"{name}: the graph moves it by each rank's own samples, and computes with it: rank 0's is shown"
                write = f"average {name} over the ranks before it is evaluated, and before it is saved"
                yield Doubt(update, why, "medium", write, name="unknown-placement")
                return

    def _computes_with(self, node: cst.CSTNode) -> bool:
        """Tell whether ``node`` is an operand in the graph: of arithmetic, or of one of TensorFlow's functions."""
        up = self.script.parents.get(node)
        call = self.script.parents.get(up) if isinstance(up, cst.Arg) else None
        if not isinstance(call, cst.Call):
            return isinstance(up, cst.BinaryOperation)
        name = self.script.name_of(call.func)
        first = call.args[0] is up and ".assign" in name
        return name.startswith("tensorflow.") and not first and not _HANDS_ON.search(name)

    def _counts_serially(self) -> bool:
        """Tell whether each rank makes as many iterations as the serial script, of parts, or of local episodes."""
        return self.run.shards.parts or self.run.shards.episodes

    def _chosen(self, tests: list[Tested]) -> Iterator[Doubt]:
        """Doubt a test behind the loops, by what is not known, of what is shown: ``if score > 50: print("good")``."""
        node = tests[-1].node
        place = self.place(node.test)
        behind = isinstance(node, cst.If) and all(tested.loop is None for tested in tests)
        if behind and place.kind is Kind.UNKNOWN and any(n in self.run.sinks for n in walk(node)):
            yield from self.told(node.test, place)

    def _is_reduced(self, value: Value) -> bool:
        """Tell whether ``value`` is what a reduction behind a loop makes serial; counters go on without one."""
        return value.place == SAME and not self.run.counters.issuperset(keys_of(value))

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
                yield from self.weighs(call)

    def _shown(self, sinks: list[Sink]) -> Iterator[Edit | Doubt]:
        sink = sinks[-1]
        if sink.kept:
            yield from self._kept(sink)
            return
        diverged = next((s for s in sinks if not self.agreed.issuperset(s.diverged)), None)
        for part in sink.shows:
            self.lost = []
            self.sink = sink
            self.note_formats(part)
            wraps = self.wraps(part, True)
            rests = [*self.remainders(part), *self.fractions(part)]
            wraps = [*(wraps or ()), *rests] if rests else wraps
            for node in self.lost:
                yield from self.told(node, self.place(node))
            if wraps and diverged is not None:
                yield from self._apart(part, diverged)
            else:
                yield from self.once(wraps, "of all ranks, where it is shown")

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
