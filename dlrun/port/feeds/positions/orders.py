"""Splits and orders of the data that the script draws after the ranks have begun to draw numbers of their own."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator
from functools import cached_property

import libcst as cst

from dlrun.port.facts import Feed, Top
from dlrun.port.facts.loops import Loops
from dlrun.port.facts.outermost_loops import Tops
from dlrun.port.feeds.draws import Draws
from dlrun.port.inputs import made_of
from dlrun.port.program.script import argument, calls_method, walk

_ORDERS = re.compile(
    r"^(numpy\.random\.(shuffle|permutation|permuted|choice)|random\.(shuffle|sample)|torch\.randperm|"
    r"tensorflow\.random\.shuffle|(tensorflow\.)?keras\.random\.shuffle|"
    r"torch\.utils\.data\.(dataset\.)?random_split|sklearn\.utils\.(shuffle|resample)|"
    r"sklearn\.model_selection\.(train_test_split|\w*KFold|\w*ShuffleSplit))$"
)
_NUMBERS = re.compile(
    r"^(numpy\.random\.(?!seed|RandomState|default_rng|get_state|set_state|Generator)\w+|"
    r"random\.(?!seed|Random|getstate|setstate)\w+|torch\.rand\w*)$"
)
_SEEDS = re.compile(r"(^|\.)(manual_seed|manual_seed_all|seed|seed_everything|set_seed|set_random_seed)$")
_LIBRARIES = ("torch", "numpy", "random", "transformers", "lightning", "tensorflow", "keras")
_OWN = ("generator", "random_state")
# Models of scikit-learn that begin, or go on, at random.
_FITTED = re.compile(
    r"^sklearn\.(cluster\.(\w*KMeans|Spectral\w+)|mixture\.\w+|ensemble\.\w+|tree\.\w+|neural_network\.\w+|manifold\.(TSNE|MDS)|"
    r"decomposition\.(TruncatedSVD|\w*NMF|FastICA|Latent\w+|\w*SparsePCA|\w*DictionaryLearning)|random_projection\.\w+|"
    r"linear_model\.(SGD\w+|RANSACRegressor|Perceptron|PassiveAggressive\w+))$|^umap\.(umap_\.)?UMAP$"
)
_FITS = ("fit", "fit_predict", "fit_transform", "partial_fit")


class Orders:
    """Finds what all ranks must draw alike though each has random numbers of its own by then."""

    def __init__(self, loops: Loops, draws: Draws, innermost: Collection[cst.For | cst.While]) -> None:
        """Answer for the script of ``loops``, whose batches are taken in the loops ``innermost``."""
        self.loops = loops
        self.script = loops.script
        self.flow = loops.flow
        self.draws = draws
        self.innermost = innermost

    def is_order(self, call: cst.Call) -> bool:
        """Tell whether ``call`` draws from a generator that the whole script shares a split, an order or a fit."""
        if calls_method(call, *_FITS):
            made = [o.node for o in self.flow.origins(call.func.value) if isinstance(o.node, cst.Call)]
            return any(self._shared(m) and any(map(_FITTED.search, self.loops.kinds.names(m.func))) for m in made)
        names = [name for name in self.draws.names(call) if _ORDERS.search(name)]
        in_order = all(n.endswith("KFold") and "Repeated" not in n and argument(call, "shuffle") is None for n in names)
        return not in_order and self._shared(call)

    def of_samples(
        self, feeds: Collection[Feed], ordered: Collection[cst.CSTNode], generators: Iterable[cst.FunctionDef]
    ) -> Iterator[cst.Call]:
        """Yield the calls that draw the order in which loops and ``generators`` go through the samples of ``feeds``.

        Those that are ``ordered`` are positions in a random order.
        """
        bodies: list[cst.CSTNode] = [f.body for f in generators]
        calls = [self.script.parents[feed.node] for feed in feeds if feed.how == "turns"]
        bodies += [t.body for call in calls if isinstance(call, cst.Call) for t in self.flow.targets(call)]
        if any(f.how in ("indices", "positions", "cut") or self._is_cut(f) or f.node in ordered for f in feeds):
            outer = [loop for loop in self.loops.training if loop not in self.innermost]
            bodies += [loop.body for loop in outer or self.innermost]
        listed = (n for f in feeds if f.how == "iterable" for n in walk(f.node) if isinstance(n, cst.Call))
        drawn = [call for call in listed if self.draws.permutes(call) and not self.draws.shuffles(call)]
        yield from dict.fromkeys([*(c for body in bodies for c in self.draws.permutations(body)), *drawn])

    def _is_cut(self, feed: Feed) -> bool:
        """Tell whether ``feed`` is an order cut into batches: ``np.array_split(order, 9)``."""
        cuts = feed.how == "iterable" and isinstance(feed.node, cst.Call)
        return cuts and self.script.name_of(feed.node.func).startswith(("numpy.", "torch.", "builtins.zip"))  # type: ignore[attr-defined]

    def epochs(self, sharded: Iterable[cst.CSTNode]) -> Iterator[cst.Call]:
        """Yield the splits and orders that are drawn between the batches, epoch by epoch, or by what is ``sharded``."""
        sharded = list(sharded)
        for call in (*self._trained, *self._by_name(), *self._iterating(sharded)):
            if call not in self._at_batches and self.is_order(call):
                yield call
        yield from self._begins_with()
        for node in sharded:
            yield from self._bounds(node)
            yield from self._begun_anew(node)

    def _begun_anew(self, node: cst.CSTNode) -> Iterator[cst.Call]:
        """Yield what draws the order of ``node`` in the loop that takes its batches: where they have come to an end."""
        made = {o.node for o in self.flow.origins(node)}
        for call in filter(self.is_order, self._at_batches):
            shuffled = call.args[0].value if self.draws.shuffles(call) else None
            same = shuffled is not None and any(o.node in made for o in self.flow.origins(shuffled))
            if same or made_of(self.flow, node, {call}):
                yield call

    def _begins_with(self) -> Iterator[cst.Call]:
        """Yield what makes samples at random in the line in which training begins: ``for loss in fit(made(9)):``."""
        for top in self._tops:
            calls = [n for n in walk(top.iter) if isinstance(n, cst.Call)] if isinstance(top, cst.For) else []
            for call in calls:
                targets = self.flow.targets(call)
                trains = any(self.flow.yields(f) or self.loops.gradients.runs_backward(f.body) for f in targets)
                inner = [n for f in targets for n in self.draws.reached(f.body)] if not trains else []
                if any(_NUMBERS.search(self.script.name_of(n.func)) and self._shared(n) for n in inner):
                    yield call

    def _bounds(self, node: cst.CSTNode) -> Iterator[cst.Call]:
        """Yield what draws where ``node`` begins or ends, or its stride: ``range(random.randint(0, 9), len(x), 8)``."""
        counts = isinstance(node, cst.Call) and self.script.name_of(node.func) == "builtins.range"
        parts = (n for n in walk(node) if isinstance(n, (cst.Name, cst.Call))) if counts else ()
        for drawn in {o.node: None for part in parts for o in self.flow.origins(part)}:
            if not isinstance(drawn, cst.Call) or drawn not in self._trained or drawn in self._at_batches:
                continue
            if _NUMBERS.search(self.script.name_of(drawn.func)) and self._shared(drawn):
                yield drawn

    def _by_name(self) -> Iterator[cst.Call]:
        """Yield what training calls by way of methods with a name of their own, on objects from out of sight."""
        for call in self._trained:
            name = call.func.attr.value if isinstance(call.func, cst.Attribute) else ""
            methods = self.flow.methods.get(name, [])
            if len(methods) == 1 and call not in self._at_batches and not self.flow.targets(call):
                yield from self.draws.reached(methods[0].body)

    def _iterating(self, sharded: Iterable[cst.CSTNode]) -> Iterator[cst.Call]:
        """Yield the calls of objects of the script's own that a loop runs over, or what it runs over is made of.

        What a loader's sampler draws, all ranks take from rank 0 as it is.
        """
        for node in sharded:
            made = isinstance(node, cst.Call) and self.loops.kinds.of_call(node) != "loader"
            given = [a.value for a in node.args] if isinstance(node, cst.Call) and made else []
            for cls in (c for n in (node, *given) for c in self.flow.classes(n)):
                for method in (self.flow.method(cls, name) for name in ("__iter__", "__next__")):
                    reached = self.draws.reached(method.body) if method is not None else ()
                    yield from reached
                    asked = [it for c in reached if (it := self.draws.iterated.advanced(c)) is not None]
                    for _, function in (found for it in asked for found in self.draws.generators(it)):
                        yield from self.draws.reached(function.body)

    def again(self) -> Iterator[cst.Call]:
        """Yield what is drawn for another training after one: for the next fold, the next run, the second phase."""
        seen: set[cst.Call] = set()
        for body in (*self._repeated(), *self._between()):
            reached = [c for c in self.draws.reached(body) if c not in self._trained]
            if any(self._seeds(c) for c in reached):
                continue  # all ranks begin anew by themselves
            for call in reached:
                drawn = _NUMBERS.search(self.script.name_of(call.func)) is not None and self._shared(call)
                drawn = (drawn and not self.is_weight(call)) or self.is_order(call)
                if drawn and call not in seen and not self._after(call):
                    seen.add(call)
                    yield call

    def seeds(self) -> Iterator[cst.Call]:
        """Yield the calls within training loops that seed all ranks' generators alike."""
        for call in self.script.calls:
            inside = any(up in self.loops.training for up in self.script.above(call))
            if inside and call in self._trained and self._seeds(call):
                yield call

    @cached_property
    def tops(self) -> tuple[Top, ...]:
        """The outermost training loops."""
        return Tops(self.loops).found()

    @cached_property
    def _tops(self) -> list[cst.CSTNode]:
        return [top.loop for top in self.tops]

    @cached_property
    def _trained(self) -> dict[cst.Call, None]:
        """The calls that training loops may come to, when the ranks' generators differ."""
        around = set(self._repeated())
        loops = [loop for loop in self.loops.training if loop.body not in around]
        return dict.fromkeys(c for loop in loops for c in self.draws.reached(loop.body))

    @cached_property
    def _at_batches(self) -> set[cst.Call]:
        return {c for loop in self.innermost for c in self.draws.reached(loop.body)}

    def _repeated(self) -> Iterator[cst.CSTNode]:
        """Yield the bodies of loops, and of functions called several times, that hold an outermost training loop."""
        for top in self._tops:
            for way in self.loops.ways(top):
                for frame in way:
                    loops = [u for u in self.script.above(frame) if isinstance(u, (cst.For, cst.While))]
                    yield from (
                        u.body
                        for u in loops
                        if u not in self._tops and self.script.function_of(u) is self.script.function_of(frame)
                    )
                    function = self.script.function_of(frame)
                    if isinstance(function, cst.FunctionDef) and len(self.flow.callers(function)) > 1:
                        yield function.body

    def _between(self) -> Iterator[cst.CSTNode]:
        """Yield the calls that run after one outermost training loop and before another."""
        script, order = self.script, self.script.order
        ways = [way for top in self._tops for way in self.loops.ways(top)]
        for way in ways:
            after = False
            for frame in way:
                home = script.function_of(frame)
                past = [n for w in ways for n in w if script.function_of(n) is home and order[n] < order[frame]]
                past = [n for n in past if not script.inside(frame, n) and not self._either(n, frame)]
                after = after or bool(past)
                begin = max(map(order.__getitem__, past), default=-1)
                yield from (
                    c
                    for c in script.calls
                    if after and script.function_of(c) is home and begin < order[c] < order[frame]
                )

    def _either(self, one: cst.CSTNode, other: cst.CSTNode) -> bool:
        """Tell whether ``one`` and ``other`` stand in branches of one test."""
        tests = [up for up in self.script.above(one) if isinstance(up, cst.If) and self.script.inside(other, up)]
        return any(self.script.inside(one, up.body) != self.script.inside(other, up.body) for up in tests)

    def is_weight(self, call: cst.Call) -> bool:
        """Tell whether a module draws this: its weights are broadcast."""
        owner = self.script.class_of(call)
        return owner is not None and self.loops.kinds.of_bases(self.flow.bases(owner)) == "module"

    def _after(self, call: cst.Call) -> bool:
        """Tell whether ``call`` comes after the training loop of its function."""
        order, home = self.script.order, self.script.function_of(call)
        mine = [top for top in self._tops if self.script.function_of(top) is home]
        return bool(mine) and all(order[top] < order[call] for top in mine)

    def _shared(self, call: cst.Call) -> bool:
        given = [argument(call, name) for name in _OWN]
        return all(n is None or (isinstance(n, cst.Name) and n.value == "None") for n in given)

    def _seeds(self, call: cst.Call, depth: int = 2) -> bool:
        name = self.script.name_of(call.func)
        if _SEEDS.search(name) and name.split(".")[0] in _LIBRARIES:
            return bool(call.args)
        inner = [n for f in self.flow.targets(call) for n in walk(f.body) if isinstance(n, cst.Call)] if depth else []
        trains = any(self.loops.gradients.runs_backward(f.body) for f in self.flow.targets(call))
        return not trains and any(self._seeds(n, depth - 1) for n in inner)
