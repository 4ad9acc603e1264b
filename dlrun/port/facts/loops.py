"""The training loops of a script, and who calls into them."""

from __future__ import annotations

from functools import cached_property

import libcst as cst

from dlrun.port.facts.sites import Sites
from dlrun.port.facts.taint import Taint, losses, without_gradients
from dlrun.port.facts.torch import LOOPS, Gradients
from dlrun.port.program.script import names_in, walk

# What runs a function of the main module without naming it: main(), or, for Fire, the one that the command line names.
_MAINS = ("tensorflow.app.run", "tensorflow.compat.v1.app.run", "tensorflow.python.platform.app.run", "absl.app.run")
# Decorators that run nothing by themselves; others may hand a function to what runs it, as those of click do.
_COMPILES = ("tensorflow.function", "builtins.staticmethod", "builtins.classmethod", "torch.jit.script")
_ANY = ("fire.Fire", "argh.dispatch_commands", "builtins.globals", "builtins.eval")

Way = tuple[cst.CSTNode, ...]
_MOST_WAYS = 64  # to one node


class Loops:
    """Answers where training happens, from the places of the updates that ``gradients`` knows."""

    def __init__(self, gradients: Gradients) -> None:
        """Look at the script of ``gradients``."""
        self.gradients = gradients
        self.script = gradients.script
        self.flow = gradients.flow
        self.kinds = gradients.kinds
        self._ways: dict[cst.CSTNode, list[Way]] = {}
        self.ends: list[cst.CSTNode] = [*(c for c, _ in gradients.step_calls), *gradients.updates]
        self.sites = Sites(gradients, self.ends)

    @cached_property
    def training(self) -> list[cst.For | cst.While]:
        """Return the loops that make gradients and update the weights (not those over optimizers or parameters).

        Nor those in which all calls of a function that updates only evaluate.
        """
        loops = [n for n in self.script.nodes if isinstance(n, LOOPS) and self.gradients.runs_step(n.body)]
        loops = [n for n in loops if not self.gradients.backwards or self.gradients.runs_backward(n.body)]
        passed = self._passed
        return [n for n in loops if passed is None or any(self.script.inside(each, n) for each in passed)]

    @cached_property
    def _passed(self) -> set[cst.CSTNode] | None:
        """What is passed on the ways to the updates; None where there are too many to tell."""
        ways = [self.ways(end) for end in self.ends]
        if any(len(each) == _MOST_WAYS for each in ways):
            return None
        return {n for each in ways for way in each for n in way}

    @cached_property
    def drawing(self) -> list[cst.For | cst.While]:
        """Return the loops that train by what they draw from: ``for loss in train(model):``, where train() yields.

        They make the iterations of the loop that yields, be it over batches or epochs.
        """
        loops = [n for n in self.script.nodes if isinstance(n, LOOPS) and not self.gradients.runs_step(n.body)]
        iterations = {n: (b for b in self.flow.bodies(n.body, drawn=True) if b is not n.body) for n in loops}
        loops = [n for n in loops if any(map(self.gradients.runs_step, iterations[n]))]
        return [n for n in loops if not isinstance(n, cst.For) or self._draws_updates(n)]

    def _draws_updates(self, loop: cst.For) -> bool:
        """Tell whether what ``loop`` runs over, if that is a generator, is called so that it updates."""
        made = {m for n in walk(loop.iter) if isinstance(n, (cst.Name, cst.Call)) for m in self.flow.through(n)}
        return self._passed is None or not self.flow.drawn(loop) or not self._passed.isdisjoint(made)

    @cached_property
    def asking(self) -> list[cst.For | cst.While]:
        """Return the loops whose iterations are steps that they ask for with ``next()``, of what they draw from."""
        bodies = {n: self.flow.bodies(n.body, drawn=True) for n in self.drawing if not self.flow.drawn(n)}
        return [n for n in bodies if not any(self.script.inside(t, b) for t in self.turning for b in bodies[n])]

    @cached_property
    def turning(self) -> list[cst.For | cst.While]:
        """Return the loops that train, by what they do or by what they draw from, in source order."""
        return sorted((*self.training, *self.drawing), key=lambda loop: self.script.order[loop])

    @cached_property
    def accumulating(self) -> list[cst.For | cst.While]:
        """Return the loops that add up gradients for an update that comes after them."""
        loops = [n for n in self.script.nodes if isinstance(n, LOOPS) and n not in self.turning]
        return [n for n in loops if self.gradients.runs_backward(n.body)]

    @cached_property
    def unrolled(self) -> list[cst.For | cst.While]:
        """Return the loops within training that compute parts of a loss, or what it is made of: of a text, an episode.

        ``for t in range(length): loss = loss + criterion(cell(x[t]), y[t])``, and ``loss.backward()`` after it.
        """
        inner = [n for n in self.script.nodes if isinstance(n, LOOPS) and n not in self.turning]
        return [n for n in inner if n not in self.accumulating and self._is_within(n) and self._leads_back(n)]

    def _is_within(self, loop: cst.CSTNode) -> bool:
        return any(up in self.turning or up in self.gradients.leads_to_backward for up in self.script.above(loop))

    def _leads_back(self, loop: cst.For | cst.While) -> bool:
        """Tell whether gradients go back through what models compute in ``loop``."""
        calls = {n for body in self.flow.bodies(loop.body) for n in walk(body) if isinstance(n, cst.Call)}
        made = [c for c in self.kinds.module_calls if c in calls and not without_gradients(self.script, c)]
        return bool(made) and any(map(Taint(self.script, self.kinds, made), losses(self.script)))

    def unreached(self) -> cst.FunctionDef | None:
        """Return a function that trains and that nothing in the file runs, if no chain of calls starts elsewhere."""
        lost: cst.FunctionDef | None = None
        for node in self.ends:
            for way in self.ways(node):
                function = self.script.function_of(way[0])
                if not isinstance(function, cst.FunctionDef) or (self.script.acts and self._mentioned(function)):
                    return None
                lost = lost or function
        return lost

    def _mentioned(self, function: cst.FunctionDef) -> bool:
        """Tell whether ``function``, or the class it is a method of, is named outside itself, decorated, or implied."""
        owner = self.script.class_of(function)
        definition = owner if owner is not None else function
        name = definition.name.value
        decorators = [d.decorator for d in (*function.decorators, *definition.decorators)]
        called = [self.script.name_of(d.func if isinstance(d, cst.Call) else d) for d in decorators]
        if any(n not in _COMPILES for n in called) or self._implied(definition):
            return True
        return any(
            not self.script.inside(use, definition) and not isinstance(self.script.parents[use], cst.ImportAlias)
            for use in self.script.named(name)
            if use is not definition.name and not self._is_other(use)
        )

    def _implied(self, definition: cst.FunctionDef | cst.ClassDef) -> bool:
        """Tell whether something outside it runs ``definition`` without its name: ``tf.app.run()`` runs main()."""
        for call in self.script.calls:
            called = self.script.name_of(call.func)
            implies = (called in _MAINS and definition.name.value == "main") or called in _ANY
            if implies and not call.args and not self.script.inside(call, definition):
                return True
        return False

    def _is_other(self, use: cst.Name) -> bool:
        """Tell whether ``use`` is an attribute of something else: ``model.train`` is no use of a function ``train``."""
        up = self.script.parents[use]
        return isinstance(up, cst.Attribute) and up.attr is use and self.script.member(up) is None

    def in_training(self, node: cst.CSTNode, depth: int = 3) -> bool:
        """Tell whether ``node`` runs in a loop, or a function, that also makes gradients; or that only such call."""
        for up in self.script.above(node):
            if isinstance(up, LOOPS) and up not in self.accumulating and up not in self.parts:
                return up in self.turning
            if isinstance(up, cst.FunctionDef):
                calls = self.flow.callers(up) if depth and up not in self.gradients.leads_to_backward else []
                trains = (self.in_training(call, depth - 1) and not self._beside(call) for call in calls)
                return up in self.gradients.leads_to_backward or (bool(calls) and all(trains))
        return False

    def _beside(self, call: cst.CSTNode) -> bool:
        """Tell whether ``call`` stands in a loop through epochs beside that through batches, and may evaluate."""
        around = next((up for up in self.script.above(call) if isinstance(up, (*LOOPS, cst.FunctionDef))), None)
        bodies = self.flow.bodies(around.body, 3) if isinstance(around, LOOPS) else ()
        return any(n in self.turning for body in bodies for n in walk(body))

    @cached_property
    def parts(self) -> list[cst.For | cst.While]:
        """Return the loops that are a part of a training step: that compute its loss, or go through its samples."""
        loops = [n for n in self.script.nodes if isinstance(n, LOOPS)]
        return [n for n in loops if n in self.unrolled or self._goes_on_with_the_batch(n)]

    def _goes_on_with_the_batch(self, inner: cst.For | cst.While) -> bool:
        """Tell whether ``inner`` is in a training loop, and reads the samples that it takes: ``range(len(y))``."""
        around = next((up for up in self.script.above(inner) if isinstance(up, LOOPS)), None)
        if inner in self.turning or around not in self.turning or not isinstance(around, cst.For):
            return False
        if isinstance(inner, cst.For) and self.flow.runs_each(inner):
            return False
        target: cst.BaseExpression = around.target
        called = self.script.name_of(around.iter.func) if isinstance(around.iter, cst.Call) else ""
        if called == "builtins.enumerate" and isinstance(target, cst.Tuple) and len(target.elements) > 1:
            target = target.elements[1].value
        elif called in ("builtins.enumerate", "builtins.range"):
            return False
        taken = names_in(target) - (names_in(inner.target) if isinstance(inner, cst.For) else set())
        return any(isinstance(n, cst.Name) and n.value in taken for n in walk(inner))

    def ways(self, node: cst.CSTNode) -> list[Way]:
        """Return the ways from the outermost frame to ``node``: the calls passed, innermost last; of many the first.

        No way leads through a call that only evaluates.
        """
        if node not in self._ways:
            self._ways[node] = self._to(node, ())[:_MOST_WAYS]
        return self._ways[node]

    def _to(self, node: cst.CSTNode, seen: tuple[cst.CSTNode, ...]) -> list[Way]:
        function = self.script.function_of(node)
        if isinstance(function, cst.Module) or function in seen or len(seen) > 12:
            return [(node,)]
        callers = [c for c in self.flow.callers(function) if not self.script.inside(c, function)]
        callers = [c for c in callers if self.sites.reaches(c, function, node)] or callers
        return [(*way, node) for call in callers for way in self._to(call, (*seen, function))] or [(node,)]

    @cached_property
    def nests(self) -> list[tuple[Way, list[cst.For | cst.While]]]:
        """The ways to the updates, each with the training loops on it, innermost first; none on those to a search."""
        ways = [way for end in self.ends for way in self.ways(end)]
        above = [[u for n in reversed(way) for u in self.script.above(n) if isinstance(u, LOOPS)] for way in ways]
        return [
            (way, [u for u in us if u in self.training and not self.gradients.is_search(way[-1])])
            for way, us in zip(ways, above, strict=True)
        ]

    @cached_property
    def searches(self) -> list[cst.CSTNode]:
        """The lines, in no loop, in which an optimizer runs a closure until it is content: ``lbfgs.step(closure)``."""
        looped = {way[-1] for way, us in self.nests if us}
        steps = [way[-1] for way, _ in self.nests if way[-1] not in looped]
        runs = (
            n
            for n in steps
            if isinstance(n, cst.Call)
            and (self.gradients.is_search(n) or any(self.gradients.runs_backward(f.body) for f in self.flow.targets(n)))
        )
        return list(dict.fromkeys(self.script.line_of(self.script.statement_of(n)) for n in runs))
