"""What else happens to the batches of a loader that is trained on, and so where it may be cut into shares."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import cached_property

import libcst as cst

from dlrun.port.facts import Feed
from dlrun.port.facts.loops import Loops
from dlrun.port.facts.models.keras_models import FITS
from dlrun.port.facts.taint import without_gradients
from dlrun.port.feeds.draws import Draws
from dlrun.port.feeds.positions.positions import mentions
from dlrun.port.program.script import calls_method, dotted, names_in, walk

# Foreign functions that go through a loader for what it holds; others may make batches of it, or know its length.
_LOOKS = re.compile(
    r"(^|_|\.)(eval(uate)?|valid(ate)?|test|predict|infer|accuracy|score|metrics?|embed|features?|update_bn|calibrate|"
    r"weights?|mean|std|stats?|statistics|histogram)",
    re.IGNORECASE,
)
_KEEPS = ("append", "extend", "add", "update")
_STAYS = ("train", "eval", "to", "cuda", "cpu", "parameters", "zero_grad", "state_dict", "requires_grad_", "modules")
_NO_GRADIENTS = ("no_grad", "inference_mode")


class Uses:
    """Tells where the batches of loaders are evaluated, collected or counted, and where they are trained on alone."""

    def __init__(self, loops: Loops, draws: Draws) -> None:
        """Answer for the script of ``loops``."""
        self.loops = loops
        self.script = loops.script
        self.flow = loops.flow
        self.kinds = loops.kinds
        self.draws = draws
        self.iterated = draws.iterated
        self.whole: list[cst.BaseExpression] = []  # what a function that trains, too, gets from calls that do not

    def place(self, loader: cst.Call, iterated: cst.BaseExpression) -> cst.BaseExpression | None:
        """Return the call behind ``iterated`` that may be cut: that which makes ``loader``, or a function that does.

        It is the nearest to the loader whose value nothing but training looks at; None where there is none.
        """
        others = [through for other in self._others() if loader in (through := self.flow.through(other))]
        if not others:
            return loader
        way = [n for n in self.flow.through(iterated) if isinstance(n, cst.Call) and not any(n in o for o in others)]
        made = [n for n in way if self.flow.targets(n) and loader in self.flow.through(n)]
        return made[-1] if made else None

    def iterators(self, loader: cst.BaseExpression, drawn: cst.BaseExpression) -> Iterator[cst.BaseExpression]:
        """Yield what the iterator ``drawn`` is made of, and made again: each ``loader`` in ``iter(loader)``."""
        for node in self.flow.through(drawn):
            above = self.script.parents.get(node)
            call = self.script.parents.get(above) if isinstance(above, cst.Arg) else None
            inner = isinstance(call, cst.Call) and self.iterated.source(call) is not call
            if (
                inner
                and isinstance(node, (cst.Name, cst.Attribute, cst.Subscript))
                and loader in self.flow.through(node)
            ):
                yield node
            if isinstance(node, cst.Call):
                yield from (n for made in self.draws.generators(node) for n in self._passed_on(loader, *made))

    def _passed_on(
        self, loader: cst.BaseExpression, call: cst.Call, function: cst.FunctionDef
    ) -> Iterator[cst.BaseExpression]:
        """Yield the argument of ``call`` through which the generator ``function`` goes, if it is ``loader``."""
        yield from (given for given in self._gone_through(call, function) if loader in self.flow.through(given))

    def _gone_through(self, call: cst.Call, function: cst.FunctionDef) -> Iterator[cst.BaseExpression]:
        """Yield the arguments of ``call`` through which the generator ``function`` goes."""
        inner = [n.iter for n in walk(function.body) if isinstance(n, cst.For)]
        inner += [n.item for n in walk(function.body) if isinstance(n, cst.From)]
        for source in map(self.iterated.source, inner):
            if (given := self.flow.argument(call, function, dotted(source))) is not None:
                yield given

    def looked_at(self, made: cst.CSTNode, iterated: cst.BaseExpression) -> bool:
        """Tell whether something that does not train looks at the batches of what ``made`` returns, or at that part of
        it which the name ``iterated`` holds."""
        holds = self.script.bindings_of(iterated)
        return any(
            made in self.flow.through(other) or (holds and self.script.bindings_of(other) == holds)
            for other in self._others()
        )

    def lengths(self, feeds: Iterable[Feed]) -> Iterator[cst.Call]:
        """Yield the calls ``len(loader)`` beside loops that take a share of a loader which stays whole elsewhere.

        They count the loop's own batches: in the loop itself, by a name that is read there alone, and in its function
        where nothing else goes through it.
        """
        lens = [c for c in self.script.calls if self.script.name_of(c.func) == "builtins.len" and len(c.args) == 1]
        for feed in feeds:
            loop = next((u for u in self.script.above(feed.node) if u in self.loops.training), None)
            name = dotted(feed.node)
            if feed.how != "iterable" or not name or loop is None or self.kinds.of(feed.node) != "loader":
                continue
            home = self.script.function_of(loop)
            alone = not any(dotted(o) == name and self.script.function_of(o) is home for o in self._others())
            for call in lens:
                inside = self.script.inside(call, loop) or self._is_read_in(call, loop)
                near = self.script.function_of(call) is home and (alone or inside)
                if near and dotted(call.args[0].value) == name:
                    yield call

    def _is_read_in(self, call: cst.Call, loop: cst.CSTNode) -> bool:
        """Tell whether ``call`` gives a name its value that nothing reads but ``loop``."""
        line = self.script.parents[call]
        target = line.targets[0].target if isinstance(line, cst.Assign) and len(line.targets) == 1 else None
        names = self.script.names_of(target.value, self.script.scope_of(target)) if isinstance(target, cst.Name) else []
        return len(names) > 1 and all(n is target or self.script.inside(n, loop) for n in names)

    def evaluating(self, shared: list[cst.BaseExpression]) -> list[cst.BaseExpression]:
        """Return what stands for batches that no update follows from, and that come through one of ``shared``."""
        behind = {n for own in shared for n in self.flow.through(own)}
        return [n for n in self._others() if n in behind]

    def _others(self) -> Iterator[cst.BaseExpression]:
        yield from self._seen
        yield from self.whole

    @cached_property
    def _seen(self) -> list[cst.BaseExpression]:
        """The expressions that stand for batches that no update follows from."""
        found: list[cst.BaseExpression] = []
        for node in self.script.nodes:
            if isinstance(node, cst.For):
                trains = node in self.loops.training or node in self.loops.accumulating
                found.extend([] if trains or not self._works(node) else [self.iterated.source(node.iter)])
            elif isinstance(node, (cst.ListComp, cst.GeneratorExp, cst.SetComp)):
                keeps = self.computes(node.elt) or self._collects(node)
                keeps = keeps and not self.loops.gradients.runs_backward(node.elt)
                found.extend([self.iterated.source(node.for_in.iter)] if keeps else [])
            elif isinstance(node, cst.Call):
                found.extend(self._given(node))
                found.extend(self._drawn(node))
        return found

    @cached_property
    def _trained(self) -> set[cst.Call]:
        """The calls that training loops may come to."""
        return {call for loop in self.loops.training for call in self.draws.each_iteration(loop)}

    def _drawn(self, call: cst.Call) -> Iterator[cst.BaseExpression]:
        """Yield what ``call`` takes a batch from that goes into a model, and into no update."""
        iterator = self.iterated.advanced(call)
        if iterator is None or (call in self._trained and not self.only_evaluates(call)):
            return
        holds = self.script.bindings_of(iterator)
        others = [n for c in self._trained if c is not call and (n := self.iterated.advanced(c)) is not None]
        others = [n for n in others if self.script.code(n) == self.script.code(iterator)]  # not its["b"] of its["a"]
        if holds and any(self.script.bindings_of(other) == holds for other in others):
            return  # the first batch, before the loop that draws the others
        statement = self.script.statement_of(call)
        targets = [t.target for t in statement.targets] if isinstance(statement, cst.Assign) else []
        names = {n.value for t in targets for n in walk(t) if isinstance(n, cst.Name)}
        home = self.script.function_of(call)
        calls = [c for c in self.script.calls if self.script.function_of(c) is home]
        given = [a for c in calls if self.computes(c) for a in c.args]
        if any(mentions(a, names) or self.script.inside(call, a) for a in given):
            yield (source := self.iterated.source(iterator))
            inner = [n for made in self.draws.generators(source) for n in self._gone_through(*made)]
            made = [o.node for n in (source, *inner) for o in self.flow.origins(n)]
            yield from (n for n in made if isinstance(n, cst.Call) and self.kinds.of_call(n) == "loader")

    def only_evaluates(self, call: cst.Call, depth: int = 3) -> bool:
        """Tell whether ``call`` draws in a function that makes no gradients, by ``torch.no_grad()`` or the like.

        A function that runs a model may also be called so.
        """
        home = self.script.function_of(call)
        if not isinstance(home, cst.FunctionDef) or self.loops.gradients.runs_backward(home.body):
            return False
        said = [d.decorator for d in home.decorators]
        said += [item.item for n in walk(home.body) if isinstance(n, cst.With) for item in n.items]
        if any(dotted(n.func if isinstance(n, cst.Call) else n).endswith(_NO_GRADIENTS) for n in said):
            return True
        callers = self.flow.callers(home) if depth and self.computes(home.body) else []
        return bool(callers) and all(
            without_gradients(self.script, c) or self.only_evaluates(c, depth - 1) for c in callers
        )

    def _given(self, call: cst.Call) -> Iterator[cst.BaseExpression]:
        """Yield what ``call`` hands to a function out of sight that evaluates, as its name says, or to Keras' fit().

        That takes its share itself.
        """
        name = self.script.name_of(call.func) or dotted(call.func)
        foreign = not name.startswith("builtins.") and not self.kinds.of_call(call) and not self.flow.targets(call)
        fits = calls_method(call, *FITS) and self.kinds.of(call.func.value) == "module"
        if foreign and (fits or _LOOKS.search(dotted(call.func).rsplit(".", 1)[-1])):
            yield from (a.value for a in call.args if isinstance(a.value, (cst.Name, cst.Attribute, cst.Subscript)))

    def _works(self, loop: cst.For) -> bool:
        """Tell whether ``loop`` runs a model, adds up, or keeps: it is no plot of the first batch."""
        leaves = any(isinstance(n, cst.Break) for n in walk(loop.body))
        batch = names_in(loop.target)
        return self.computes(loop.body) or (not leaves and any(self._keeps(n, batch) for n in walk(loop.body)))

    def _keeps(self, node: cst.CSTNode, batch: set[str]) -> bool:
        """Tell whether ``node`` adds to something: ``seen.append(y)``, ``most = max(most, len(x))``, ``n[y] = 1``."""
        if isinstance(node, cst.Assign):
            target = node.targets[0].target
            name = dotted(target)
            of_itself = isinstance(target, (cst.Name, cst.Attribute)) and mentions(node.value, {name.split(".")[-1]})
            return isinstance(target, cst.Subscript) or (of_itself and name not in batch)
        called = node.func if isinstance(node, cst.Call) else None
        return isinstance(node, cst.AugAssign) or (isinstance(called, cst.Attribute) and called.attr.value in _KEEPS)

    def _collects(self, node: cst.ListComp | cst.GeneratorExp | cst.SetComp) -> bool:
        """Tell whether ``node`` hands parts of the batches to no loop: ``torch.cat([y for _, y in loader])``."""
        user = self.script.parents[node]
        call = self.script.parents[user] if isinstance(user, cst.Arg) else None
        goes = isinstance(call, cst.Call) and self.iterated.source(call) is call
        goes = goes or (isinstance(user, (cst.Assign, cst.Return)) and not isinstance(node, cst.GeneratorExp))
        return goes and mentions(node.elt, names_in(node.for_in.target))

    def computes(self, node: cst.CSTNode) -> bool:
        """Tell whether running ``node`` runs a model, also by a method of its own or in a function of the script."""
        for call in (n for body in self.flow.bodies(node, 3) for n in walk(body) if isinstance(n, cst.Call)):
            method = call.func if isinstance(call.func, cst.Attribute) else None
            if self.kinds.of(call.func) == "module":
                return True
            if method is not None and method.attr.value not in _STAYS and self.kinds.of(method.value) == "module":
                return True
        return False
