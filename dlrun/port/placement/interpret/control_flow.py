"""Control flow: branches, and loops until nothing changes any more."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import libcst as cst

from dlrun.port.placement.interpret import remembered, samples, whole
from dlrun.port.placement.interpret.by_key import ByKey
from dlrun.port.placement.interpret.containers import CONTAINERS
from dlrun.port.placement.interpret.machine import Flows, Tested
from dlrun.port.placement.interpret.raised import is_caught
from dlrun.port.placement.rules import Row, of_function
from dlrun.port.placement.store import (
    CONTENT,
    GROWN,
    REST,
    Class,
    Frame,
    Location,
    Obj,
    State,
    merge,
    merge_diverged,
    set_by_clock,
)
from dlrun.port.placement.values import (
    ANY,
    BY,
    COUNT,
    ENTRY,
    FROM,
    INDEX,
    MIXED,
    NOTHING,
    OR_END,
    POSITION,
    SAME,
    Kind,
    Place,
    Quotient,
    Value,
    combine,
    constant,
    trimmed,
    unknown,
)
from dlrun.port.program.script import calls_method, dotted, names_in, only_adds, walk

_UNROLLED = 8  # entries of a list that is gone through one by one
_ROUNDS = 5  # until a loop that is no loop over a shard changes nothing any more
_ORDERED = {cst.GreaterThan: "max", cst.GreaterThanEqual: "max", cst.LessThan: "min", cst.LessThanEqual: "min"}


_FEW = "it is of parts of this rank's share of the batches: of n ranks' these are others, and fewer"

ENDS = ("OutOfRangeError", "StopIteration")  # exceptions by which data end


class ControlFlow(ByKey):
    """Runs branches and loops; each method runs one kind of statement."""

    def tested(self, node: Any) -> None:
        """Note a test, and whether all ranks come to it together."""
        if self.recording:
            inner = (node,) if self.loop is not None and self.loop.inner else ()
            self.tests.setdefault(node, []).append(Tested(node, self.loop, (*self.diverged, *inner)))

    def _asks_for_end(self, test: cst.BaseExpression) -> bool:
        """Tell whether ``test`` asks for the end of a shard: ``batch is None`` of ``batch = next(batches, None)``."""
        match test:
            case cst.Comparison(
                left=cst.Name() as left, comparisons=[cst.ComparisonTarget(cst.Is(), cst.Name("None"))]
            ):
                with self.unrecorded():
                    return self.loop is not None and self.eval(left).name == OR_END
        return False

    def _do_If(self, node: cst.If) -> None:  # noqa: N802
        if node in self.at_first:
            self._branch(node.orelse)
            return
        if self.loop is not None and remembered.by_shape(self, node):
            self.block(node.body)
            return
        test = self.of_serial_number(node, self.eval(node.test))
        if self.runs_by_key(node):
            return
        self.tested(node)
        if test.const is not NOTHING and not isinstance(test.const, (str, bytes)):
            self._branch(node.body if test.const else node.orelse)
            return
        alike = node.test in self.shards.together or self._filled_together(test)
        place = SAME if alike else self.content(test)
        diverges = not place.uniform and self.loop is not None
        lost = self.loop is None and place.kind is Kind.UNKNOWN
        before = self.state
        guards = self._guards_of(node.test) if diverges else []
        if guards and self.shards.parts:
            guards, diverges = self._forced(node, guards), self.is_diverged
        elif diverges and self.of_iteration(node.test):
            diverges = False
        if place.kind is Kind.CLOCK:
            self.clocks.add(node.test)
        if diverges:
            self.diverged.append(node.test)
            self.by_carried[node.test] = self.is_carried(node.test, place)
        self.guards += guards
        asked = self._lists_in(node.test) if self.loop is not None else []
        self.state = dict(before) if before is not None else None
        ends = self._asks_for_end(node.test)
        self.ended += ends
        with self.at_pace(node.test, test):
            self._branch(node.body)
        self.ended -= ends
        then = self.state
        del self.guards[len(self.guards) - len(guards) :]
        self.state = dict(before) if before is not None else None
        with self.at_pace(node.test, test, otherwise=True):
            self._branch(node.orelse)
        if node.orelse is not None and before is not None and self.is_paced(test):
            self._added_between(node.test, before)
        for state in (then, self.state):
            _bounded(asked, before, state)
        if lost and then is not None and self.state is not None:
            self._unknown_since(place, then, self.state)
        if not diverges:
            left = then is None and self.is_paced(test, otherwise=True)
            if left or (self.state is None and self.is_paced(test)):
                self.paces.append(node.test)  # the rest of the iteration comes as often
            other = self.state
            self.state = self._either(before, then, other)
            if place.kind is Kind.CLOCK:
                self.by_clock = self.by_clock or then is None or other is None
                set_by_clock(self.state, then, other)
            return
        leaves = then is None or self.state is None
        self.by_carried[node.test] = False
        self.state = merge_diverged(then, self.state, node.test, place.kind is Kind.CLOCK)
        if not leaves:  # else the rest is under the test, too
            self.diverged.remove(node.test)

    def of_serial_number(self, node: cst.If | cst.IfExp, test: Value) -> Value:
        """Return a test of an iteration's number as one of the serial number, where it decides what is added to.

        Each rank then adds what is of its own batches: ``if step < 100: early += loss``, ``else: late += loss``, and
        ``key = "even" if i % 2 == 0 else "odd"``, ``sums[key] += loss``.
        """
        chooses = only_adds(node) if isinstance(node, cst.If) else self._is_key(node)
        if self.loop is None or not chooses or not test.place.uniform:
            return test
        compared = node.test if isinstance(node.test, cst.Comparison) and len(node.test.comparisons) == 1 else None
        sides = [node.test] if compared is None else [compared.left, compared.comparisons[0].comparator]
        bound = compared is not None and type(compared.comparisons[0].operator) in _ORDERED
        shared = any(isinstance(side, cst.BinaryOperation) and isinstance(side.operator, cst.Modulo) for side in sides)
        known = {*self.shards.divided, *self.shards.counted}
        if not (bound or (shared and node.orelse is not None)) or any(n in known for n in walk(node.test)):
            return test
        made = [self.row_of_iteration(side, self.seen_last(side), False) for side in sides]
        if all(value.place.kind is not Kind.ENTRY for value in made):
            return test
        self.note(node.test, Value(ENTRY, scalar=True))
        return Value(ENTRY, scalar=True)

    def _is_key(self, node: cst.CSTNode) -> bool:
        """Tell whether ``node``, or what it is bound to, is nothing but an index: ``sums["a" if x else "b"]``."""
        up = self.script.parents[node]
        if isinstance(up, cst.Index):
            return True
        target = up.targets[0].target if isinstance(up, cst.Assign) and len(up.targets) == 1 else None
        if not isinstance(target, cst.Name):
            return False
        scope = self.script.scope_of(target)
        uses = [n for n in self.script.named(target.value) if n is not target and self.script.scope_of(n) is scope]
        return all(isinstance(self.script.parents[n], cst.Index) for n in uses)

    def _added_between(self, test: cst.BaseExpression, before: State) -> None:
        """Make unknown what the iterations between two of a cadence add up: of n ranks these are fewer."""
        why = "it adds up the iterations between those of a cadence: of n ranks these are fewer"
        for at, value in list((self.state or {}).items()):
            if value.place.kind is Kind.RUN and value.place.adds & {"entry", "same"} and before.get(at) is not value:
                self.write(at, value.at(unknown(test, why, at)))

    def _lists_in(self, test: cst.BaseExpression) -> list[Location]:
        """Return the lists that iterations over a shard fill, and a test asks for: ``len(first) < 8``."""
        named = [n for n in walk(test) if isinstance(n, (cst.Name, cst.Attribute))]
        found = [at for n in named for value in self.seen.get(n, ())[-1:] for at in self.grown(value)]
        return [at for at in dict.fromkeys(found) if at[0].kind == "list"]

    def _either(self, before: State | None, then: State | None, other: State | None) -> State | None:
        """Return what holds behind a test that all ranks answer alike; what one way alone binds may be unbound."""
        out = merge(then, other)
        if before is None or then is None or other is None or out is None:
            return out
        for one, left in ((then, other), (other, then)):
            for at, value in one.items():
                if isinstance(value.place.at, Quotient) and self._still_mean(at, value.place.at, one, left):
                    out[at] = value
        alone = [at for at in then.keys() ^ other.keys() if at[1] not in (REST, GROWN, CONTENT)]
        known = {ref for value in before.values() for ref in value.refs} if alone else set()
        for at in alone:
            if isinstance(at[0], Frame) or at[0] in known:
                out[at] = replace(out[at], unbound=True)
        return out

    def _still_mean(self, at: Location, quotient: Quotient, updated: State, left: State) -> bool:
        """Tell whether one of two ways updates a mean so far with its sums, and the other leaves all three alone."""
        if at not in left or left[at] is not self.begun.get(at):
            return False
        for part in (quotient.over, quotient.under):
            held = left.get(part.at)
            alone = held is not None and held.place.untouched and held.place.at == part.at
            if not alone or updated[part.at].place != part:
                return False
        return True

    def _filled_together(self, test: Value) -> bool:
        """Tell whether ``test`` is a list to which all ranks add in each iteration: it is filled on all, or on none."""
        lists = [at for at in self.grown(test) if at[0].kind in ("list", "deque")]
        known = self.state or {}
        return bool(lists) and all(known[at].place.adds <= {"entry", "same", "part"} for at in lists)

    def _forced(self, node: cst.If, guards: list[tuple[Any, str, str]]) -> list[tuple[Any, str, str]]:
        """Let the numbers that a test compares with extremes, and what it keeps of them, be those of the iteration."""
        texts = {text for _, _, text in guards}
        for n in walk(node):
            if isinstance(n, cst.BaseExpression) and self.script.code(n) in texts:
                self.force(n, self.eval(n))
        return guards

    def _unknown_since(self, place: Place, then: State, other: State) -> None:
        """Make unknown what a test that the ranks may answer differently sets in one of two ways."""
        for at in {*then, *other}:
            a, b = then.get(at), other.get(at)
            if a is not b and a != b:
                then[at] = other[at] = (a or b or ANY).at(place)

    def _branch(self, body: Any) -> None:
        if body is None:
            return
        if isinstance(body, cst.If):
            self.statement(body)
        elif isinstance(body, cst.Else):
            self.block(body.body)
        else:
            self.block(body)

    def _guards_of(self, test: cst.BaseExpression) -> list[tuple[Any, str, str]]:
        """Return the locations that ``test`` compares entries with: of ``v > best`` best, max and the text of v."""
        found: list[tuple[Any, str, str]] = []
        sides: list[cst.BaseExpression] = [test]
        if isinstance(test, cst.BooleanOperation) and isinstance(test.operator, cst.Or):
            sides = [test.left, test.right]
        for each in sides:
            if not isinstance(each, cst.Comparison) or len(each.comparisons) != 1:
                continue
            what = _ORDERED.get(type(each.comparisons[0].operator))
            left, right = each.left, each.comparisons[0].comparator
            for value, best, order in (
                (left, right, what),
                (right, left, {"max": "min", "min": "max"}.get(what or "")),
            ):
                held = self.eval(best)
                place = held.place
                so_far = place.untouched or (place.kind is Kind.EXTREME and place.adds == {order})
                if order and so_far and self.content(self.eval(value)).kind is Kind.ENTRY:
                    found.append((held.place.at, order, self.script.code(value)))
        return found

    def _do_With(self, node: cst.With) -> None:  # noqa: N802
        before = dict(self.state or {})
        self._within(list(node.items), node)
        if self.script.suppresses(node):
            self.state = merge(before, self.state)

    def _within(self, items: list[cst.WithItem], node: cst.With) -> None:
        """Run the body of ``node`` within what ``items`` open, and then what these do as they close."""
        if not items:
            self.block(node.body)
            return
        item, *inner = items
        if self.run_manager(item, lambda: self._within(inner, node)):
            return
        value = self.eval(item.item)
        entered = self.dunder(value, "__enter__", [], item)
        if item.asname is not None:
            self.assign(item.asname.name, entered if entered is not None else value)
        self._within(inner, node)
        if self.state is not None:
            self.dunder(value, "__exit__", [Value(const=None)] * 3, item.item)

    def _do_Try(self, node: cst.Try) -> None:  # noqa: N802
        handler = node.handlers[0] if len(node.handlers) == 1 and not (node.orelse or node.finalbody) else None
        of_key = handler is not None and handler.type is not None and dotted(handler.type) == "KeyError"
        if handler is not None and of_key and self.counts_up(node.body, handler.body):
            return
        before = dict(self.state or {})
        outer, self.raised = self.raised, {}
        self.block(node.body)
        raised, self.raised = list(self.raised), outer
        if node.orelse is not None and self.state is not None:
            self.block(node.orelse.body)
        after = self.state
        for handler in node.handlers:
            caught = {n.rpartition(".")[2] for n in names_in(handler.type)} if handler.type is not None else set()
            ends = not caught.isdisjoint(ENDS) and any(map(is_endless, node.body.body))
            self.state = dict(after) if ends and after is not None else merge(dict(before), after)
            if handler.name is not None:
                self.assign(handler.name.name, ANY)
            passes = "StopIteration" in caught and self.loop is not None
            self.ended += passes  # a share ends as often as the serial script's data: epoch += 1
            here = [each for each in raised if is_caught(self.script, handler, each)]
            raised = [each for each in raised if each not in here]
            test = here[-1].test if here else None
            self.diverged += [test] if test is not None else []
            self.block(handler.body)
            if test is not None and after is not None and self.state is not None:
                self.diverged.remove(test)
            self.ended -= passes
            after = self.met(after, self.state, test)
        self.raised.update(dict.fromkeys(raised))
        self.state = after
        if node.finalbody is not None and self.state is not None:
            self.block(node.finalbody.body)
        elif node.finalbody is not None and (yielded := self.flows[-1].yielded) is not None:  # as close() leaves it
            self.state = dict(yielded)
            self.block(node.finalbody.body)
            self.flows[-1].yielded, self.state = merge(yielded, self.state), None

    def _do_Match(self, node: cst.Match) -> None:  # noqa: N802
        subject = self.eval(node.subject)
        before, after = self.state, None
        diverges = self.loop is not None and not self.content(subject).uniform
        self.diverged += [node.subject] if diverges else []
        if diverges and self.recording:
            self.matched[node] = None
        for case in node.cases:
            self.state = dict(before) if before is not None else None
            for name in _captured(case.pattern):
                self.assign(name, self.entries(subject) if subject.refs or subject.items else subject)
            if case.guard is not None:
                guarded = self.content(self.eval(case.guard))
                if self.loop is not None and self.recording and not guarded.uniform:
                    self.matched[node] = None
            of_rest = subject.name == "remainder" and isinstance(case.pattern, cst.MatchValue)
            with self.at_pace(node.subject, replace(subject, name="cadence" if of_rest else "")):
                self.block(case.body)
            after = self.met(after, self.state, node.subject if diverges else None)
        self.state = self.met(before, after, node.subject if diverges else None)
        if diverges:
            self.diverged.remove(node.subject)

    # -- loops -----------------------------------------------------------------------------------------------------

    def _do_For(self, node: cst.For) -> None:  # noqa: N802
        over = self.eval(node.iter)
        if node not in self.shards.loops:
            over = self.iterated(over, node.iter)
        own = over.place.kind is Kind.SHARD
        source = whole.source(self, node) if own else None
        if source is not None:
            whole.begins(self, node, source)
        sharded = node in self.shards.loops and not self._whole(node, over) and node not in self.around
        if (own or sharded) and not self._draws(node):
            self.passes.add(node)
        if own and self.loop is not None and not self.loop.own and source is None:
            self.around.add(self.loop.node)  # it steps behind a loop over a shard, which is the one to be solved
        if self.loop is None and (own or sharded):
            names = [n for n in walk(node.iter) if isinstance(n, (cst.Name, cst.Attribute))]
            over_it = [n for n in names if any(v.place.kind is Kind.SHARD for v in self.seen.get(n, ()))]
            if over.name == "drawn":
                self.nameless.add(node)
            elif (named := whole.named(self, node.iter)) is not None:
                self.over[node] = named
            if any("at times" in v.place.adds for n in over_it for v in self.seen[n]):
                self.plain_loops.add(node)
            self.over_shard(
                node, lambda: self.assign(node.target, whole.numbered(self, self._drawn(node, over))), own, source
            )
        else:
            if not own:
                self.plain_loops.add(node)
            items = self._zipped(node.iter) if node.iter in self.zipped else self.listed(over)
            if items is not None:
                self._unrolled(node, items)
            else:
                local = self.loop is not None and (not self._iterations(over).uniform or node in self.shards.plays)
                before = dict(self.state or {})
                few = self.loop is None and node in self.shards.training and self._iterations(over).kind is Kind.ENTRY
                got = Value(unknown(node.iter, _FEW)) if few else None  # chunks of a share: for part in chunks(loader)
                self.until_stable(node, lambda: self.assign(node.target, got or self.iterate(node.iter, over)), local)
                if few:
                    self.lose_written(before, node.iter, _FEW)
                if local and self.shards.parts and samples.goes_in_order(self, node.iter):
                    self._bend_written(before)
                if node in self.shards.noisy and not self.is_diverged and self.state is not None:
                    self.averaged(node, before)
        self._otherwise(node)

    def _draws(self, node: cst.For) -> bool:
        """Tell whether iterations draw their samples, by ``next`` or by chance: none knows which come again."""
        over = node.iter.func if isinstance(node.iter, cst.Call) else node.iter
        counts = self.script.name_of(over).rpartition(".")[2] in ("range", "trange", "count")
        called = [n for n in walk(node.body) if isinstance(n, cst.Call)] if counts else []
        names = [self.script.name_of(call.func) for call in called]
        chance = any(name.rpartition(".")[2] == "next" or of_function(name) is Row.CHANCE for name in names)
        return chance or any(calls_method(call, "__next__") for call in called)

    def _otherwise(self, node: cst.For | cst.While) -> None:
        """Run what a loop does that no ``break`` has ended; where there is one, it may be left out."""
        if node.orelse is not None and self.state is not None:
            left = dict(self.state) if any(isinstance(n, cst.Break) for n in walk(node.body)) else None
            self.block(node.orelse.body)
            self.state = merge(self.state, left)

    def _iterations(self, over: Value, entry: bool = False) -> Place:
        """Return the placement of what a loop goes through; what objects and arrays in a list hold makes no iterations.

        ``entry`` tells that it is one that a list holds, and not the list.
        """
        if over.items is not None:
            return combine([over.place, *(self._iterations(item, True) for item in over.items)])
        kinds = {ref.kind if isinstance(ref, Obj) else "" for ref in over.refs}
        if kinds == {"instance"} or (entry and kinds == {"foreign"}):
            return over.place
        if not kinds or not kinds <= set(CONTAINERS):
            return self.content(over)
        return combine([over.place, *(self._iterations(v, True) for ref in over.refs for _, v in self.fields(ref))])

    def _whole(self, node: cst.For, over: Value) -> bool:
        """Tell whether a loop goes through loaders that are not sharded: one that evaluates by the same function."""
        if over.refs and all(_is_loader(ref) or self._wraps_whole(ref) for ref in over.refs):
            return True
        named = [n for n in walk(node.iter) if isinstance(n, (cst.Name, cst.Attribute)) and n in self.script.scopes]
        with self.unrecorded():  # enumerate(loader), tqdm(loader)
            given = [self.eval(n) for n in named] if over.place.kind is not Kind.SHARD else []
        loaders = [v for v in given if any(map(_is_loader, v.refs))]
        return bool(loaders) and all(v.place.kind is not Kind.SHARD and all(map(_is_loader, v.refs)) for v in loaders)

    def _wraps_whole(self, ref: Any, deep: int = 3) -> bool:
        """Tell whether ``ref`` is an object that holds loaders, none of them sharded: what it goes through is whole."""
        if not isinstance(ref, Obj) or ref.kind != "instance" or not deep:
            return False
        held = [value for _, value in self.fields(ref)]
        if any(value.place.kind is Kind.SHARD for value in held):
            return False
        return any(_is_loader(r) or self._wraps_whole(r, deep - 1) for value in held for r in value.refs)

    def listed(self, over: Value) -> list[Value] | None:
        """Return the entries of a tuple or list that are all known, in order."""
        if over.name == "parallel":
            return self._numbered_entries(over)
        if over.items is not None:
            return list(over.items)
        ref = next(iter(over.refs), None)
        if len(over.refs) == 1 and isinstance(ref, Class):
            members = self.members(ref)
            return members if 0 < len(members) <= _UNROLLED else None
        if len(over.refs) == 1 and isinstance(ref, Obj) and ref.kind == "dict":
            keys = self.known_keys(ref)
            return keys if keys and len(keys) <= _UNROLLED else None
        if len(over.refs) != 1 or not isinstance(ref, Obj) or ref.kind not in ("list", "deque"):
            return None
        fields = dict(self.fields(ref))
        if any(k in fields and fields[k].name != "empty" for k in (REST, GROWN)):
            return None
        known = [k for k in fields if k[1:-1].isdigit()]
        return [fields[k] for k in known] if 0 < len(known) <= _UNROLLED else None

    def _numbered_entries(self, over: Value) -> list[Value] | None:
        """Return what ``enumerate`` makes of a list whose entries are all known: each with its number."""
        first = over.items[0].name.removeprefix(FROM) if over.items and over.refs else ""
        entries = self.listed(replace(over, items=None, name="")) if first.isdigit() else None
        return entries and [Value(items=(constant(int(first) + k), entry)) for k, entry in enumerate(entries)]

    def _zipped(self, over: cst.BaseExpression) -> list[Value] | None:
        """Return the entries side by side of tuples and lists whose entries are all known."""
        sides = [self.listed(value) for value in self.zipped.get(over, ())]
        if not sides or any(side is None for side in sides):
            return None
        rows = list(zip(*(side for side in sides if side is not None), strict=False))
        return [Value(items=row) for row in rows] if 0 < len(rows) <= _UNROLLED else None

    def _unrolled(self, node: cst.For, items: list[Value]) -> None:
        """Run a loop over entries that are all known, one by one."""
        flows = self.flows[-1]
        outer = self._enter(flows)
        diverged, paces = len(self.diverged), len(self.paces)
        known, around = set(self.state or ()), self.unrolled
        for number, item in enumerate(_beside(items)):
            self.unrolled = (*around, number)
            for at in [at for at in self.state or () if at not in known and isinstance(at[0], Frame)]:
                self.state[at] = replace(self.state[at], late=True)  # type: ignore[index]
            self.assign(node.target, item)
            if self.state is not None:
                self.block(node.body)
            for state in flows.continues:
                self.state = merge(self.state, state)
            flows.continues = []
            if self.state is None:
                break
        self.unrolled = around
        for state in flows.breaks:
            self.state = self.met(self.state, state, flows.left_by)
        self._leave(flows, outer)
        del self.diverged[diverged:], self.paces[paces:]

    def _drawn(self, node: cst.For, over: Value) -> Value:
        """Return what an iteration of a loop over a shard gets; of one around such a loop what it gets serially."""
        if node in self.around:
            return self.iterate(node.iter, over)
        if over.place.kind is Kind.SHARD:
            got = self.iterate(node.iter, over)
            return got.items[0] if over.name == "range" and got.items else got
        if over.name == "parallel" and over.items:
            first = over.items[0].name.removeprefix(FROM)
            number = self.number_from(constant(int(first)) if first.isdecimal() else None, node.iter)
            return Value(items=(number, *map(self._sharded, over.items[1:])))
        made = [ref.name.rpartition(".")[2] for ref in over.refs if isinstance(ref, Obj)]
        counts = any(name in ("range", "arange", "count") for name in made) or isinstance(node.iter, cst.Call)
        return self._number(node) if counts else Value(ENTRY)

    def _sharded(self, value: Value) -> Value:
        """Return what goes beside the number of an iteration over a share: of plain numbers those of its own."""
        plain = value.place == SAME and value.scalar and not value.refs and not self.shards.parts
        return Value(ENTRY, scalar=True, name=POSITION) if plain else value

    def _number(self, node: cst.For) -> Value:
        """Return the number of an iteration: ``range(1, steps + 1)`` counts from 1."""
        call = node.iter if isinstance(node.iter, cst.Call) else None
        ranged = call is not None and self.script.name_of(call.func).rpartition(".")[2] in ("range", "arange")
        starts = self.eval(call.args[0].value) if call is not None and ranged and len(call.args) > 1 else None
        number = self.number_from(starts, node.iter)
        if call is None or not ranged or len(call.args) < 3 or number.place != INDEX:
            return number
        stride = call.args[2].value
        one = self.eval(stride).const == 1
        return number if one else replace(number, place=replace(INDEX, at="scaled"), name=BY + self.script.code(stride))

    def _do_While(self, node: cst.While) -> None:  # noqa: N802
        shard = self.loop is None and node in self.shards.loops

        def ask() -> None:
            test = self.eval(node.test)
            self.tested(node)
            if test.const is not NOTHING and not test.const:
                self.state = None

        if shard:
            self.over_shard(node, ask)
        else:
            self.plain_loops.add(node)
            self.until_stable(node, ask, node in self.shards.plays)
        self._otherwise(node)

    def until_stable(self, node: Any, begin: Any, local: bool) -> None:
        """Run a loop that is no loop over a shard until nothing changes."""
        hoped = self._as_before() if local and self.loop is not None else {}
        before = self.state
        endless = isinstance(node, cst.While) and dotted(node.test) == "True"
        entry, left, out, left_by = before, None, before, None
        diverged, paces = len(self.diverged), len(self.paces)
        if self.loop is not None and local:
            self.loop.inner += 1
        self.looping += 1
        self.loops.append(node)
        self.playing += node in self.shards.plays
        for _ in range(_ROUNDS):
            self.state = dict(entry) if entry is not None else None
            flows = self.flows[-1]
            outer = self._enter(flows)
            begin()
            if self.state is not None and isinstance(node, cst.While):
                with self.at_pace(node.test, self.seen_last(node.test)):
                    self.block(node.body)
            elif self.state is not None:
                self.block(node.body)
            out = self.state
            for state in flows.continues:
                out = merge(out, state)
            left = None
            for state in flows.breaks:
                left = merge(left, state)
            left_by = flows.left_by
            self._leave(flows, outer)
            new = merge(entry, out)
            if entry is not None and out is not None and new is not None:
                counted = [at for at in out if at in entry and entry[at].zero and _has_counted(out[at])]
                for at in (at for at in counted if at[1] != GROWN):
                    new[at] = Value(COUNT, scalar=True)  # it goes on counting in the next loop over a shard
                for at in new.keys() - entry.keys():
                    if isinstance(at[0], Frame):
                        new[at] = replace(new[at], late=True)
            if new == entry or out is None:
                entry = new
                break
            entry = new
        self.looping -= 1
        self.loops.pop()
        self.playing -= node in self.shards.plays
        del self.diverged[diverged:], self.paces[paces:]
        if self.loop is not None and local:
            self.loop.inner -= 1
        if endless:
            self.state = left
        else:  # a for loop is taken to run at least once
            after = out if isinstance(node, cst.For) and out is not None else entry
            self.state = self.met(after, left, left_by)
        if local and self.shards.parts and left is not None and left_by is not None:
            self._bend_written(before)
        if isinstance(node, cst.While) and self.loop is not None and self._asks_locally(node):
            self.state = merge_diverged(before, self.state, node.test)
        for at, value in hoped.items():
            if self.state is not None and self.state[at].place == Place(Kind.RUN, at):
                self.state[at] = value

    def _as_before(self) -> State:
        """Let what is taken for one number on all ranks be what it was before this loop over samples; return it.

        How often such a loop changes it differs between ranks.
        """
        hoped = {at: (self.state or {}).get(at) for at, hope in self.hoped.items() if hope}
        found = {at: value for at, value in hoped.items() if value is not None and value.place == SAME}
        if self.state is not None and found:
            self.state = self.state | {at: value.at(Place(Kind.RUN, at)) for at, value in found.items()}
        return found

    def _bend_written(self, before: State | None) -> None:
        """Let what a loop over samples adds up be no sum over the parts: it goes by which samples come before others.

        So it is where it is left at one of them: the serial script leaves it at the first one of the whole batch.
        """
        for at, value in list((self.state or {}).items()):
            if value.place.kind is Kind.RUN and value != (before or {}).get(at):
                self.write(at, value.at(replace(value.place, adds=value.place.adds | {"bent"})))

    def _asks_locally(self, node: cst.While) -> bool:
        """Tell whether a loop within an iteration goes on by a test that diverges, and that no edit makes uniform."""
        alike = node in self.shards.plays or node in self.shards.training or self.of_iteration(node.test)
        return not alike and not self.content(self.seen_last(node.test)).uniform

    def _enter(self, flows: Flows) -> Flows:
        """Let a loop begin; return what left the one around it, which ``_leave`` sets back."""
        outer = replace(flows)
        flows.breaks, flows.continues = [], []
        flows.called_in, flows.since, flows.left_by = self.loop, len(self.diverged), None
        return outer

    def _leave(self, flows: Flows, outer: Flows) -> None:
        """Let a loop end: what left it is known to its end alone."""
        flows.breaks, flows.continues = outer.breaks, outer.continues
        flows.called_in, flows.since, flows.left_by = outer.called_in, outer.since, outer.left_by


def is_endless(loop: cst.CSTNode) -> bool:
    """Tell whether ``loop`` is a ``while True`` that nothing leaves but an exception."""
    return (
        isinstance(loop, cst.While)
        and (dotted(loop.test) == "True" or (isinstance(loop.test, cst.Integer) and loop.test.value != "0"))
        and not any(isinstance(n, (cst.Break, cst.Return)) for n in walk(loop.body))
    )


def _beside(items: list[Value]) -> list[Value]:
    """Return what a loop goes through, counts marked where serial numbers stand beside them: one line reads both."""
    if all(item.items is not None for item in items) and len({len(item.items or ()) for item in items}) == 1:
        columns = [_beside(list(column)) for column in zip(*(item.items or () for item in items), strict=True)]
        rows = zip(*columns, strict=True)
        return [replace(item, items=row) for item, row in zip(items, rows, strict=True)] if columns else items
    if not any(item.scalar and item.place.kind is Kind.SAME for item in items):
        return items
    return [replace(item, place=MIXED) if item.scalar and item.place == COUNT else item for item in items]


def _has_counted(value: Value) -> bool:
    """Tell whether ``value`` is what iterations of a loop over a shard have counted up from zero."""
    return bool(value.pending) and all(getattr(made, "counts", False) and made.zero for made in value.pending)


def _is_loader(ref: object) -> bool:
    """Tell whether an object is a loader as a library makes it."""
    return isinstance(ref, Obj) and ref.name.endswith("DataLoader")


def _captured(pattern: cst.CSTNode) -> list[cst.Name]:
    names: list[cst.Name] = []

    class Find(cst.CSTVisitor):
        def visit_MatchAs(self, node: cst.MatchAs) -> None:  # noqa: N802
            if node.name is not None:
                names.append(node.name)

        def visit_MatchStar(self, node: cst.MatchStar) -> None:  # noqa: N802
            if node.name is not None:
                names.append(node.name)

    pattern.visit(Find())
    return names


def _bounded(asked: list[Location], before: State | None, state: State | None) -> None:
    """Mark in ``state`` the lists that grew under a test of themselves: they hold the first entries, or each once."""
    for at in asked:
        if state is not None and at in state and state[at] is not (before or {}).get(at):
            state[at] = replace(state[at], place=trimmed(state[at].place))
