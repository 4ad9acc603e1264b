"""Full batches: the arrays that every step takes whole, found by following a loss back to where its data are made."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from functools import cached_property

import libcst as cst

from dlrun.port.facts.models.kinds import Kinds
from dlrun.port.facts.updates.session import runs_session
from dlrun.port.feeds import objects
from dlrun.port.feeds.chance import drawn
from dlrun.port.feeds.full.held import Held
from dlrun.port.feeds.plain import Plain
from dlrun.port.program.flow import Flow
from dlrun.port.program.script import Binding, Scope, dotted, names_in, walk

# Names of data whose entries hang together: one graph, not samples.
GRAPH = re.compile(
    r"(^|_)(adj|adjs|edge(?=_(?!loss))|edges|graph|laplacian|lap|idx_train|train_mask|train_idx)($|_)", re.IGNORECASE
)
_PLACES = re.compile(r"(^|_)(idx|index|indices|inds?)($|_)", re.IGNORECASE)  # numbers of entries
_OF_NODES = re.compile(r"(^|_)(idx_train|train_mask|train_idx)($|_)", re.IGNORECASE)  # or of samples
_MAKES_PLACES = re.compile(
    r"(^|\.)(split|permutation|randperm|arange|range|where|nonzero|flatnonzero|argwhere|argsort|choice|LongTensor)$"
)
_OF_SHAPES = re.compile(r"^(torch|numpy|tensorflow)\.(zeros|ones|empty|rand|randn)$")
# Methods of objects that hand out samples, and so are no arrays of them: data.get_batch(32).
_GIVES = re.compile(r"^(get|next|sample|draw|fetch)(_|$)")
_WEIGHTS = ("weight", "pos_weight", "class_weight", "class_weights")  # of a loss: one for each class
_OBJECTS = ("module", "optimizer", "loss", "loader", "scheduler", "scaler", "metric", "tape")


class Wholes:
    """The arrays behind the losses of one loop, by name; ``graph`` is a name that is no array of samples."""

    def __init__(
        self,
        kinds: Kinds,
        loop: cst.CSTNode,
        losses: list[cst.BaseExpression],
        reached: Collection[cst.FunctionDef] = (),
        at_times: Collection[cst.CSTNode] = (),
    ) -> None:
        """Follow ``losses`` through the bindings inside ``loop`` to names bound before it.

        And through the functions that it has ``reached`` to the attributes of their objects. What the loop runs
        ``at_times`` alone may give names another array.
        """
        self.kinds = kinds
        self.flow: Flow = kinds.flow
        self.script = kinds.script
        self.loop = loop
        self.home = self.script.scopes[loop]
        self.graph: cst.CSTNode | None = None
        self.arrays: dict[str, None] = {}
        self.left: list[cst.Name] = []  # data that reach the loss, and cannot be cut before the loop
        self.held = Held(kinds, reached)
        self.plain = Plain(kinds, self._is_trained)
        self.drawn: set[str] = set()  # of these, the ones that each process draws at random for itself
        self.at_times = at_times
        self.renewed: list[Binding] = []  # where arrays are drawn anew at times
        self.lost = False  # what is drawn at times is more than another array in place of one
        self.early: cst.CSTNode | None = None  # where such is drawn, which another line has made before
        self._seen: set[tuple[int, str]] = set()
        self._functions: set[cst.CSTNode] = set()
        self._known: dict[str, bool] = {}  # of names, whether an optimizer gets what they stand for
        for loss in losses:
            self._follow(loss)
        for name in [name for name in self.arrays if self._is_picked_from(name)]:
            del self.arrays[name]

    def _is_picked_from(self, name: str) -> bool:
        """Tell whether the loop takes nothing of ``name`` but entries at places that are sharded: ``x[places]``."""
        uses = [use for use in self.uses(name) if self.script.inside(use, self.loop)]
        return bool(uses) and all(map(self._at_places, uses))

    def _at_places(self, use: cst.Name) -> bool:
        part = self.script.parents[use]
        if not (isinstance(part, cst.Subscript) and part.value is use and isinstance(part.slice[0].slice, cst.Index)):
            return False
        places = part.slice[0].slice.value
        if not isinstance(places, cst.Name) or places.value not in self.arrays:
            return False
        made = [o.node for o in self.flow.origins(places)]
        calls = [m.func for m in made if isinstance(m, cst.Call)]
        names = [f.attr.value if isinstance(f, cst.Attribute) else self.script.name_of(f) for f in calls]
        return any(map(_MAKES_PLACES.search, names)) or bool(_PLACES.search(places.value))

    def _follow(self, node: cst.CSTNode) -> None:
        # Functions that read globals see those that are cut before a loop of the module.
        for call in (n for n in walk(node) if isinstance(n, cst.Call)):
            for target in self.flow.targets(call):
                cls = self.script.class_of(target)
                own = cls is None or (target in self.held.reached and self.flow.is_plain(cls))
                if target not in self._functions and own:
                    self._functions.add(target)
                    for value in self.flow.returns(target):
                        self._follow(value)
        for n in walk(node) if self.held.reached else ():
            if isinstance(n, cst.Attribute):
                self._attribute(n)
        for name in self._data_names(node):
            bindings, scope = self.script.scopes[name].lookup(name.value)
            if scope is None or (id(scope), name.value) in self._seen:
                continue
            self._seen.add((id(scope), name.value))
            if GRAPH.search(name.value) and not self._picks_samples(name, scope):
                self.graph = name
            self._through(name, bindings, scope)

    def _picks_samples(self, name: cst.Name, scope: Scope) -> bool:
        """Tell whether ``name`` numbers samples, ``x[train_idx]``, and no nodes: ``model(x, adj)[train_idx]``."""
        if not _OF_NODES.search(name.value):
            return False
        indexed, gone_through = list[cst.BaseExpression](), False
        for use in self.uses(name.value, scope):
            up = next((u for u in self.script.above(use) if isinstance(u, (cst.Subscript, cst.For, cst.CompFor))), None)
            if isinstance(up, cst.Subscript) and not self.script.inside(use, up.value):
                indexed.append(up.value)
            gone_through |= isinstance(up, (cst.For, cst.CompFor)) and up.iter is use
        made = [o.node for value in indexed for o in self.flow.origins(value)]
        computed = any(isinstance(m, cst.Call) and self.kinds.of(m.func) == "module" for m in (*indexed, *made))
        return bool(indexed or gone_through) and not computed

    def _attribute(self, node: cst.Attribute) -> None:
        """Follow, or note, what an object keeps: not what an optimizer gets, nor what is called."""
        key, up = (id(self.script.class_of(node)), dotted(node)), self.script.parents.get(node)
        called = isinstance(up, cst.Call) and up.func is node
        if key in self._seen or called or self.held.set_by(node) is None:
            return
        self._seen.add(key)
        if self._is_trained(node.attr.value) or self.kinds.of(node) in _OBJECTS:
            return
        made = self.held.set_by(node) or []
        again = [n for n in made if self._is_at_times(n)]
        apart = [n for n in again if self.script.function_of(n) is not self.script.function_of(self.loop)]
        kept = len(apart) == len(made) == 1  # one line draws them, before the training and anew
        if again and not kept:
            self.lost, self.early = True, self.early or (again[0] if len(made) > 1 else None)
        if not kept and (inner := self.held.follows(node)):
            for value in inner:
                self._follow(value)
        elif any(isinstance(o.node, cst.Param) for o in self.flow.origins(node)):
            self.held.scattered = self.held.scattered or node  # nothing tells what it is
        elif not self.plain(node):
            self.held.note(node)
            if any(drawn(self.flow, o.node) for o in self.flow.origins(node)):
                self.drawn.add(dotted(node))

    def _data_names(self, node: cst.CSTNode) -> Iterator[cst.Name]:
        """Yield the names in ``node`` that stand for values: not attributes, keywords, modules, or what is called.

        None of a session's run, ``state = sess.run(zero_state)``: what that returns is of the graph.
        """
        runs = [n for n in walk(node) if isinstance(n, cst.Call) and runs_session(n)]
        for n in walk(node):
            if isinstance(n, cst.Name) and not any(self.script.inside(n, run) for run in runs):
                up = self.script.parents.get(n)
                attribute = isinstance(up, cst.Attribute) and up.attr is n
                keyword = isinstance(up, cst.Arg) and up.keyword is n
                weight = isinstance(up, cst.Arg) and up.keyword is not None and up.keyword.value in _WEIGHTS
                called = isinstance(up, cst.Call) and up.func is n
                gives = isinstance(up, cst.Attribute) and up.value is n and _GIVES.search(up.attr.value)
                if attribute and GRAPH.search(n.value):  # data.train_mask
                    self.graph = up
                foreign = self.script.name_of(n).startswith(("torch", "numpy", "builtins", "tensorflow", "keras"))
                moves_on = isinstance(up, cst.Arg) and self.script.name_of(self._called_with(up)) == "builtins.next"
                if not (attribute or keyword or weight or called or gives or foreign or moves_on or self._is_shape(up)):
                    yield n

    def _called_with(self, argument: cst.Arg) -> cst.CSTNode:
        call = self.script.parents[argument]
        return call.func if isinstance(call, cst.Call) else call

    def _is_shape(self, argument: cst.CSTNode | None) -> bool:
        """Tell whether ``argument`` is the shape of an array that is filled later: ``np.zeros(shape)``."""
        call = self.script.parents.get(argument) if isinstance(argument, cst.Arg) else None
        return isinstance(call, cst.Call) and bool(_OF_SHAPES.search(self.script.name_of(call.func)))

    def _through(self, name: cst.Name, bindings: list[Binding], scope: Scope) -> None:
        defined = any(b.how in ("def", "class", "import") for b in bindings)
        if defined or self._is_trained(name.value) or self.kinds.of(name) in _OBJECTS:
            return
        if objects.is_object(self.flow, name):
            self.left += objects.keeping(self.flow, self.uses(name.value, scope), self.plain)
            return
        made = [b for b in bindings if b.how == "assign" and b.value is not None]
        again = [b for b in made if self._is_at_times(b.node)]
        if again and not self.plain(name):
            self.lost = self.lost or scope is not self.home or len(again) == len(made)
            self.lost = self.lost or not all(self.script.inside(b.node, self.loop) for b in again)
            self.renewed += again
            made = [b for b in made if b not in again]
        inside = [b for b in made if self.script.inside(b.node, self.loop) or scope is not self.home]
        if any(b.how == "param" for b in bindings):
            if scope is self.home:
                self._given(name)
            for function in [b.node for b in bindings if b.how == "param"]:
                self._arguments(function, name.value)
        elif made and not inside:
            if not self.plain(name):
                self._array(name, made)
        elif scope is scope.root and scope is not self.home:
            if made and not self.plain(name):  # a global of a function: it cannot be given another value there
                if self.script.inside(name, self.loop):
                    self._array(name, made)
                else:
                    self.left.append(name)
            return
        for binding in inside:
            if binding.value is not None:
                self._follow(binding.value)

    def _is_at_times(self, node: cst.CSTNode) -> bool:
        """Tell whether the loop runs ``node`` at times alone."""
        return any(self.script.inside(node, up) for up in self.at_times)

    def _is_trained(self, name: str) -> bool:
        """Tell whether an optimizer gets what ``name`` stands for."""
        if name not in self._known:
            self._known[name] = any(self.kinds.of_call(call) == "optimizer" for call in self._given_to.get(name, ()))
        return self._known[name]

    @cached_property
    def _given_to(self) -> dict[str, list[cst.Call]]:
        """The calls that get a name in their first argument."""
        found: dict[str, list[cst.Call]] = {}
        for call in self.script.calls:
            for name in names_in(call.args[0].value) if call.args else ():
                found.setdefault(name, []).append(call)
        return found

    def bindings(self, name: str) -> list[Binding]:
        """Return what the array ``name`` is bound to."""
        return self.home.lookup(name)[0]

    def uses(self, name: str, scope: Scope | None = None) -> list[cst.Name]:
        """Return the expressions that read the array ``name``, in source order."""
        scope = scope or self.home.lookup(name)[1]
        script = self.script
        targets = (cst.AssignTarget, cst.Param)
        return [
            n
            for n in script.names_of(name, scope)
            if not script.is_part(n) and not isinstance(script.parents[n], targets)
        ]

    def _array(self, name: cst.Name, made: list[Binding]) -> None:
        self.arrays.setdefault(name.value)
        if any(b.value is not None and drawn(self.flow, b.value) for b in made):
            self.drawn.add(name.value)

    def _given(self, name: cst.Name) -> None:
        """Note a parameter of the function that holds the loop: an array, where its callers pass data."""
        origins = [o.node for o in self.flow.origins(name)]
        if not self.plain(name) and not any(isinstance(o, (cst.Param, cst.Attribute)) for o in origins):
            self.arrays.setdefault(name.value)
        elif any(isinstance(o, cst.Param) for o in origins) and name.value not in ("self", "cls"):
            if self._is_method_of_unknown():  # the layers of a list: cut at each call, and that for the loop alone
                self.arrays.setdefault(name.value)
                self.drawn.add(name.value)
            else:
                self.left.append(name)  # nothing tells what it is

    def _is_method_of_unknown(self) -> bool:
        """Tell whether the loop is in a method that only objects of unknown kind are asked for: ``layer.train(x)``."""
        function = self.script.function_of(self.loop)
        if not isinstance(function, cst.FunctionDef) or self.script.class_of(function) is None:
            return False
        called = [
            c
            for c in self.script.calls
            if isinstance(c.func, cst.Attribute) and c.func.attr.value == function.name.value
        ]
        return not self.flow.callers(function) and any(len(c.args) > 1 for c in called)

    def _arguments(self, param: cst.CSTNode, name: str) -> None:
        function = self.script.scopes[param].node
        if isinstance(function, cst.FunctionDef) and function not in self._functions:  # else they were in the call
            for call in self.flow.callers(function):
                value = self.flow.argument(call, function, name)
                if value is not None and self.script.inside(call, self.loop):
                    self._follow(value)
