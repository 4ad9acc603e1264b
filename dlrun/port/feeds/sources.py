"""What training loops run over, or draw from with next(): loaders, generators of the script's own, zipped arrays."""

from __future__ import annotations

from collections.abc import Collection

import libcst as cst

from dlrun.port.facts import Feed
from dlrun.port.facts.models.kinds import Kinds
from dlrun.port.facts.numbers.computed import reaching
from dlrun.port.feeds.chained import changes_at_times, goes_on_in
from dlrun.port.feeds.draws import Draws
from dlrun.port.feeds.foreign import may_be_batches, where_assigned
from dlrun.port.feeds.given import Given
from dlrun.port.feeds.iterated import BARS, WRAPPERS, Iterated
from dlrun.port.feeds.positions import beside
from dlrun.port.feeds.uses import Uses
from dlrun.port.program.flow import Flow
from dlrun.port.program.script import Script, dotted, walk

_PICKS = ("builtins.filter", "builtins.sorted", "builtins.reversed")


class Sources:
    """Notes the feeds that lie behind what loops run over."""

    script: Script
    flow: Flow
    kinds: Kinds
    draws: Draws
    iterated: Iterated
    uses: Uses
    found: dict[cst.CSTNode, Feed]
    evaluated: list[cst.BaseExpression]  # what batches of a rank's share are taken from to evaluate
    unseen: list[cst.Call]  # draws from iterators that come from out of sight
    shared_where_assigned = True  # loaders that foreign code makes; else at the loop, and whole for all else
    numbered: cst.CSTNode | None  # what goes with a batch by its number
    _given: Given
    _generators: list[cst.FunctionDef]  # functions that make the batches of training loops
    _entered: frozenset[cst.CSTNode] = frozenset()  # calls of generators and of iterators' classes, being noted
    _at: cst.For | cst.While | None = None  # the loop at hand

    def _feed(self, iterated: cst.BaseExpression, drawn: bool = False, innermost: bool = True) -> None:
        """Note what a training loop runs over, or (``drawn``) draws from with next()."""
        if (zipped := self._zip(iterated)) is not None:
            self._zipped(zipped, drawn, innermost)
            return
        before = set(self.found)
        if self._generated(iterated, drawn, innermost):
            self._once(before)
            return
        origins = self.flow.origins(iterated)
        made_of = {o.node for o in origins if isinstance(o.node, cst.Call) and self.kinds.of_call(o.node) == "loader"}
        gone_on = {node for node in made_of if goes_on_in(self.script, node, made_of)}
        loaders = made_of - gone_on
        for made, origin in ((o.node, o) for o in origins if o.node not in gone_on):
            behind = self.iterated.source(made) if drawn and isinstance(made, cst.Call) else made
            if isinstance(behind, cst.BaseExpression) and behind is not made:  # it = loader.__iter__()
                self._feed(behind, drawn, innermost)
            elif isinstance(made, cst.Call) and made in loaders:
                many = self._in_comprehension(made) or changes_at_times(self.script, made, loaders)
                place = None if many else self.uses.place(made, iterated)
                if place is not None:
                    self.found.setdefault(place, Feed(place, "loader"))
                else:
                    owns = list(self.uses.iterators(made, iterated)) if drawn else [self._behind_bar(iterated)]
                    self.found |= {own: Feed(own, "iterable") for own in owns if own not in self.found}
                    self.unseen.extend([made] if not owns else [])
                    self.evaluated.extend(self.uses.evaluating(list(filter(self._in_comprehension, owns))))
            elif drawn and made in self._entered:
                continue  # it = Endless(it): what it asks is being noted
            elif drawn and (inner := self._asked(made)):
                around, self._entered = self._entered, self._entered | {made}
                for source in inner:
                    self._feed(source, drawn, innermost)
                self._entered = around
            elif drawn:
                batch = self.iterated.advanced(made) is not None  # what a generator yields: a batch, and no loader
                called = isinstance(made, cst.Call) and origin.whole and not batch
                if isinstance(made, cst.Call) and called and may_be_batches(self.kinds, made, iterated):
                    self.found.setdefault(made, Feed(made, "loader"))
                elif isinstance(made, cst.BaseExpression) and beside.holds_batches(self.kinds, made):
                    owns = list(self.uses.iterators(made, iterated)) or [made]
                    self.found |= {own: Feed(own, "iterable") for own in owns if own not in self.found}
            elif innermost and (may_be_batches(self.kinds, made, iterated) or self._holds_samples(made)):
                # further out: folds, tasks, settings
                named = where_assigned(self.flow, self.uses, made, iterated) if self.shared_where_assigned else None
                feed = named or Feed(self._behind_bar(iterated, BARS), "iterable")
                self.found.setdefault(feed.node, feed)
        self._once(before)

    def _once(self, before: set[cst.CSTNode]) -> None:
        """Cut what the loop at hand runs over once: there, where one of what it may be can be cut nowhere else."""
        noted = [self.found[node] for node in self.found if node not in before]
        if any(feed.how == "iterable" for feed in noted):
            for feed in noted:
                if feed.how == "loader":
                    self.found.pop(feed.node)

    def _asked(self, made: cst.CSTNode) -> list[cst.BaseExpression]:
        """Return what an object that can only be asked for the next batch, and be sharded in no way, asks itself."""
        classes = self.flow.definitions(made.func) if isinstance(made, cst.Call) else ()
        for cls in (c for c in classes if isinstance(c, cst.ClassDef)):
            following, *others = (self.flow.method(cls, name) for name in ("__next__", "__iter__", "__getitem__"))
            begins = others[0] is not None and [dotted(n) for n in self.flow.returns(others[0])] != ["self"]
            if following is not None and not begins and others[1] is None:
                asked = [n for c in walk(following.body) if (n := self.iterated.advanced(c)) is not None]
                behind = [o.node for n in asked for o in self.flow.origins(n)]
                return [n for n in behind if isinstance(n, cst.BaseExpression)]
        return []

    def _behind_bar(self, iterated: cst.BaseExpression, bars: Collection[str] = WRAPPERS) -> cst.BaseExpression:
        """Return ``loader`` for the name of a progress bar, ``bar = tqdm(loader)``, which cannot be cut itself."""
        if not isinstance(iterated, cst.Name):
            return iterated
        made = reaching(self.script, iterated, self.script.bindings_of(iterated))
        value = made[0].value if len(made) == 1 and made[0].how == "assign" and not made[0].path else None
        if not isinstance(value, cst.Call) or self.script.name_of(value.func).rsplit(".", 1)[-1] not in bars:
            return iterated
        inner = self.iterated.source(value)
        return iterated if inner is value else inner

    def _zip(self, iterated: cst.BaseExpression) -> cst.Call | None:
        """Return the call of zip() that ``iterated`` is, or is a name for where it goes through loaders."""
        for made in (iterated, *(o.node for o in self.flow.origins(iterated))):
            if isinstance(made, cst.Call) and self.script.name_of(made.func) == "builtins.zip":
                parts = [self.iterated.source(arg.value) for arg in made.args]
                if made is iterated or any(self.kinds.of(part) == "loader" for part in parts):
                    return made
        return None

    def _zipped(self, zipped: cst.Call, drawn: bool, innermost: bool) -> None:
        """Note what is zipped: each loader for itself; arrays as a whole, so that their samples stay together."""
        parts = [self.iterated.source(arg.value) for arg in zipped.args]
        for part in parts:
            if self.kinds.of(part) == "loader" or self.draws.generators(part):
                self._feed(part, drawn, innermost)
            elif loaders := [other for other in parts if self.kinds.of(other) == "loader"]:
                if innermost and not drawn and beside.goes_in(self.kinds, self._at, zipped, part):
                    made = [o.node for loader in loaders for o in self.flow.origins(loader)]
                    calls = [n for n in made if isinstance(n, cst.Call)]
                    if calls and all(map(beside.keeps_order, calls)):
                        self.numbered = self.numbered or part  # its k-th entry goes with the loader's k-th batch
                    else:
                        self.found.setdefault(part, Feed(part, "iterable"))
            elif innermost and not drawn and self._are_samples(parts):
                self.found.setdefault(zipped, Feed(zipped, "iterable"))

    def _are_samples(self, parts: list[cst.BaseExpression]) -> bool:
        """Tell whether what is zipped may be samples and their targets: no positions, models or their settings."""
        made = [(o.node, part) for part in parts for o in self.flow.origins(part)]
        batches = any(may_be_batches(self.kinds, node, part) for node, part in made)
        return (batches or self._reaches_loss()) and not any(map(self.iterated.counts, parts))

    def _holds_samples(self, made: cst.CSTNode) -> bool:
        """Tell whether ``made`` is a list, or pairs, whose entries go into the model, one at a time."""
        entries = made.elements if isinstance(made, (cst.List, cst.Tuple)) else ()  # none where append() fills it
        named = entries and all(isinstance(e.value, cst.SimpleString) for e in entries)
        if isinstance(made, cst.Call) and self.script.name_of(made.func) == "builtins.zip":  # list(zip(x, y))
            return self._are_samples([self.iterated.source(arg.value) for arg in made.args])
        if isinstance(made, cst.Subscript) and isinstance(made.slice[0].slice, cst.Slice):  # pairs[:400]
            of = [o.node for o in self.flow.origins(made.value) if o.node is not made]
            return any(self._holds_samples(n) or self._loads(n) for n in of)
        picked = isinstance(made, cst.Call) and self.script.name_of(made.func) in _PICKS
        held = picked or isinstance(made, (cst.List, cst.ListComp, cst.GeneratorExp, cst.Tuple))
        return held and not named and self._reaches_loss()

    def _loads(self, made: cst.CSTNode) -> bool:
        return isinstance(made, cst.Call) and self.kinds.of_call(made) == "loader"

    def _reaches_loss(self) -> bool:
        """Tell whether what the loop at hand goes through is given to a model, to a loss, or to a session."""
        return self._at is not None and self._given.takes(self._at, self._at)

    def _generated(self, iterated: cst.BaseExpression, drawn: bool, innermost: bool) -> bool:
        """Note a generator of this script that makes the batches; the loader, where it only passes on a loader's."""
        found = [made for made in self.draws.generators(iterated) if made[0] not in self._entered]
        before, self._entered = self._entered, self._entered | {call for call, _ in found}  # loader = endless(loader)
        noted = [self._of_generator(call, function, iterated, drawn, innermost) for call, function in found]
        self._entered = before
        return bool(noted) and all(noted)

    def _of_generator(
        self, call: cst.Call, function: cst.FunctionDef, iterated: cst.BaseExpression, drawn: bool, innermost: bool
    ) -> bool:
        """Note what the generator ``function`` makes when ``call`` runs it; tell whether that is settled so."""
        inner = [self.iterated.source(n.iter) for n in walk(function.body) if isinstance(n, cst.For)]
        inner += [self.iterated.source(n.item) for n in walk(function.body) if isinstance(n, cst.From)]
        passed = [self.flow.argument(call, function, n.value) for n in inner if isinstance(n, cst.Name)]
        given = [n for n in passed if n is not None and self.kinds.of(n) == "loader"]
        for loader in given:  # logger.log_every(loader)
            self._feed(loader, innermost=innermost)
        if given:
            return True
        ends = [n for c in walk(function.body) if (n := self.iterated.advanced(c)) is not None]
        made = [o.node for n in ends for o in self.flow.origins(n) if isinstance(o.node, cst.BaseExpression)]
        moved = [self.flow.argument(call, function, dotted(n)) or n for n in map(self.iterated.source, made)]
        own = [
            n
            for n in inner
            if any(
                isinstance(o.node, cst.Call) and self.kinds.of_call(o.node) == "loader" for o in self.flow.origins(n)
            )
        ]
        for loader in own:
            self._feed(loader, innermost=innermost)
        if own:
            return True
        if moved and all(self.kinds.of(n) == "loader" for n in moved):
            for loader in moved:
                self._feed(loader, drawn=True)
            return True
        if drawn or innermost:
            self._generators.append(function)
            maker = self._nearest(call, iterated)
            looped = [n for n in self.found if n is not maker and maker in self.flow.through(n)]
            drawn = drawn or maker in self.found
            for node in (maker if drawn else iterated, *(self._made_instead(looped) if drawn else ())):
                self.found.setdefault(node, Feed(node, "iterable"))
        return True

    def _made_instead(self, looped: list[cst.CSTNode]) -> list[cst.Call]:
        """Take back that ``looped`` are cut; return the calls which make them: next() draws from some of these, too."""
        for node in looped:
            self.found.pop(node)
        return [
            self._nearest(call, n)
            for n in looped
            if isinstance(n, cst.BaseExpression)
            for call, _ in self.draws.generators(n)
        ]

    def _nearest(self, call: cst.Call, iterated: cst.BaseExpression) -> cst.Call:
        """Return the call nearest to ``iterated`` that returns what ``call`` makes: others may return it elsewhere."""
        way = self.flow.through(iterated)
        calls = (n for n in way if isinstance(n, cst.Call) and self.flow.targets(n))
        return next((n for n in calls if call in self.flow.through(n)), call)

    def _in_comprehension(self, call: cst.CSTNode) -> bool:
        return any(isinstance(up, (cst.DictComp, cst.ListComp)) for up in self.script.above(call))

    def _is_unseen(self, iterator: cst.BaseExpression) -> bool:
        """Tell whether nothing shows what ``iterator``, from which a training loop draws, goes through."""
        through = self.flow.through(iterator)
        made = [o.node for o in self.flow.origins(iterator)]
        drawn = ("builtins.map", "builtins.filter", "builtins.next")
        if self.draws.generators(iterator):
            return False  # what it goes through was noted where it is made
        return not any(n in self.found for n in through) and all(
            isinstance(n, (cst.Param, cst.Name, cst.Attribute, cst.Subscript))
            or (isinstance(n, cst.Call) and self.script.name_of(n.func) in drawn)
            for n in made
        )
