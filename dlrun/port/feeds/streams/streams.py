"""Data that form a stream: what a loop goes through in order while it hands a state on, and where it can be cut."""

from __future__ import annotations

from collections.abc import Collection, Iterator

import libcst as cst

from dlrun.port.facts import Feed
from dlrun.port.facts.loops import Loops
from dlrun.port.feeds.streams.cursors import Pick, draws, picks
from dlrun.port.program.script import Binding, Scope, dotted, walk

# What makes data of another type and keeps how many entries there are along axis 0.
_AS_LONG = (
    "builtins.list",
    "builtins.tuple",
    "torch.tensor",
    "torch.as_tensor",
    "torch.from_numpy",
    "torch.LongTensor",
    "numpy.array",
    "numpy.asarray",
    "torch.unsqueeze",
)
LENGTHS = ("size", "shape", "nelement", "numel", "dtype", "ndim")


class UncutError(Exception):
    """Why a stream cannot be cut, at ``node``."""

    def __init__(self, node: cst.CSTNode, why: str) -> None:
        super().__init__(why)
        self.node = node


class Streams:
    """Finds the streams of one training loop."""

    def __init__(self, loops: Loops, loop: cst.For | cst.While, readers: Collection[str] = ()) -> None:
        """Look at ``loop``; attributes of ``readers`` count what is left of their data."""
        self.loops, self.loop, self.readers = loops, loop, readers
        self.script, self.flow, self.kinds = loops.script, loops.flow, loops.kinds

    def find(self) -> dict[cst.CSTNode, Feed]:
        """Return the streams, one a variable, by an expression of each; raises UncutError where none can be cut."""
        found: dict[tuple[int, str], tuple[Pick, Feed]] = {}
        taken = [pick for pick in picks(self.flow, self.loop) if not self._is_record(pick)]
        random = draws(self.flow, self._frame(), [*(s for p in taken for s in p.steered), self._bound()])
        for pick in taken:
            name = dotted(pick.data)
            scope = self.script.scopes[pick.data].lookup(name)[1]
            before, feed = found.get((id(scope), name), (pick, None))
            if before.axis != pick.axis:
                raise UncutError(pick.data, f"{name} is sliced along axis {before.axis} and axis {pick.axis}")
            found[id(scope), name] = (before, feed or self._stream(pick, random))
        if not found:
            raise UncutError(self.loop, "this loop takes no slices, where it has come to, of data made before it")
        return {pick.data: feed for pick, feed in found.values()}

    def _bound(self) -> cst.BaseExpression:
        return self.loop.iter if isinstance(self.loop, cst.For) else self.loop.test

    def _is_record(self, pick: Pick) -> bool:
        """Tell whether the loop itself fills what is sliced: ``losses[step - 100:step]``."""
        name = dotted(pick.data)
        for n in walk(self.loop.body):
            fills = isinstance(n, cst.Attribute) and n.attr.value in ("append", "extend") and dotted(n.value) == name
            sets = isinstance(n, cst.AssignTarget) and isinstance(n.target, cst.Subscript)
            if fills or (sets and dotted(n.target.value) == name):  # type: ignore[attr-defined]
                return True
        return False

    def _frame(self) -> cst.CSTNode:
        """Return the function that holds the loop, or the outermost training loop around it in a module."""
        mine = self.script.function_of(self.loop)
        outer = [u for u in self.script.above(self.loop) if u in self.loops.training]
        return mine if isinstance(mine, cst.FunctionDef) else [self.loop, *outer][-1]

    # -- which variable -----------------------------------------------------------------------------------------

    def _stream(self, pick: Pick, random: tuple[cst.Call, ...]) -> Feed:
        """Return where the data of ``pick`` are cut: as far out as they are only trained on."""
        places, failed = self._places(pick), None
        for name, scope in reversed(places):
            try:
                return self._cut(name, scope, pick.axis, random)
            except UncutError as error:
                failed = failed or error
        raise failed or UncutError(pick.data, f"{self.script.code(pick.data)} comes from out of sight")

    def _places(self, pick: Pick) -> list[tuple[cst.Name, Scope]]:
        """Return names of the data, with the scopes that hold them: the loop's own, then those that pass them to it."""
        node: cst.BaseExpression = pick.data
        found: list[tuple[cst.Name, Scope]] = []
        while isinstance(node, cst.Name) and len(found) < 5:
            bindings, scope = self.script.scopes[node].lookup(node.value)
            function = scope.node if scope is not None else None
            if scope is None or scope.root is not self.script.root:
                break
            if any(b.how not in ("assign", "param") or isinstance(b.node, (cst.For, cst.WithItem)) for b in bindings):
                break
            trains, evaluates = self.loops.sites.split(self.loop, node)
            if not evaluates:
                found.append((node, scope))
            if not isinstance(function, cst.FunctionDef) or any(b.how != "param" for b in bindings):
                break
            given = trains or [g for c in self._calls(function) if (g := self.flow.argument(c, function, node.value))]
            if len({dotted(g) for g in given}) != 1:
                break
            node = given[0]
        if not found and not isinstance(node, cst.Name):
            raise UncutError(node, f"its data are in {self.script.code(node)}, which cannot be cut from here")
        return found

    def _calls(self, function: cst.FunctionDef) -> list[cst.Call]:
        """Return the calls of ``function`` on the ways to this loop."""
        ways = [w for end in self.loops.ends for w in self.loops.ways(end)]
        callers = self.flow.callers(function)
        return [call for call in callers if any(call in way for way in ways)]

    # -- where --------------------------------------------------------------------------------------------------

    def _cut(self, name: cst.Name, scope: Scope, axis: int, random: tuple[cst.Call, ...]) -> Feed:
        bindings = scope.names[name.value]
        for b in bindings:
            if b.how == "assign" and any(up in self.loops.training for up in self.script.above(b.node)):
                raise UncutError(b.node, f"{name.value} is made anew within the training loop")
        anchor, last = self._anchor(scope), max(bindings, key=lambda b: self.script.order[b.node])
        made = {n for b in bindings for n in walk(b.node)}
        inside = self._reached()
        others = [
            u
            for u in self._uses(name.value, scope)
            if u not in made and not self._is_length(u) and not any(self.script.inside(u, body) for body in inside)
        ]
        earlier = [u for u in others if anchor is not None and self._earlier(u, scope, anchor)]
        if (reader := next((u for u in others if u not in earlier and self._evaluates(u)), None)) is not None:
            raise UncutError(reader, f"{name.value} is evaluated, too, which needs all of it")
        later = any(self.script.order[u] > self.script.order[last.node] for u in earlier)
        place: cst.CSTNode | None = anchor
        if not later and last.how != "param" and self._always(last.node, scope):
            place = self.script.line_of(self.script.statement_of(last.node))
        if place is None:
            raise UncutError(last.node, f"nothing shows where the training on {name.value} begins")
        again = self._again(name, scope, last, place)
        return Feed(place, "stretches", (name.value,), axis=axis, before=place is anchor, again=again, draws=random)

    def _anchor(self, scope: Scope) -> cst.CSTNode | None:
        """Return the statement of ``scope`` that leads to the loop: the outermost loop around it, or around a call."""
        home = scope.node
        for end in (e for e in self.loops.ends if self._runs(e)):
            for way in self.loops.ways(end):
                for node in (*way[:-1], self.loop if self.script.inside(end, self.loop) else way[-1]):
                    if self.script.function_of(node) is home:
                        outer = self.script.outermost_loop(node)
                        node = node if node in self.loops.training else self.script.statement_of(node)
                        return self.script.line_of(outer or node)
        return None

    def _runs(self, end: cst.CSTNode) -> bool:
        """Tell whether the update ``end`` happens within this loop."""
        nodes = (n for way in self.loops.ways(end) for n in way)
        return any(self.script.inside(n, self.loop) for n in nodes)

    def _always(self, made: cst.CSTNode, scope: Scope) -> bool:
        """Tell whether ``made`` is a line of its own in the body of ``scope``, where a line can follow it."""
        line = self.script.line_of(self.script.statement_of(made))
        up = self.script.parents[line]
        body = scope.node.body if isinstance(scope.node, cst.FunctionDef) else scope.node
        return isinstance(line, cst.SimpleStatementLine) and up is body

    def _reached(self) -> list[cst.CSTNode]:
        """Return the loop and the bodies of the functions that it runs."""
        found: list[cst.CSTNode] = [self.loop]
        for body in found:
            for n in walk(body):
                for target in self.flow.targets(n) if isinstance(n, cst.Call) else ():
                    if target not in found and not any(self.script.inside(self.loop, f) for f in (target,)):
                        found.append(target)
        return found

    def _uses(self, name: str, scope: Scope) -> Iterator[cst.Name]:
        for n in self.script.names_of(name, scope):
            if not self.script.is_part(n) and not isinstance(self.script.parents[n], (cst.NameItem, cst.Param)):
                yield n

    def _earlier(self, use: cst.CSTNode, scope: Scope, anchor: cst.CSTNode) -> bool:
        home = self.script.function_of(use) is scope.node
        return home and self.script.order[use] < self.script.order[anchor]

    def _is_length(self, use: cst.Name) -> bool:
        up = self.script.parents[use]
        if isinstance(up, cst.Attribute):
            return up.attr.value in LENGTHS
        call = self.script.parents.get(up)
        return isinstance(call, cst.Call) and self.script.name_of(call.func) in ("builtins.len", "builtins.type")

    def _evaluates(self, use: cst.Name) -> bool:
        """Tell whether ``use`` hands the data to something that runs a model: a function, or a loop over them."""
        for up in self.script.above(use):
            if isinstance(up, cst.Call):
                if self._is_model(up):
                    return True
                bodies = [t.body for t in self.flow.targets(up) if not self.script.inside(self.loop, t)]
                if any(self._models(body) for body in bodies):
                    return True
            if isinstance(up, cst.For) and up is not self.loop and up not in self.loops.training:
                return self._models(up.body)
            if isinstance(up, (cst.FunctionDef, cst.Module)):
                outside = isinstance(up, cst.FunctionDef) and not self.script.inside(self.loop, up)
                return outside and self._models(up)
        return False

    def _models(self, body: cst.CSTNode) -> bool:
        return any(isinstance(n, cst.Call) and self._is_model(n) for n in walk(body))

    def _is_model(self, call: cst.Call) -> bool:
        """Tell whether ``call`` computes with a model: it calls one, or runs the graph of a session."""
        runs = isinstance(call.func, cst.Attribute) and call.func.attr.value in ("run", "eval", "predict", "evaluate")
        return self.kinds.of(call.func) == "module" or (runs and bool(call.args))

    # -- what counts its entries --------------------------------------------------------------------------------

    def _again(self, name: cst.Name, scope: Scope, last: Binding, place: cst.CSTNode) -> tuple[tuple[str, str], ...]:
        """Return the names that hold the length of the whole data when they are cut, and how to compute them again."""
        found: list[tuple[str, str]] = []
        at = self.script.order[place]
        for other, bindings in scope.names.items():
            for b in bindings:
                value = b.written
                if b.how != "assign" or value is None or self.script.order[b.node] >= at or b.node is last.node:
                    continue
                uses = [n for n in walk(value) if isinstance(n, cst.Name) and n.value == name.value]
                if not uses or not all(self._is_length(u) for u in uses) or not self._counts_in_loop(other, scope):
                    continue
                between = [c for c in scope.names[name.value] if self.script.order[c.node] > self.script.order[b.node]]
                if len(bindings) > 1 or not all(map(self._as_long, between)):
                    raise UncutError(b.node, f"{other} keeps how long {name.value} is before it is cut")
                found.append((other, self.script.code(value)))
        return tuple(found)

    def _counts_in_loop(self, name: str, scope: Scope) -> bool:
        """Tell whether the number ``name`` says how far training goes: it is used there, and not only printed."""
        outer = [self.loop, *(u for u in self.script.above(self.loop) if u in self.loops.training)][-1]
        for use in self._uses(name, scope):
            shown = any(
                isinstance(up, cst.Call) and self.script.name_of(up.func) == "builtins.print"
                for up in self.script.above(use)
            )
            bodies = [outer, *self._reached()]
            if not shown and any(self.script.inside(use, body) for body in bodies):
                return True
        return False

    def _as_long(self, binding: Binding) -> bool:
        """Tell whether ``binding`` gives the data another type only."""
        value = binding.value
        if binding.path or not isinstance(value, cst.Call):
            return False
        method = value.func.attr.value if isinstance(value.func, cst.Attribute) else ""
        return self.script.name_of(value.func) in _AS_LONG or method in ("to", "cuda", "long", "float", "tolist")

    def counts(self) -> bool:
        """Tell whether the loop counts to a number that does not come from the length of the data."""
        test = self._bound()
        return not self._from_length(test) and not (isinstance(test, cst.Name) and test.value == "True")

    def _from_length(self, node: cst.CSTNode, depth: int = 4) -> bool:
        for n in walk(node):
            if isinstance(n, cst.Attribute) and dotted(n.value) in self.readers:
                return True
            if isinstance(n, cst.Name):
                if self._is_length(n):
                    return True
                values = [b.written for b in self.script.bindings_of(n) if b.how == "assign"]
                if depth and any(v is not None and self._from_length(v, depth - 1) for v in values):
                    return True
        return False
