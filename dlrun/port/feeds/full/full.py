"""Full batches: loops that compute with all samples in every step, and where these are cut for the ranks."""

from __future__ import annotations

import re
from collections.abc import Iterator

import libcst as cst

from dlrun.port.facts import Feed
from dlrun.port.facts.loops import Loops
from dlrun.port.facts.models.kinds import Kinds
from dlrun.port.facts.taint import without_gradients
from dlrun.port.facts.torch import LOOPS
from dlrun.port.facts.updates.reductions import Reductions
from dlrun.port.feeds.draws import Draws
from dlrun.port.feeds.full import graphs
from dlrun.port.feeds.full.renewed import added, draws_at_times, names_behind
from dlrun.port.feeds.full.wholes import Wholes
from dlrun.port.feeds.positions.positions import moving, of_order, other_length, takes_part
from dlrun.port.feeds.streams.carried import along_entries
from dlrun.port.feeds.streams.taken import taken_from
from dlrun.port.program.flow import Flow
from dlrun.port.program.script import Script, calls_method, dotted, walk

_SIZE = re.compile(r"^(batch_?size|bs|n_?samples|num_samples)$", re.IGNORECASE)
_SHAPES = re.compile(
    r"(^|\.)(zeros|ones|randn|rand|full|empty|view|reshape|expand|init_?\w*|zero_state)$", re.IGNORECASE
)
_GRAPHS = ("torch_geometric", "dgl", "torch_sparse", "torch_scatter", "spektral", "stellargraph")


class FullBatches:
    """Finds the arrays that each step of a loop takes whole."""

    loops: Loops
    script: Script
    flow: Flow
    kinds: Kinds
    draws: Draws
    found: dict[cst.CSTNode, Feed]
    counted: list[cst.For | cst.While]
    graph: cst.CSTNode | None = None  # data whose samples hang together
    uncut: cst.Name | cst.Attribute | None = None  # data that go into a loss whole, beside others that are sharded
    part: cst.Subscript | None = None  # what a loss takes of an array: not all of it
    sequence: cst.CSTNode | None = None  # what hands a state from entry to entry of an array that is taken whole
    moved: cst.CSTNode | None = None  # a loop over slices whose arrays cannot be cut before it, or what is why
    taken: cst.Call | None = None  # what takes samples, or where these lie, out of a queue
    early: cst.CSTNode | None = None  # samples that are drawn anew at times, and the first ones alike on all ranks
    full_batch = False

    def _takes(self, loop: cst.CSTNode) -> tuple[Wholes, list[cst.BaseExpression]]:
        """Return the arrays that the losses of ``loop`` take whole in every iteration, and these losses."""
        known = set(self.loops.gradients.backwards)
        calls = [c for c in self.draws.reached(body(loop)) if c in known and not without_gradients(self.script, c)]
        losses = [self._loss(c) for c in dict.fromkeys(calls)]
        functions = dict.fromkeys(self.draws.functions(body(loop)))
        home = self.script.function_of(loop)
        reached = [*functions, *([home] if isinstance(home, cst.FunctionDef) else ())]
        return Wholes(self.kinds, loop, losses, reached, self._at_times(loop)), losses

    def _at_times(self, loop: cst.CSTNode) -> list[cst.CSTNode]:
        """Return the tests below which ``loop`` draws, if it draws nowhere else, and the functions run there alone."""
        gradients = self.loops.gradients
        updates = {*(call for call, _ in gradients.step_calls), *gradients.updates}
        updates |= {call for call in gradients.backwards if calls_method(call, "backward")}  # not of a residual alone
        tests = draws_at_times(self.draws, loop, updates) if isinstance(loop, LOOPS) else []
        calls = [n for n in walk(body(loop)) if isinstance(n, cst.Call)] if tests else []
        always = [n for n in calls if not any(self.script.inside(n, test) for test in tests)]
        others = {f for n in always for f in self.draws.functions(n)}
        return [*tests, *(f for test in tests for f in self.draws.functions(test) if f not in others)]

    def _draws_aside(self, loop: cst.For | cst.While) -> bool:
        """Tell whether ``loop`` takes arrays whole in all iterations, and draws at times alone, to evaluate or anew."""
        if not self._at_times(loop):
            return False
        wholes, _ = self._takes(loop)
        self.early = self.early or wholes.early
        moved = any(moving(loop, name) for name in wholes.arrays)
        return bool(wholes.arrays or wholes.held.arrays) and not (wholes.lost or moved)

    def _whole(self, loop: cst.CSTNode) -> None:
        """Note the arrays that the losses of ``loop``, or of a search by a closure, take whole in every iteration."""
        wholes, losses = self._takes(loop)
        self.graph = self.graph or wholes.graph or (losses[0] if losses and self._of_graphs() else None)
        held = wholes.held
        self.taken = self.taken or taken_from(body(loop), self.draws.reached(body(loop)), wholes.arrays)
        moved = [name for name in wholes.arrays if isinstance(loop, LOOPS) and moving(loop, name)]
        if moved and isinstance(loop, LOOPS):
            self._move(loop, moved)
        elif self.graph is None and (wholes.arrays or held.arrays):
            self.full_batch = True
            self.part = self.part or self._part(wholes)
            self.uncut = wholes.left[0] if wholes.left else held.scattered or self.uncut
            self._note(wholes, losses)
        elif self.graph is None:
            self.uncut = self.uncut or next(iter(wholes.left), held.scattered)

    def _on_graph(self, loop: cst.CSTNode) -> bool:
        """Tell whether every iteration of ``loop`` takes one graph whole, beside what it draws."""
        graph = self._takes(loop)[0].graph
        return graph is not None and graphs.stays(self.draws, body(loop), graph)

    def _of_graphs(self) -> bool:
        """Tell whether the script works on graphs: without a loader, one graph is all that there is."""
        return any(b.target.split(".")[0] in _GRAPHS for b in self.script.imports())

    def _note(self, wholes: Wholes, losses: list[cst.BaseExpression]) -> None:
        """Note the arrays in ``wholes``: cut before the loop, under names of their own where need be, and once only."""
        loop, held = wholes.loop, wholes.held
        homes = {self.script.function_of(node) for node in held.arrays.values()}

        def counted(node: cst.CSTNode) -> bool:
            function = self.script.function_of(node)
            return self.script.inside(node, loop) or function not in (self.script.function_of(loop), *homes)

        known: dict[cst.CSTNode, str] = {n: dotted(n) for n in held.uses()} if held.arrays else {}
        known |= {n: name for name in wholes.arrays for n in wholes.uses(name) if not self._before(n, wholes)}
        how = Reductions(self.kinds, losses, known.get, counted)
        bodies = [body(loop), *(f.body for f in self.draws.functions(body(loop)))]
        self.sequence = self.sequence or next(filter(None, (along_entries(self.kinds, b, how) for b in bodies)), None)
        drawn, sizes, picks = tuple(wholes.drawn), tuple(self._sizes(wholes)), self._picks(wholes)
        before = {name for name in wholes.arrays if not picks and self._is_cut(wholes, name)}
        names = tuple(name for name in wholes.arrays if name not in before)
        if names or not held.arrays:
            self.found[loop] = Feed(
                self._place(wholes), "arrays", names, drawn, picks, before=True, gathered=how, sizes=sizes
            )
        self._renew(wholes, how, picks)
        if held.arrays:
            kept = tuple(held.arrays)
            last = next((f for f in self.found.values() if f.node is held.place), None)
            mine = tuple(held.uses()) if held.elsewhere() else ()
            if last is not None and set(kept) <= set(last.names):
                kept = ()
            self.found[held.place if kept else loop] = Feed(held.place, "arrays", kept, drawn, mine, gathered=how)

    def _renew(self, wholes: Wholes, how: Reductions, picks: tuple[cst.Name, ...]) -> None:
        """Note what is drawn anew, or joined to an array, at times: not what is made of a rank's share already."""
        whole = {dotted(pick) for pick in picks}
        cut = set(wholes.arrays) - whole
        for binding in wholes.renewed:
            for part in tuple(added(binding)) or ((binding.value,) if binding.value is not None else ()):
                of_share = not cut.isdisjoint(names_behind(self.script, part, wholes.at_times))
                if binding.name in whole:
                    self.uncut = self.uncut or (next(iter(wholes.uses(binding.name))) if of_share else None)
                    self.found[binding.node] = Feed(binding.node, "arrays", (binding.name,), gathered=how)
                elif not of_share:
                    self.found[part] = Feed(part, "array", drawn=(binding.name,), gathered=how)

    def _is_cut(self, wholes: Wholes, name: str) -> bool:
        """Tell whether the variable ``name`` holds a rank's share by then: a loop before took it whole, too."""
        scope = wholes.home.lookup(name)[1]
        for loop, feed in self.found.items():
            same = feed.how == "arrays" and not feed.picks and name in feed.names
            if same and self.script.scopes[loop].lookup(name)[1] is scope and loop is not wholes.loop:
                line = self.script.parents[feed.node]
                function = self.script.function_of(feed.node)
                if line in (function, getattr(function, "body", None)):
                    return True
                self.uncut = self.uncut or next(iter(wholes.uses(name)), None)
        return False

    def _sizes(self, wholes: Wholes) -> Iterator[cst.Name]:
        """Yield the uses of the number of all samples in the shapes of states: ``torch.zeros(1, batch_size, 5)``."""
        for call in (n for n in walk(body(wholes.loop)) if isinstance(n, cst.Call)):
            if _SHAPES.search(dotted(call.func)):
                parts = [p for a in call.args for p in (a.value.elements if isinstance(a.value, cst.Tuple) else [a])]
                yield from (p.value for p in parts if isinstance(p.value, cst.Name) and _SIZE.search(p.value.value))

    def _picks(self, wholes: Wholes) -> tuple[cst.Name, ...]:
        """Return the uses of the arrays that need names of their own: elsewhere the arrays stay whole."""
        reached = self._reached(wholes)
        picks: list[cst.Name] = []
        must = False
        for name in wholes.arrays:
            uses = wholes.uses(name)
            inside = [n for n in uses if self.script.inside(n, wholes.loop)]
            others = [n for n in uses if n not in inside and not self._before(n, wholes)]
            elsewhere = wholes.home.lookup(name)[1] is not wholes.home
            if elsewhere or not any(up in reached for n in uses for up in self.script.above(n)):
                picks += [n for n in inside if not any(self.script.inside(n, b.node) for b in wholes.renewed)]
                must = must or elsewhere or bool(others)
        return tuple(picks) if must else ()

    def _part(self, wholes: Wholes) -> cst.Subscript | None:
        """Return the first place that takes a part of an array along axis 0 in the loop, or in functions it calls.

        A share of the whole array has other entries there.
        """
        reached = self._reached(wholes) | {wholes.loop}
        held = wholes.held.uses() if wholes.held.arrays else []
        for use in (*(n for name in wholes.arrays for n in wholes.uses(name)), *held):
            up = self.script.parents[use]
            if not isinstance(up, cst.Subscript) or up.value is not use:
                continue
            if takes_part(self.flow, up.slice[0].slice) and any(a in reached for a in self.script.above(use)):
                return up
        return None

    def _reached(self, wholes: Wholes) -> set[cst.CSTNode]:
        """Return the functions that the loop calls, closures included."""
        return set(self.draws.functions(body(wholes.loop)))

    def _before(self, use: cst.Name, wholes: Wholes) -> bool:
        """Tell whether ``use`` has run, once and for all, when the loop begins."""
        here = self.script.function_of(use) is self.script.function_of(wholes.loop)
        earlier = self.script.order[use] < self.script.order[wholes.loop]
        return here and earlier and not self.script.inside(use, self._place(wholes))

    def _place(self, wholes: Wholes) -> cst.CSTNode:
        """Return the outermost loop around that of ``wholes`` in which none of the arrays is made."""
        place: cst.CSTNode = wholes.loop
        made = [b.node for name in wholes.arrays for b in wholes.bindings(name)]
        for up in self.script.above(wholes.loop):
            if isinstance(up, (cst.FunctionDef, cst.Module)):
                break
            if isinstance(up, LOOPS):
                if any(self.script.inside(node, up) for node in made):
                    break
                place = up
        return place

    def _move(self, loop: cst.For | cst.While, names: list[str]) -> None:
        """Note arrays of which ``loop`` takes slices that it moves: each rank moves on within its own share."""
        names = of_order(loop, names) or names
        if (length := other_length(self.flow, loop, names)) is not None:
            self.moved = self.moved or length
            return
        for name in names:
            made = self.script.scopes[loop].lookup(name)[0]
            last = [b for b in made if b.how == "assign" and not self.script.inside(b.node, loop)]
            inner = any(
                isinstance(self.script.suite(b.node), cst.IndentedBlock)
                and isinstance(self.script.scopes[loop].node, cst.Module)
                for b in last
            )
            if len(last) != len(made) or inner or not isinstance(last[-1].node, cst.Assign):
                self.moved = self.moved or loop
                return
            node = last[-1].node
            before = self.found.get(node)
            self.found[node] = Feed(node, "named", (*(before.names if before else ()), name))
        self.counted.append(loop)

    def _loss(self, backward: cst.Call) -> cst.BaseExpression:
        """Return the expression whose gradients ``backward`` computes."""
        func = backward.func
        return func.value if isinstance(func, cst.Attribute) and func.attr.value == "backward" else func


def body(loop: cst.CSTNode) -> cst.CSTNode:
    """Return what an iteration of ``loop`` runs; of a statement that searches by a closure, itself."""
    return loop.body if isinstance(loop, LOOPS) else loop
