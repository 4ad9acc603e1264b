"""Where the training batches come from, and so how the ranks share them."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property

import libcst as cst

from dlrun.port.facts import Feed
from dlrun.port.facts.loops import Loops
from dlrun.port.facts.sites import Sites
from dlrun.port.feeds import nested
from dlrun.port.feeds.alternating import in_turns
from dlrun.port.feeds.aside import only_shown
from dlrun.port.feeds.carried import Carried, hands_on
from dlrun.port.feeds.draws import Draws, plays
from dlrun.port.feeds.foreign import may_be_batches, where_assigned
from dlrun.port.feeds.full import FullBatches
from dlrun.port.feeds.given import Given
from dlrun.port.feeds.iterated import Iterated
from dlrun.port.feeds.orders import Orders
from dlrun.port.feeds.positions import counts_too, moving, picks_samples, slides
from dlrun.port.feeds.uses import Uses
from dlrun.port.feeds.wholes import Wholes
from dlrun.port.program.script import dotted, walk

_PLAYS = ("gym", "gymnasium", "envpool", "pettingzoo", "procgen", "stable_baselines3")


class Feeds(FullBatches):
    """Finds the feeds of all training loops: loaders, index ranges, random draws, full batches."""

    shared_where_assigned = True  # loaders that foreign code makes; else at the loop, and whole for all else

    def __init__(self, loops: Loops) -> None:
        """Look at every training loop once."""
        self.loops = loops
        self.script = loops.script
        self.flow = loops.flow
        self.kinds = loops.kinds
        self.draws = Draws(loops)
        self.iterated = Iterated(loops.flow)
        self.uses = Uses(loops, self.draws)
        self._given = Given(loops, self._fed_by)
        self._sites = Sites(loops)
        self._orders: set[cst.CSTNode] = set()  # names of positions in a random order, which loops run over
        self._generators: list[cst.FunctionDef] = []  # functions that make the batches of training loops
        self.found: dict[cst.CSTNode, Feed] = {}
        self.counted: list[cst.For | cst.While] = []
        self.unseen: list[cst.Call] = []  # draws from iterators that come from out of sight
        self._fed: set[cst.CSTNode] = set()  # loops that run over what is dealt out
        # Where an environment is played, every rank makes samples of its own: there is nothing to deal out.
        self.episodes = any(b.target.split(".")[0] in _PLAYS for b in self.script.imports())
        self.episodes = self.episodes or any(plays(self.kinds, n) for n in self.script.nodes)
        self.episodes = self.episodes and not any(map(self._reads, self.innermost))
        found = {} if self.episodes else {loop: self._hidden_state(loop) for loop in self.innermost}
        self.carried = Carried(loops, {loop: node for loop, node in found.items() if node is not None})
        if self.episodes:
            return
        for loop in loops.training:
            before = list(self.found)
            self._of_loop(loop)
            if loop in self.carried.by_loop:
                new = [self.found.pop(node) for node in list(self.found) if node not in before]
                known = {(feed.node, feed.names) for feed in self.found.values()}
                cut = self.carried.cut(loop, new)
                self.found.update({key: feed for key, feed in cut.items() if (feed.node, feed.names) not in known})
        innermost = [loop for loop in self.innermost if loop not in self._fed and loop not in self.carried.streams]
        self.counted.extend(self.carried.counted)
        slid = [loop for loop in innermost if any(self._given.takes(loop, n) for n in slides(self.flow, loop))]
        drawn = in_turns(loops, self.iterated, [n for n in innermost if n not in slid and self.draws(n)])
        self.counted.extend(loop for loop in drawn if not self._is_part(loop, drawn))
        if not self.found and not self.counted and not self.carried.by_loop:
            for turn in innermost:
                self._whole(turn)
        elif slid:
            for turn in slid:
                self._whole(turn)
        else:
            self.unfed = next((loop for loop in innermost if loop not in self.counted and self._is_unfed(loop)), None)

    def _reads(self, loop: cst.For | cst.While) -> bool:
        """Tell whether ``loop`` runs over a loader that is made once, before any training."""
        made = self.flow.origins(self.iterated.source(loop.iter)) if isinstance(loop, cst.For) else ()
        loaders = [o.node for o in made if isinstance(o.node, cst.Call) and self.kinds.of_call(o.node) == "loader"]
        return bool(loaders) and not any(
            up in self.loops.training for call in loaders
            for place in (call, *self.flow.callers(self.script.function_of(call)))
            for up in self.script.above(place))  # fmt: skip

    def ranges(self) -> tuple[tuple[cst.CSTNode, cst.BaseExpression | None], ...]:
        """Return the loops that draw a batch a turn, with what those with ``for`` count."""
        return tuple((x, self.iterated.of(x) if isinstance(x, cst.For) else None) for x in self.counted)

    # -- loops over something -----------------------------------------------------------------------------------

    numbered: cst.CSTNode | None = None  # samples picked by the number of a batch, which each rank counts for itself
    unfed: cst.CSTNode | None = None  # a loop that takes the same samples in every turn, beside others that are fed
    _at: cst.For | cst.While | None = None  # the loop at hand

    def _of_loop(self, loop: cst.For | cst.While) -> None:
        self._at = loop
        before = len(self.found)
        if isinstance(loop, cst.For):
            iterated, source = self.iterated.of(loop), self.iterated.source(loop.iter)
            if loop in self.innermost and self.draws.is_order(source) and picks_samples(self.flow, loop):
                self.found.setdefault(source, Feed(source, "iterable"))
                self._orders.add(source)
            elif self.iterated.numbers(iterated):
                if loop in self.innermost and loop not in self.carried.by_loop and picks_samples(self.flow, loop):
                    self._picked(loop, iterated)
            else:
                self._of_iterated(loop, iterated)
        if len(self.found) > before:
            self.numbered = self.numbered or self._given.by_number(loop)
        reached = list(self.draws.reached(loop.body)) if loop in self.innermost else []
        drawn = [(c, given) for c in reached if (given := self.draws.advanced(c)) is not None
                 and not (len(self.found) > before and only_shown(self.loops, loop, c))
                 and not self.uses.only_evaluates(c)]  # fmt: skip
        for call, iterator in drawn:
            for handed in self._handed(loop, call, iterator):
                self._feed(source := self.iterated.source(handed), drawn=True)
                if self._is_unseen(source):
                    self.unseen.append(call)
        if drawn:
            return  # its turns are steps all the same: the loop counts
        if len(self.found) > before or (isinstance(loop, cst.For) and not self.iterated.counts(self.iterated.of(loop))):
            self._fed.add(loop)
        for call in reached:
            if self.draws.keeps_its_place(call) and self.script.function_of(call) not in self.flow.targets(call):
                self.found.setdefault(call.func, Feed(call.func, "turns"))

    def _handed(
        self, loop: cst.For | cst.While, call: cst.Call, iterator: cst.BaseExpression, depth: int = 3
    ) -> list[cst.BaseExpression]:
        """Return what the calls that train in ``loop`` hand on as ``iterator``; itself where all calls do."""
        function = self.script.function_of(call)
        if not depth or not isinstance(function, cst.FunctionDef) or not isinstance(iterator, cst.Name):
            return [iterator]
        callers, reached = self.flow.callers(function), self.draws.reached(loop.body)
        trains = [c for c in callers if c in reached and not self.uses.only_evaluates(c)
                  and not only_shown(self.loops, loop, c)]  # fmt: skip
        given = [(c, self.flow.argument(c, function, iterator.value)) for c in trains]
        if len(trains) in (0, len(callers)) or not all(value is not None for _, value in given):
            return [iterator]
        return [n for c, value in given if value is not None for n in self._handed(loop, c, value, depth - 1)]

    def _is_unseen(self, iterator: cst.BaseExpression) -> bool:
        """Tell whether nothing shows what ``iterator``, from which a training loop draws, goes through."""
        through = self.flow.through(iterator)
        made = [o.node for o in self.flow.origins(iterator)]
        return not any(n in self.found for n in through) and all(
            isinstance(n, (cst.Param, cst.Name, cst.Attribute)) for n in made)  # fmt: skip

    def _picked(self, loop: cst.For, iterated: cst.BaseExpression) -> None:
        """Note a loop over positions, or the one around it, where this one only goes through the parts of a batch."""
        outer = nested.around(self.kinds, loop)
        if outer is None:
            self._indices(loop, iterated)
        elif self.iterated.numbers(source := self.iterated.of(outer)):
            self._indices(outer, source)

    def _of_iterated(self, loop: cst.For, iterated: cst.BaseExpression) -> None:
        """Note what ``loop`` runs over; where its function also evaluates, what the calls that train pass to it."""
        innermost = loop in self.innermost
        trains, evaluates = ([], []) if self._totals(loop) else self._sites.split(loop, iterated)
        self.uses.whole.extend(evaluates)
        for given in trains or [iterated]:
            self._feed(self.iterated.source(given), innermost=innermost)

    def _totals(self, loop: cst.For) -> bool:
        """Tell whether the function of ``loop`` divides by the number of all samples: then all its calls take shares,
        over which that which it divides is summed up."""
        home = self.script.function_of(loop)
        counts = [n.right for n in walk(home)
                  if isinstance(n, cst.BinaryOperation) and isinstance(n.operator, cst.Divide)]  # fmt: skip
        counts += [n.value for n in walk(home)
                   if isinstance(n, cst.AugAssign) and isinstance(n.operator, cst.DivideAssign)]  # fmt: skip
        progress = {n for up in walk(loop.body) if isinstance(up, cst.Call) and dotted(up.func) == "print"
                    for n in walk(up)}  # fmt: skip
        return any(
            isinstance(n, cst.Attribute) and n.attr.value == "dataset"
            for count in counts if count not in progress for n in walk(count))  # fmt: skip

    def _is_part(self, loop: cst.For | cst.While, drawn: list[cst.For | cst.While]) -> bool:
        """Tell whether each turn of another loop, of 1/n of the turns, runs ``loop`` whole: a critic's five updates."""
        outer = [us[us.index(loop) + 1 :] for _, us in self.loops.nests if loop in us]
        return bool(outer) and all(any(u in drawn or self._is_dealt(u) for u in us) for us in outer)

    def _is_unfed(self, loop: cst.For | cst.While) -> bool:
        """Tell whether ``loop`` takes the same arrays whole in every turn, and no loop around it deals out others."""
        if self._is_dealt(loop) or self._is_part(loop, self.counted) or isinstance(loop, cst.While):
            return False
        known = set(self.loops.gradients.backwards)
        losses = [self._loss(c) for c in dict.fromkeys(self.draws.reached(loop.body)) if c in known]
        wholes = Wholes(self.kinds, loop, losses) if self.iterated.counts(self.iterated.of(loop)) else None
        return wholes is not None and bool(wholes.arrays) and not any(moving(loop, name) for name in wholes.arrays)

    def _is_dealt(self, loop: cst.CSTNode) -> bool:
        """Tell whether ``loop`` runs over what is dealt out."""
        source = self.iterated.source(loop.iter) if isinstance(loop, cst.For) else None
        return source is not None and (
            source in self.found or any(o.node in self.found for o in self.flow.origins(source))
        )

    @cached_property
    def innermost(self) -> list[cst.For | cst.While]:
        """The loops that are the first around an update, across calls."""
        first = (next((u for u in us if not self.iterated.picks_objects(u, way)), None) for way, us in self.loops.nests)
        return list(dict.fromkeys(loop for loop in first if loop is not None))

    def _feed(self, iterated: cst.BaseExpression, drawn: bool = False, innermost: bool = True) -> None:
        """Note what a training loop runs over, or (``drawn``) draws from with next()."""
        if isinstance(iterated, cst.Call) and self.script.name_of(iterated.func) == "builtins.zip":
            self._zipped(iterated, drawn, innermost)
            return
        if self._generated(iterated, drawn, innermost):
            return
        for origin in self.flow.origins(iterated):
            made = origin.node
            behind = self.iterated.source(made) if drawn and isinstance(made, cst.Call) else made
            if isinstance(behind, cst.BaseExpression) and behind is not made:  # it = loader.__iter__()
                self._feed(behind, drawn, innermost)
            elif isinstance(made, cst.Call) and self.kinds.of_call(made) == "loader":
                place = self.uses.place(made, iterated) if not self._in_comprehension(made) else None
                if place is not None:
                    self.found.setdefault(place, Feed(place, "loader"))
                else:
                    owns = list(self.uses.iterators(made, iterated)) if drawn else [self._behind_bar(iterated)]
                    self.found |= {own: Feed(own, "iterable") for own in owns if own not in self.found}
                    self.unseen.extend([made] if not owns else [])
            elif drawn:
                if isinstance(made, cst.Call) and origin.whole and may_be_batches(self.kinds, made, iterated):
                    self.found.setdefault(made, Feed(made, "loader"))
            elif innermost and (may_be_batches(self.kinds, made, iterated) or self._holds_samples(made)):
                # further out: folds, tasks, settings
                named = where_assigned(self.flow, self.uses, made, iterated) if self.shared_where_assigned else None
                feed = named or Feed(iterated, "iterable")
                self.found.setdefault(feed.node, feed)

    def _behind_bar(self, iterated: cst.BaseExpression) -> cst.BaseExpression:
        """Return ``loader`` for the name of a progress bar, ``bar = tqdm(loader)``, which cannot be cut itself."""
        made = self.script.scopes[iterated].lookup(iterated.value)[0] if isinstance(iterated, cst.Name) else []
        value = made[0].value if len(made) == 1 and made[0].how == "assign" and not made[0].path else None
        inner = self.iterated.source(value) if isinstance(value, cst.Call) else iterated
        return iterated if inner is value else inner

    def _zipped(self, zipped: cst.Call, drawn: bool, innermost: bool) -> None:
        """Note what is zipped: each loader for itself; arrays as a whole, so that their samples stay together."""
        parts = [self.iterated.source(arg.value) for arg in zipped.args]
        for part in parts:
            if self.kinds.of(part) == "loader" or self.draws.generator(part) is not None:
                self._feed(part, drawn, innermost)
            elif any(self.kinds.of(other) == "loader" for other in parts):
                continue  # numbers beside the batches of a loader
            elif innermost and not drawn and self._are_samples(parts):
                self.found.setdefault(zipped, Feed(zipped, "iterable"))

    def _are_samples(self, parts: list[cst.BaseExpression]) -> bool:
        """Tell whether what is zipped may be samples and their targets: no positions, models or their settings."""
        made = [(o.node, part) for part in parts for o in self.flow.origins(part)]
        batches = any(may_be_batches(self.kinds, node, part) for node, part in made)
        return (batches or self._reaches_loss()) and not any(map(self.iterated.counts, parts))

    def _holds_samples(self, made: cst.CSTNode) -> bool:
        """Tell whether ``made`` is a list whose entries go into the model, one at a time."""
        entries = made.elements if isinstance(made, cst.List) else ()  # none where append() fills it
        named = entries and all(isinstance(e.value, cst.SimpleString) for e in entries)
        return isinstance(made, (cst.List, cst.ListComp)) and not named and self._reaches_loss()

    def _reaches_loss(self) -> bool:
        """Tell whether what the loop at hand goes through is given to a model, to a loss, or to a session."""
        return self._at is not None and self._given.takes(self._at, self._at)

    def _fed_by(self, call: cst.Call) -> tuple[cst.BaseExpression, ...]:
        """Return what ``call`` feeds into a graph."""
        return ()

    def _generated(self, iterated: cst.BaseExpression, drawn: bool, innermost: bool) -> bool:
        """Note a generator of this script that makes the batches; the loader, where it only passes on a loader's."""
        found = self.draws.generators(iterated)
        noted = [self._of_generator(call, function, iterated, drawn, innermost) for call, function in found]
        return bool(noted) and all(noted)

    def _of_generator(
        self, call: cst.Call, function: cst.FunctionDef, iterated: cst.BaseExpression, drawn: bool, innermost: bool
    ) -> bool:
        """Note what the generator ``function`` makes when ``call`` runs it; tell whether that is settled so."""
        inner = [self.iterated.source(n.iter) for n in walk(function.body) if isinstance(n, cst.For)]
        passed = [self.flow.argument(call, function, n.value) for n in inner if isinstance(n, cst.Name)]
        given = [n for n in passed if n is not None and self.kinds.of(n) == "loader"]
        for loader in given:  # logger.log_every(loader)
            self._feed(loader, innermost=innermost)
        if given:
            return True
        ends = [n for c in walk(function.body) if (n := self.iterated.advanced(c)) is not None]
        made = [o.node for n in ends for o in self.flow.origins(n) if isinstance(o.node, cst.BaseExpression)]
        moved = [self.flow.argument(call, function, dotted(n)) or n for n in map(self.iterated.source, made)]
        if any(isinstance(o.node, cst.Call) and self.kinds.of_call(o.node) == "loader"
               for n in inner for o in self.flow.origins(n)):  # fmt: skip
            return False
        if moved and all(self.kinds.of(n) == "loader" for n in moved):
            for loader in moved:
                self._feed(loader, drawn=True)
            return True
        if drawn or innermost:
            self._generators.append(function)
            node = call if drawn else iterated
            self.found.setdefault(node, Feed(node, "iterable"))
        return True

    def _in_comprehension(self, call: cst.CSTNode) -> bool:
        return any(isinstance(up, (cst.DictComp, cst.ListComp)) for up in self.script.above(call))

    # -- loops over positions in arrays -------------------------------------------------------------------------

    def _indices(self, loop: cst.For, iterated: cst.BaseExpression) -> None:
        picks = counts_too(self.flow, loop) if not self.script.code(loop.iter).startswith("enumerate") else ()
        if picks and isinstance(loop.target, cst.Name):
            here = self.iterated.source(loop.iter)
            self.found.setdefault(here, Feed(here, "positions", (loop.target.value,), (), (loop.target, *picks)))
        else:
            self.found.setdefault(iterated, Feed(iterated, "indices"))

    def _hidden_state(self, loop: cst.For | cst.While) -> cst.CSTNode | None:
        return hands_on(self.kinds, loop)

    @cached_property
    def orders(self) -> Orders:
        """What tells which splits and orders of the data are drawn when."""
        return Orders(self.loops, self.draws, self.innermost)

    def late_orders(self) -> Iterator[tuple[cst.Call, bool]]:
        """Yield the splits and orders that are drawn after training has begun, and whether it goes on with them."""
        if self.found and not self.episodes:
            yield from ((call, True) for call in self.orders.epochs([feed.node for feed in self.found.values()]))
        yield from ((call, False) for call in self.orders.again())

    def permutations(self) -> Iterator[cst.Call]:
        """Yield the calls that draw the order in which loops and generators go through the samples."""
        yield from self.orders.of_samples(self.found.values(), self._orders, self._generators)
