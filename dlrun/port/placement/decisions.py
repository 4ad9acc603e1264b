"""What all ranks must decide alike: tests that leave a loop, update or save, and what rates and losses are set by."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from dlrun.port.edits import Doubt, Edit
from dlrun.port.facts.models.kinds import ends
from dlrun.port.facts.numbers.computed import computed
from dlrun.port.facts.updates.session import runs_session
from dlrun.port.facts.updates.weights import changes_training
from dlrun.port.placement import cadences
from dlrun.port.placement.interpret.machine import Tested
from dlrun.port.placement.rules import Row, of_function
from dlrun.port.placement.shown_counts import ShownCounts
from dlrun.port.placement.values import COUNT, MIXED, Kind
from dlrun.port.placement.wraps import Wrap
from dlrun.port.program.script import calls_method, children, dotted, walk
from dlrun.port.steps.counts.counters import this_included
from dlrun.port.steps.counts.milestones import in_strides, updates

_ENDS = (cst.Break, cst.Continue, cst.Return, cst.Raise)
_FILES = ("exists", "is_dir", "is_file", "isdir", "isfile")
_EXITS = ("sys.exit", "builtins.exit", "builtins.quit", "os._exit")
_AS_THEY_ARE = ("int", "float", "abs")
_RATES = ("lr", "learning_rate")  # attributes of optimizers, which count nothing
_COMPARED = (cst.Comparison, cst.ComparisonTarget, cst.BooleanOperation, cst.UnaryOperation, cst.BinaryOperation)


class Decisions(ShownCounts):
    """Makes tests of local numbers those of all ranks, or doubts them."""

    def decided(self, tests: list[Tested]) -> Iterator[Edit | Doubt]:
        """Yield what makes a test one on all ranks, or the doubt that the ranks may hang there."""
        node = tests[-1].node
        self.sink = None
        place = self.place(node.test)
        inside = [t for t in tests if t.loop is not None]
        if inside and (self._asks_elsewhere(node) or self._asks_otherwise(node)):
            text = self.script.code(node.test)
            why = f"{text}: every so many iterations of a rank, n times as many serial ones: the number is not divided"
            yield Doubt(node.test, why, "medium", name="unknown-placement")
            self.told_of.update(self.script.code(n) for n in walk(node.test) if isinstance(n, cst.Name))
        decides = self._decides(node) if inside else self._leaves(node)
        decides = decides or (place.kind is Kind.CLOCK and (self._meets(node) or self._trains(node)))
        if place.uniform or self._of_sizes(node.test) or not decides:
            return
        if self._counts_alike(node.test) or node.test in self.run.shards.together:
            return
        if self.run.shards.episodes and (node in self.run.shards.plays or ends(self.facts.kinds, node.test)):
            return
        if place.kind is Kind.CLOCK:
            if any(self._asks_for_file(n) for n in walk(node.test)):
                return  # a path that holds the time: what is there, rank 0 tells
            if not any(d not in self.agreed for t in tests for d in t.diverged):
                self.agreed.add(node.test)
                why = "each rank has its own clock, signals, files and random numbers: rank 0 decides"
                yield self.edit(Wrap(node.test, "agree"), why)
            return
        wraps = self.wraps(node.test, False) if place.kind is not Kind.UNKNOWN else None
        apart = [d for t in tests for d in t.diverged if d is not node.test and d not in self.agreed]
        if wraps and not apart:
            self.agreed.add(node.test)
            how = self._draws_locally(node, wraps) or ("agree" if self._only_chance(node.test) else "")
            wraps = [Wrap(node.test, how)] if how else wraps
            why = "all ranks must decide alike"
            if how:
                why = (
                    "rank 0 draws" if how == "agree" else "what is drawn from here is local: each rank must hold enough"
                )
            yield from self.once(wraps, why)
        elif not self._by_chance(node.test) and not self.run.shards.episodes:  # of these see ``steps/metrics/guards``
            text = self.script.code(node.test)
            why = f"{text}: the ranks may decide differently, and wait for each other for ever"
            yield Doubt(node.test, why, "high", name="may-hang")

    def matched(self, node: cst.Match) -> Iterator[Doubt]:
        """Yield the doubt about a ``match`` by which some ranks alone may leave the training, or update."""
        text = self.script.code(node.subject)
        if self.run.shards.episodes or not any(
            self._acts_alone(node, n) for case in node.cases for n in walk(case.body)
        ):
            return
        why = f"match {text}: the ranks may decide differently, and wait for each other for ever"
        yield Doubt(node.subject, why, "high", name="may-hang")

    def _acts_alone(self, node: cst.Match, inner: cst.CSTNode) -> bool:
        """Tell whether ``inner``, in a case of ``node``, is what all ranks must come to together."""
        if self._changes_training(inner) or inner in self.run.shards.steps:
            return True
        if isinstance(inner, _ENDS) or calls_method(inner, "backward", "step"):
            return not self._leaves_out_sums(inner) and self._in_training(node, inner)
        return False

    def _asks_for_file(self, node: cst.CSTNode) -> bool:
        """Tell whether ``node`` looks for a file whose name a clock has made: ``path.exists()``."""
        if not isinstance(node, cst.Call) or not calls_method(node, *_FILES):
            return False
        asked = [*(arg.value for arg in node.args), node.func.value]
        return any(self.place(value).kind is Kind.CLOCK for value in asked)

    def _meets(self, node: cst.CSTNode, deep: int = 3) -> bool:
        """Tell whether what ``node`` holds, or calls, goes through a share: there all ranks meet."""
        for n in walk(node):
            if n in self.run.over or n in self.run.sharded:
                return True
            targets = self.facts.flow.targets(n) if isinstance(n, cst.Call) and deep else ()
            if any(self._meets(function.body, deep - 1) for function in targets):
                return True
        return False

    def _trains(self, node: cst.CSTNode) -> bool:
        """Tell whether what ``node`` holds, outside loops over shards, changes how the weights are trained."""
        return any(calls_method(n, "step") or self._changes_training(n) for n in walk(node))

    def _only_chance(self, test: cst.BaseExpression) -> bool:
        """Tell whether nothing but chance makes a test differ between the ranks: the mean of their draws is no draw."""
        names = [n for n in walk(test) if isinstance(n, (cst.Name, cst.Attribute)) and dotted(n) and n in self.run.seen]
        made = [o.node for n in names if not self.place(n).uniform for o in self.facts.flow.origins(n)]
        return bool(made or self._by_chance(test)) and all(map(self._by_chance, made))

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
        if self.run.shards.parts or self.run.shards.episodes or not self.place(node.test).uniform:
            return False
        known = {*self.run.shards.divided, *self.run.shards.counted, *self.run.shards.lengths}
        if any(test is node.test for test, _, _ in in_strides(self.facts)):
            return False  # told there
        rests = ("remainder", "cadence", "length")
        if any(n in known or any(v.name in rests for v in self.run.seen.get(n, ())) for n in walk(node.test)):
            return False
        bodies: list[cst.CSTNode] | None = None
        for n in walk(node.test):
            if isinstance(n, (cst.Name, cst.Attribute)) and self.is_count(n) and self._is_computed_with(n, node.test):
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
                return not self.place(up).counts and self.place(up) != COUNT
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
            drawn = [n for part in read for n in walk(part) if isinstance(n, cst.Call) and self.draws(n)]
            if any(self.script.code(arg.value) in kept for call in drawn for arg in call.args):
                return how
        return ""

    def _counts_alike(self, test: cst.CSTNode) -> bool:
        """Tell whether a test goes by iterations since the last update alone: ``if pending == 3:``, on all ranks."""
        names = [n for n in walk(test) if isinstance(n, (cst.Name, cst.Attribute)) and n in self.run.seen]
        places = [self.place(n) for n in names]
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

    def steered(self, value: cst.BaseExpression) -> Iterator[Edit | Doubt]:
        """Yield what makes a rate, or another number that steers the training, one on all ranks."""
        self.lost, self.sink = [], None
        if self.place(value).uniform:  # a count: the rate follows the serial one, which each rank has of parts
            local = not self.run.shards.parts and not self._measured(value)
            counts = self._counts_in(value) if local else []
            if local and not counts and self.place(value).kind is Kind.COUNT and not self._is_followed(value):
                yield from self.told(value, MIXED)
            for node in [n for n in counts if self.place(n) == MIXED]:  # if warm < 100: warm += 1
                counts.remove(node)
                yield from self.told(node, self.place(node))
            so_far = [this_included(self.script, n) for n in counts]
            yield from self.once([Wrap(n, "serial_steps") for n in so_far], "the serial count")
            return
        by_eager = self.facts.framework == "torch" or getattr(self.facts, "style", "") == "tape"
        if by_eager and self._only_chance(value):
            return  # all ranks draw it alike: see ``steps/shard/redrawn``
        if self.place(value).kind is Kind.CLOCK:
            yield from self.once([Wrap(value, "agree")], "each rank has another one: rank 0's is taken")
            return
        wraps = self.wraps(value, False)
        if wraps:
            yield from self.once(wraps, "the rate is the same on all ranks")
        else:
            yield from self.told(value, self.place(value))

    def _measured(self, value: cst.BaseExpression) -> bool:
        """Tell whether a rate is measured by what counts local steps, too: the length of a share, a divided number.

        Not what a count is made of, which is made serial as a whole: ``step`` of ``epoch * len(loader) + i``.
        """
        names = [n for n in walk(value) if isinstance(n, (cst.Name, cst.Attribute)) and n in self.run.seen]
        calls = [self.script.name_of(n.func) for n in walk(value) if isinstance(n, cst.Call)]
        plain = all(name.partition(".")[0] in ("builtins", "math", "numpy") for name in calls)
        others = [n for n in names if self.place(n) != COUNT] if plain else [value]
        made = {*computed(self.facts.flow, others).nodes, *walk(value)}
        lengths = [n for n in made if isinstance(n, cst.Call) and self.script.name_of(n.func) == "builtins.len"]
        return any(n in self.run.shards.divided or (n in lengths and self.place(n) == COUNT) for n in made)

    def _is_followed(self, value: cst.BaseExpression) -> bool:
        """Tell whether some of what a number is computed of is divided, or made serial."""
        known = (*self.run.shards.divided, *self.run.shards.counted)
        return any(n in known for n in (*computed(self.facts.flow, [value]).nodes, *self.script.above(value)))

    def _counts_in(self, value: cst.BaseExpression) -> list[cst.BaseExpression]:
        """Return the names and attributes in ``value`` that count iterations or samples, and are not made serial."""
        known = (*self.run.shards.divided, *self.run.shards.counted)
        for nodes in (walk(value), computed(self.facts.flow, [value]).nodes):  # or in what a function computes it of
            names = [n for n in nodes if isinstance(n, (cst.Name, cst.Attribute)) and n in self.run.seen]
            names = [n for n in names if isinstance(n, cst.Name) or n.attr.value not in _RATES]
            counts = [n for n in names if self.place(n).kind is Kind.COUNT or self.place(n).counts]
            if counts:
                break
        return [n for n in counts if not any(up in known for up in (n, *self.script.above(n)))]

    def weighs(self, call: cst.Call) -> Iterator[Doubt]:
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
            return isinstance(node, cst.While) and node in self.run.shards.training
        steps = self.run.shards.steps
        if node.test in self.run.steers:
            return True
        for n in walk(node):
            if self._changes_training(n) or (isinstance(n, cst.Call) and runs_session(n)):
                return True
            if self._leaves_out_sums(n):
                continue
            if isinstance(n, _ENDS) or n in steps or calls_method(n, "backward", "step"):
                return self._in_training(node, n)
            if isinstance(n, cst.Call):
                name = self.script.name_of(n.func)
                if name in _EXITS or "save" in dotted(n.func):
                    return True
        return False

    def _changes_training(self, node: cst.CSTNode, deep: int = 3) -> bool:
        """Tell whether ``node``, or a function that it calls, changes weights or how they are trained."""
        if changes_training(self.facts, node):
            return True
        targets = self.facts.flow.targets(node) if isinstance(node, cst.Call) and deep else ()
        return any(self._changes_training(n, deep - 1) for function in targets for n in walk(function.body))

    def _leaves_out_sums(self, end: cst.CSTNode) -> bool:
        """Tell whether a `continue`, or a `raise` that is caught, leaves out no update: each rank goes its own way."""
        if not isinstance(end, (cst.Continue, cst.Raise)):
            return False
        caught = False
        for up in self.script.above(end):
            caught = caught or isinstance(up, cst.Try) or self.script.suppresses(up)
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

    def _leaves(self, node: cst.If | cst.While | cst.IfExp | cst.Assert) -> bool:
        """Tell whether a test outside the loops over shards decides over what all ranks must do alike.

        A loop, or a function, that each rank goes through by itself, ``while n in seen: n = randint(50)``, it may leave
        by its own draws.
        """
        drawn = self._only_chance(node.test)
        for end in walk(node):
            if isinstance(end, cst.Raise):
                return True
            left = (cst.For, cst.While) if isinstance(end, cst.Break) else (cst.FunctionDef,)
            if isinstance(end, (cst.Break, cst.Return)):
                around = next((up for up in self.script.above(end) if isinstance(up, left)), None)
                if around is None or not drawn or self._goes_together(around):
                    return True
        return isinstance(node, cst.While) and (not drawn or self._goes_together(node))

    def _goes_together(self, node: cst.CSTNode) -> bool:
        """Tell whether all ranks must come together to something in ``node``: a share, an update, what saves."""
        held = [n for n in walk(node) if not isinstance(n, (cst.Break, cst.Return))]
        return self._meets(node) or self._trains(node) or any(map(self._acts, held))

    def _in_training(self, node: cst.CSTNode, end: cst.CSTNode) -> bool:
        """Tell whether ``end`` under ``node`` leaves a loop that trains, not one through a batch."""
        if not isinstance(end, _ENDS):
            return True
        for up in self.script.above(end):
            if isinstance(up, (cst.For, cst.While)):
                return isinstance(end, (cst.Return, cst.Raise)) or up in self.run.shards.training
            if isinstance(up, cst.FunctionDef):
                return isinstance(end, cst.Raise) or up in self._training
        return True

    @property
    def _training(self) -> set[cst.CSTNode]:
        return {self.script.function_of(n) for n in (*self.run.shards.training, *self.run.shards.steps)}
