"""Where the training batches come from, and so how the ranks share them."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property

import libcst as cst

from dlrun.port.facts import Feed
from dlrun.port.facts.loops import Loops
from dlrun.port.facts.models.kinds import plays
from dlrun.port.feeds.alternating import in_turns, is_part
from dlrun.port.feeds.aside import only_shown
from dlrun.port.feeds.draws import Draws
from dlrun.port.feeds.full.full import FullBatches
from dlrun.port.feeds.full.wholes import Wholes
from dlrun.port.feeds.given import Given
from dlrun.port.feeds.iterated import Iterated
from dlrun.port.feeds.positions import nested
from dlrun.port.feeds.positions.counting import counts_too
from dlrun.port.feeds.positions.orders import Orders
from dlrun.port.feeds.positions.positions import moving, picks_samples, slides
from dlrun.port.feeds.sources import Sources
from dlrun.port.feeds.streams.carried import Carried, hands_on
from dlrun.port.feeds.streams.paces import Paces
from dlrun.port.feeds.uses import Uses

_PLAYS = ("gym", "gymnasium", "envpool", "pettingzoo", "procgen", "stable_baselines3")


class Feeds(Sources, FullBatches):
    """Finds the feeds of all training loops: loaders, index ranges, random draws, full batches."""

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
        self._orders: set[cst.CSTNode] = set()  # names of positions in a random order, which loops run over
        self._generators: list[cst.FunctionDef] = []  # functions that make the batches of training loops
        self.found: dict[cst.CSTNode, Feed] = {}
        self.counted: list[cst.For | cst.While] = []
        self.evaluated: list[cst.BaseExpression] = []
        self.both_ways: list[tuple[cst.For, cst.BaseExpression]] = []  # loops that train and evaluate, by what
        self.unseen: list[cst.Call] = []  # draws from iterators that come from out of sight
        self.paced: list[cst.Call] = []  # what returns the next number of a schedule
        self._fed: set[cst.CSTNode] = set()  # loops that run over what is sharded
        # Where an environment is played, every rank makes samples of its own: there is nothing to shard.
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
        draws = [n for n in innermost if n not in slid and self.draws(n) and not self._draws_aside(n)]
        noisy = [
            n for n in draws if (self.draws.noise_alone(n) and self._unfed(n)) or self._on_graph(n)
        ]  # beside samples
        drawn = in_turns(loops, self.iterated, [n for n in draws if n not in noisy])
        self.counted.extend(loop for loop in drawn if not self._is_part(loop, drawn))
        if not self.found and not self.counted and not self.carried.by_loop:
            for body in (*innermost, *loops.searches):
                self._whole(body)
        elif slid:
            for body in slid:
                self._whole(body)
        else:
            unfed = {loop: wholes for loop in innermost if (wholes := self._unfed(loop)) is not None}
            around = {loop: self._draws_for(loop, wholes) for loop, wholes in unfed.items()}
            drawn = [*self.counted, *dict.fromkeys(loop for loop in around.values() if loop is not None)]
            self.counted = [loop for loop in drawn if not self._is_part(loop, drawn)]
            self.unfed = next((loop for loop, outer in around.items() if outer is None), None)

    def _reads(self, loop: cst.For | cst.While) -> bool:
        """Tell whether ``loop`` runs over a loader that is made once, before any training."""
        made = self.flow.origins(self.iterated.source(loop.iter)) if isinstance(loop, cst.For) else ()
        loaders = [o.node for o in made if isinstance(o.node, cst.Call) and self.kinds.of_call(o.node) == "loader"]
        return bool(loaders) and not any(
            up in self.loops.training
            for call in loaders
            for place in (call, *self.flow.callers(self.script.function_of(call)))
            for up in self.script.above(place)
        )

    def ranges(self) -> tuple[tuple[cst.CSTNode, cst.BaseExpression | None], ...]:
        """Return the loops that draw a batch an iteration, with what those with ``for`` count."""
        counted = (*self.counted, *self.loops.asking)
        return tuple((x, self.iterated.of(x) if isinstance(x, cst.For) else None) for x in counted)

    # -- loops over something -----------------------------------------------------------------------------------

    numbered: cst.CSTNode | None = None  # samples picked by the number of a batch, which each rank counts for itself
    unfed: cst.CSTNode | None = None  # a loop that takes the same samples in all iterations, beside others that are fed

    def _of_loop(self, loop: cst.For | cst.While) -> None:
        self._at = loop
        before = len(self.found)
        if isinstance(loop, cst.For):
            iterated, source = self.iterated.of(loop), self.iterated.source(loop.iter)
            named = self.iterated.counted(loop.iter)  # of a bar that has a name of its own
            source = named if self.draws.is_order(named) else source
            if loop in self.innermost and self.draws.is_order(source) and picks_samples(self.kinds, loop):
                self.found.setdefault(source, Feed(source, "iterable"))
                self._orders.add(source)
            elif self.iterated.numbers(iterated):
                taken = loop in self.innermost and loop not in self.carried.by_loop
                beside = self._paces.is_number if taken and self._drawn(loop) else None
                if taken and picks_samples(self.kinds, loop, beside):
                    self._picked(loop, iterated)
                    self._fed.update([loop] if len(self.found) > before else [])  # and is not counted, too
            elif self._goes_through_a_batch(loop):
                self._fed.add(loop)
            else:
                self._of_iterated(loop, iterated)
        if len(self.found) > before:
            self.numbered = self.numbered or self._given.by_number(loop)
        reached = list(self.draws.each_iteration(loop)) if loop in self.innermost else []
        drawn = self._drawn(loop) if loop in self.innermost else []
        shown = [c for c, _ in drawn if only_shown(self.loops, loop, c, reached)]
        if len(self.found) > before or len(shown) < len(drawn):
            drawn = [(c, given) for c, given in drawn if c not in shown]
        for call, iterator in drawn:
            for handed in self._handed(loop, call, iterator):
                self._feed(source := self.iterated.source(handed), drawn=True)
                if self._is_unseen(source):
                    self.unseen.append(call)
        if drawn:
            return  # its iterations are steps all the same: the loop counts
        if len(self.found) > before or (isinstance(loop, cst.For) and not self.iterated.counts(self.iterated.of(loop))):
            self._fed.add(loop)
        for call in reached:
            own = self.script.function_of(call) in self.flow.targets(call) or self._paces.hands_itself_on(call)
            if self.draws.keeps_its_place(call) and not own and not self._is_paced(call):
                self.found.setdefault(call.func, Feed(call.func, "turns"))

    def _drawn(self, loop: cst.For | cst.While) -> list[tuple[cst.Call, cst.BaseExpression]]:
        """Return the calls by which an iteration of ``loop`` draws what may be samples, each from its iterator."""
        found = [(c, self.draws.advanced(c)) for c in self.draws.each_iteration(loop)]
        return [
            (c, given)
            for c, given in found
            if given is not None and not self._is_paced(c) and not self.uses.only_evaluates(c)
        ]

    @cached_property
    def _paces(self) -> Paces:
        return Paces(self.loops, [self._loss(c) for c in self.loops.gradients.backwards])

    def _is_paced(self, call: cst.Call) -> bool:
        """Tell whether ``call`` returns the next number of a schedule, and note it."""
        computed = self.iterated.advanced(call) is not None and self.draws.advanced(call) is None
        paced = not computed and self._paces.is_number(call)
        if paced and call not in self.paced:
            self.paced.append(call)
        return paced

    def _handed(
        self, loop: cst.For | cst.While, call: cst.Call, iterator: cst.BaseExpression, depth: int = 3
    ) -> list[cst.BaseExpression]:
        """Return what the calls that train in ``loop`` hand on as ``iterator``; itself where all calls do."""
        function = self.script.function_of(call)
        if not depth or not isinstance(function, cst.FunctionDef) or not isinstance(iterator, cst.Name):
            return [iterator]
        callers, reached = self.flow.callers(function), self.draws.each_iteration(loop)
        trains = [
            c
            for c in callers
            if c in reached and not self.uses.only_evaluates(c) and not only_shown(self.loops, loop, c, reached)
        ]
        given = [(c, self.flow.argument(c, function, iterator.value)) for c in trains]
        if len(trains) in (0, len(callers)) or not all(value is not None for _, value in given):
            return [iterator]
        return [n for c, value in given if value is not None for n in self._handed(loop, c, value, depth - 1)]

    def _picked(self, loop: cst.For, iterated: cst.BaseExpression) -> None:
        """Note a loop over positions, or the one around it, where this one only goes through the parts of a batch."""
        outer = nested.around(self.kinds, loop)
        if outer is None:
            self._indices(loop, iterated)
        elif self.iterated.numbers(source := self.iterated.of(outer)):
            self._indices(outer, source)

    def _goes_through_a_batch(self, loop: cst.For) -> bool:
        """Tell whether ``loop`` takes the parts of a loader's batch; what a generator makes of one is no batch."""
        outer = nested.around(self.kinds, loop)
        return outer is not None and not self.draws.generators(self.iterated.source(outer.iter))

    def _of_iterated(self, loop: cst.For, iterated: cst.BaseExpression) -> None:
        """Note what ``loop`` runs over; where its function also evaluates, what the calls that train pass to it."""
        innermost = loop in self.innermost
        trains, evaluates = self.loops.sites.split(loop, iterated)
        self.uses.whole.extend(evaluates)
        self.both_ways.extend((loop, given) for given in evaluates)
        for given in trains or [iterated]:
            self._feed(self.iterated.source(given), innermost=innermost)

    def _is_part(self, loop: cst.For | cst.While, drawn: list[cst.For | cst.While]) -> bool:
        """Tell whether each iteration of another, divided loop runs ``loop`` whole: a critic's five updates."""
        outer = [us[us.index(loop) + 1 :] for _, us in self.loops.nests if loop in us]
        return bool(outer) and all(any(u in drawn or self._is_sharded(u) for u in us) for us in outer)

    def _unfed(self, loop: cst.For | cst.While) -> Wholes | None:
        """Return the arrays that ``loop`` takes whole in every iteration, where no loop around it shards others."""
        if loop in self.counted or self._is_sharded(loop) or self._is_part(loop, self.counted):
            return None
        if isinstance(loop, cst.While) or not self.iterated.counts(self.iterated.of(loop)):
            return None
        known = set(self.loops.gradients.backwards)
        losses = [self._loss(c) for c in dict.fromkeys(self.draws.each_iteration(loop)) if c in known]
        wholes = Wholes(self.kinds, loop, losses)
        return wholes if wholes.arrays and not any(moving(loop, name) for name in wholes.arrays) else None

    def _draws_for(self, loop: cst.For | cst.While, wholes: Wholes) -> cst.For | cst.While | None:
        """Return the loop around ``loop`` that draws the batch of which ``loop`` makes its few updates."""
        outer = {us[us.index(loop) + 1] for _, us in self.loops.nests if loop in us[:-1]}
        up = outer.pop() if len(outer) == 1 else None
        made = [b.node for name in wholes.arrays for b in wholes.bindings(name)]
        drawn = up is not None and self.draws(up) and any(self.script.inside(node, up) for node in made)
        return up if drawn and is_part(self.loops, self.iterated, loop, up) else None

    def _is_sharded(self, loop: cst.CSTNode) -> bool:
        """Tell whether ``loop`` runs over what is sharded."""
        source = self.iterated.source(loop.iter) if isinstance(loop, cst.For) else None
        return source is not None and any(node in self.found for node in (source, *self.flow.through(source)))

    @cached_property
    def innermost(self) -> list[cst.For | cst.While]:
        """The loops that are the first around an update, across calls."""
        nests = ([u for u in us if not self.iterated.picks_objects(u, way)] for way, us in self.loops.nests)
        first = (next((u for u in us if not self.iterated.lists(u)), us[0]) for us in nests if us)
        return list(dict.fromkeys(first))

    def _fed_by(self, call: cst.Call) -> tuple[cst.BaseExpression, ...]:
        """Return what ``call`` feeds into a graph."""
        return ()

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

    def is_order(self, node: cst.CSTNode) -> bool:
        """Tell whether loops run over ``node``, positions in a random order."""
        return node in self._orders

    def permutations(self) -> Iterator[cst.Call]:
        """Yield the calls that draw the order in which loops and generators go through the samples."""
        yield from self.orders.of_samples(self.found.values(), self._orders, self._generators)
