"""The outermost training loops, and what is in sight before them: models and optimizers to start alike."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace
from functools import cached_property

import libcst as cst

from dlrun.port.facts import Conditional, Top
from dlrun.port.facts.loops import Loops
from dlrun.port.facts.models.boxes import boxed
from dlrun.port.facts.models.conditional import conditional
from dlrun.port.facts.models.copies import copied, held, is_list_of_copies
from dlrun.port.facts.numbers.computed import given
from dlrun.port.facts.torch import LOOPS
from dlrun.port.program.onward import Origin
from dlrun.port.program.script import Binding, Scope, calls_method, dotted, walk


class Tops:
    """Finds where training begins, from the calls that lead to the updates of ``loops``."""

    def __init__(self, loops: Loops) -> None:
        self.loops = loops
        self.gradients = loops.gradients
        self.script = loops.script
        self.flow = loops.flow
        self.kinds = loops.kinds
        self._copies: dict[cst.ClassDef, set[str]] = {}
        self._names: dict[cst.CSTNode, set[str]] = {}  # that a function's body holds

    def found(self) -> tuple[Top, ...]:
        """Return the outermost loops before which all that is trained is in sight, where training begins."""
        found: dict[cst.CSTNode, Top] = {}
        ways: dict[cst.CSTNode, list[tuple[cst.CSTNode, ...]]] = {}
        for node in self.loops.ends:
            for way in self.loops.ways(node):
                top = self._top(way, node)
                if top is not None:
                    found[top.loop] = _joined(found.get(top.loop, top), top)
                    ways.setdefault(top.loop, []).append(way)
        tops = sorted(found.values(), key=lambda t: self.script.order[t.loop])
        begin = (t for t in tops if not all(self._goes_on(t, way, tops) for way in ways[t.loop]))
        return tuple(replace(t, conditional=self._conditional(t)) for t in begin)

    def _conditional(self, top: Top) -> tuple[Conditional, ...]:
        return conditional(self.loops, top.loop, top.things, self._made_before, self._sorted)

    def _goes_on(self, top: Top, way: tuple[cst.CSTNode, ...], others: list[Top]) -> bool:
        """Tell whether ``way`` leads to ``top`` through a call after another loop that has trained the same."""
        script = self.script
        for call in way[:-1] if len(others) > 1 else ():
            function, after = script.function_of(call), script.order[call]
            made = [
                script.order[n]
                for n in script.of(cst.Assign)
                if script.function_of(n) is function and any(dotted(t.target) in top.things for t in n.targets)
            ]
            for other in others:
                begun = script.order[other.loop]
                above = script.parents[other.loop]
                always = function in (above, script.parents.get(above))
                same = set(top.things) <= set(other.things)
                again = any(begun < at < after for at in made)
                beside = script.function_of(other.loop) is function and not script.inside(call, other.loop)
                if beside and always and same and begun < after and not again:
                    return True
        return False

    def _top(self, way: tuple[cst.CSTNode, ...], end: cst.CSTNode) -> Top | None:
        fallback: Top | None = None
        functions = [self.script.function_of(n) for n in way]
        search = self.script.line_of(self.script.statement_of(end)) in self.loops.searches
        for node in way:
            function = self.script.function_of(node)
            around = [self.script.line_of(self.script.statement_of(node))] if search else self.script.above(node)
            loops = [n for n in around if search or (isinstance(n, LOOPS) and self.script.function_of(n) is function)]
            if not loops and node is not way[0] and fallback is None:
                continue
            for loop in reversed(loops):
                if self._makes_model(loop, end):
                    continue  # another model in each iteration: it is in sight before a loop further in
                models, optimizers = self._in_sight(function, loop, functions)
                alone = optimizers and fallback is None and not self._modules_made_in(functions)
                if models or alone:
                    return Top(loop, (*models, *optimizers), optimizers)
                if optimizers and fallback is None:
                    fallback = Top(loop, optimizers, optimizers)
        return fallback

    def _makes_model(self, loop: cst.CSTNode, end: cst.CSTNode) -> bool:
        """Tell whether ``loop`` makes, for the update ``end``, an optimizer and the model whose weights that gets."""
        script = self.script
        made = [
            o.node for call, optimizer in self.gradients.step_calls if call is end for o in self.flow.origins(optimizer)
        ]
        given = [
            n
            for c in made
            if isinstance(c, cst.Call) and script.inside(c, loop)
            for a in c.args[:1]
            for n in walk(a.value)
            if isinstance(n, cst.Name)
        ]
        return any(self._is_model_of(loop, name) for name in given)

    def _is_model_of(self, loop: cst.CSTNode, name: cst.Name) -> bool:
        """Tell whether ``name`` is a module that is made in ``loop`` alone."""
        made = [b.node for b in self.script.bindings_of(name) if b.how == "assign"]
        return self.kinds.of(name) == "module" and bool(made) and all(self.script.inside(n, loop) for n in made)

    def _modules_made_in(self, functions: list[cst.FunctionDef | cst.Module]) -> bool:
        return any(
            b.how == "assign" and b.value is not None and not b.path and self.kinds.of(b.value) == "module"
            for f in functions
            for s in [self.script.scopes[f.body if isinstance(f, cst.FunctionDef) else f]]
            for bs in s.names.values()
            for b in bs
        )

    def _in_sight(
        self, function: cst.FunctionDef | cst.Module, loop: cst.CSTNode, functions: list[cst.FunctionDef | cst.Module]
    ) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return the names of the modules and of the optimizers that are bound before ``loop`` in ``function``."""
        script = self.script
        scope = script.scopes[function.body if isinstance(function, cst.FunctionDef) else function]
        places = [scope] if scope is scope.root else [scope, scope.root]
        inner = functions[functions.index(function) :]
        bodies: list[cst.CSTNode] = [f.body for f in inner if isinstance(f, cst.FunctionDef)] or [scope.root.node]
        used = {name for body in bodies for name in self._named(body)}
        candidates: list[tuple[str, cst.CSTNode]] = []
        for place in places:
            for name, bindings in place.names.items():
                hidden = name in scope.names or name not in used  # `_, hits = out.max(1)` hides a model called `_`
                if any(name == c for c, _ in candidates) or (place is not scope and hidden):
                    continue
                bound = any(b.how == "assign" or script.inside(b.node, loop) for b in bindings)
                if place is scope and bound and not self._made_before(bindings, loop):
                    continue
                there, home = place.lookup(name)  # a name from a local module has the bindings of that module
                use = next(iter(script.names_of(name, home)), None)
                if use is not None and any(b.how in ("assign", "param") for b in there):
                    candidates.append((name, use))
        candidates.extend(self._held(scope, loop, inner))
        owner = script.class_of(function) if isinstance(function, cst.FunctionDef) else None
        if owner is not None:
            for (cls, attribute), bindings in script.attributes.items():
                further_in = (script.inside(b.node, loop) or script.function_of(b.node) in inner[1:] for b in bindings)
                before = cls is owner and not all(further_in)
                if before and bindings[0].value is not None:
                    made = self._use_of(owner, attribute) or bindings[0].value
                    candidates.append((f"self.{attribute}", made))
                    candidates.extend(self._parts(f"self.{attribute}", made, inner))
        candidates.extend(held(self.gradients, candidates))
        models, optimizers = self._sorted(candidates)
        bodies = [loop, *(f.body for f in inner[1:] if isinstance(f, cst.FunctionDef))]
        return (*models, *boxed(self.kinds, candidates, bodies, (*models, *optimizers))), optimizers

    def _named(self, body: cst.CSTNode) -> set[str]:
        """Return the names in ``body`` that are no function's own: those of a module."""
        if body not in self._names:
            named = [n for n in walk(body) if isinstance(n, cst.Name) and not self.script.is_part(n)]
            homes = [(n.value, self.script.scope_of(n)) for n in named]
            self._names[body] = {name for name, home in homes if home is None or home is home.root}
        return self._names[body]

    def _held(
        self, scope: Scope, loop: cst.CSTNode, functions: list[cst.FunctionDef | cst.Module]
    ) -> Iterator[tuple[str, cst.CSTNode]]:
        """Yield the attributes of objects in sight: of those whose methods train, and the copies that others keep.

        ``agent.net`` before ``agent.learn()``; ``ema.shadow``, a copy of the weights made before they are broadcast.
        """
        bodies = [loop, *(f.body for f in functions if isinstance(f, cst.FunctionDef))]
        used = {n.value for body in bodies for n in walk(body) if isinstance(n, cst.Name)}
        for name, bindings in scope.names.items():
            made = any(b.how == "assign" for b in bindings) and self._made_before(bindings, loop)
            if name not in used or not (made or (name != "self" and any(b.how == "param" for b in bindings))):
                continue
            use = next(iter(self.script.names_of(name, scope)), None)
            if use is not None:
                read = {dotted(n) for body in bodies for n in walk(body) if isinstance(n, cst.Attribute)}
                yield from self._parts(name, use, functions, read)

    def _parts(
        self,
        name: str,
        use: cst.CSTNode,
        functions: list[cst.FunctionDef | cst.Module],
        read: Collection[str] = (),
    ) -> Iterator[tuple[str, cst.CSTNode]]:
        """Yield the attributes of the object ``name`` of a class of the script's own, of which ``use`` is a use.

        Those that ``read`` names, ``agent.net``, and all where its methods train, or are among what ``read`` names.
        """
        owners = {self.script.class_of(f) for f in functions if isinstance(f, cst.FunctionDef)} - {None}
        for owner in self.flow.classes(use) if not self.kinds.of(use) else ():
            if self.kinds.of_bases(self.flow.bases(owner)):
                continue  # a module is in sight itself
            family = self.flow.lineage(owner)
            called = [n.rpartition(".")[2] for n in read if n.rpartition(".")[0] == name]
            trains, runs = not owners.isdisjoint(family), any(self.flow.method(owner, n) for n in called)
            for (cls, attribute), bindings in self.script.attributes.items():
                if not isinstance(cls, cst.ClassDef) or cls not in family:
                    continue
                inside = all(self.script.function_of(b.node) in functions for b in bindings)  # made further in
                made = self._use_of(cls, attribute) if not inside else None
                runs_it = runs and not all(map(self._is_named_outside, bindings))
                used = trains or runs_it or f"{name}.{attribute}" in read or attribute in self._copied(cls)
                if made is not None and used:
                    yield f"{name}.{attribute}", made

    def _is_named_outside(self, binding: Binding) -> bool:
        """Tell whether an attribute is an argument of its method, which all callers give by a name: in sight there."""
        values, function = list(given(self.flow, binding)), self.script.function_of(binding.node)
        if len(values) != 1 or not isinstance(values[0], cst.Name) or not isinstance(function, cst.FunctionDef):
            return False
        handed = [self.flow.argument(call, function, values[0].value) for call in self.flow.callers(function)]
        return bool(handed) and all(isinstance(each, cst.Name) for each in handed)

    def _copied(self, cls: cst.ClassDef) -> set[str]:
        if cls not in self._copies:
            self._copies[cls] = copied(self.script, cls)
        return self._copies[cls]

    def _use_of(self, cls: cst.ClassDef, attribute: str) -> cst.CSTNode | None:
        """Return an expression ``self.attribute`` in the methods of ``cls``."""
        named = (n for n in self.script.named(attribute) if isinstance(self.script.parents[n], cst.Attribute))
        found = (self.script.parents[n] for n in named if self.script.class_of(n) is cls)
        return next((a for a in found if dotted(a) == f"self.{attribute}"), None)

    def _made_before(self, bindings: list[Binding], loop: cst.CSTNode) -> bool:
        """Tell whether a binding before ``loop`` is sure to have run: not only under an ``if`` without ``else``."""
        script = self.script
        before = [b for b in bindings if script.order[b.node] < script.order[loop] and not script.inside(b.node, loop)]
        for b in before:
            for up in script.above(b.node):
                if isinstance(up, cst.If) and up.orelse is None and not script.inside(loop, up):
                    chain = script.parents[up]
                    if not (isinstance(chain, cst.If) and len(before) > 1):
                        break
                elif isinstance(up, (*LOOPS, cst.If)) and not script.inside(loop, up):
                    if not isinstance(up, cst.If) or self._other_way(up, b.node, before):
                        break
                elif isinstance(up, (cst.FunctionDef, cst.Module)):
                    return True
        return False

    def _other_way(self, test: cst.If, node: cst.CSTNode, before: list[Binding]) -> bool:
        """Tell whether the branch of ``test`` beside that of ``node`` binds nothing of ``before``, and goes on."""
        other = test.orelse if self.script.inside(node, test.body) else test.body
        if other is None or isinstance(other, cst.If):
            return False
        leaves = any(
            isinstance(n, (cst.Raise, cst.Return, cst.Assert)) or (isinstance(n, cst.Call) and "exit" in dotted(n.func))
            for n in walk(other)
        )
        return not leaves and not any(self.script.inside(b.node, other) for b in before)

    def _sorted(self, candidates: list[tuple[str, cst.CSTNode]]) -> tuple[tuple[str, ...], tuple[str, ...]]:
        modules: dict[tuple[object, ...], str] = {}
        optimizers: dict[tuple[object, ...], str] = {}
        key: tuple[object, ...]
        for name, node in candidates:
            kind = self.kinds.of(node)
            made = tuple(self.flow.origins(node))
            own = not made or any(self._makes_many(o.node) for o in made) or self._is_anew(node, made)
            part = name.count(".") > name.startswith("self.")  # of several objects each holds another
            own = own or (part and (len(made) > 1 or self._made_inside(node, made)))
            key = (name,) if own else made
            owner = self.script.class_of(node) if kind == "" and name.count(".") == 1 and name[:5] != "self." else None
            copies = owner is not None and name.rsplit(".", 1)[-1] in self._copied(owner)
            copies = copies or any(is_list_of_copies(self.script, o.node) for o in made)
            reads = any(calls_method(n, "parameters") for o in made for n in walk(o.node))  # a module's, then
            if kind == "module" or (name in self._by_hand and not reads) or copies:
                modules.setdefault(key, name)
            elif kind == "optimizer" or (
                kind == ""
                and self.kinds.is_optimizer(node)
                and any(dotted(o).rsplit(".", 1)[-1] == name.rsplit(".", 1)[-1] for _, o in self.gradients.step_calls)
            ):
                optimizers.setdefault(key, name)
        return tuple(modules.values()), tuple(optimizers.values())

    def _is_anew(self, node: cst.CSTNode, made: tuple[Origin, ...], depth: int = 4) -> bool:
        """Tell whether a function of the script makes what ``node`` stands for: with each call another object."""
        bound, ends = self._bindings(node), {origin.node for origin in made}
        values = [value for b in bound for value in given(self.flow, b)] if bound else [node]
        calls = any(isinstance(v, cst.Call) and v not in ends and self.flow.targets(v) for v in values)
        handed = [v for v in values if depth and isinstance(v, (cst.Name, cst.Attribute)) and v is not node]
        return calls or any(self._is_anew(value, made, depth - 1) for value in handed)  # def distill(teacher, student)

    def _bindings(self, node: cst.CSTNode) -> list[Binding]:
        """Return what binds the name ``node``, or the attribute ``self.node``."""
        return self.script.bindings_of(node) if isinstance(node, cst.Name) else self.script.kept_bindings(node)

    def _made_inside(self, node: cst.CSTNode, made: tuple[Origin, ...]) -> bool:
        """Tell whether the class in which ``node`` stands makes it: each of its objects has one of its own."""
        owner = self.script.class_of(node)
        return owner is not None and any(self.script.class_of(origin.node) is owner for origin in made)

    def _makes_many(self, node: cst.CSTNode) -> bool:
        """Tell whether ``node`` is made by a comprehension or a lambda: each of its values is an object of its own."""
        around = (u for u in self.script.above(node) if isinstance(u, (cst.ListComp, cst.Lambda, cst.FunctionDef)))
        return isinstance(next(around, None), (cst.ListComp, cst.Lambda))

    @cached_property
    def _by_hand(self) -> set[str]:
        """The names of the tensors, and of lists of them, that the script updates itself."""
        owners = [self.gradients.owner(update)[0] for update in self.gradients.updates]
        return {name for owner in owners for name in owner.removesuffix(".values()").strip("[]").split(", ")}


def _joined(one: Top, other: Top) -> Top:
    """Return ``one`` with the things that another way to its loop brings in sight, optimizers last."""
    optimizers = tuple(dict.fromkeys((*one.optimizers, *other.optimizers)))
    things = dict.fromkeys(t for t in (*one.things, *other.things) if t not in optimizers)
    return Top(one.loop, (*things, *optimizers), optimizers)
