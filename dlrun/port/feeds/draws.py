"""Samples that a script draws itself: at random, from a generator, or from an object that keeps its place."""

from __future__ import annotations

import re
from collections.abc import Iterator

import libcst as cst

from dlrun.port.facts.loops import Loops
from dlrun.port.feeds.iterated import Iterated
from dlrun.port.program.script import argument, dotted, walk

# Calls that draw samples: a loop that feeds on them gives every rank its own once the ranks' seeds differ.
DRAWS = re.compile(
    r"^(torch\.(rand|randn|randint|randperm|multinomial|normal|rand_like|randn_like)|"
    r"numpy\.random\.(rand|randn|randint|choice|permutation|uniform|normal|shuffle|random_sample|multivariate_normal|"
    r"standard_normal|lognormal|laplace|exponential|gamma|poisson)|"
    r"random\.(choice|choices|sample|shuffle|randint|randrange|uniform|gauss)|"
    r"tensorflow\.(compat\.v1\.)?random[._](uniform|normal|truncated_normal|shuffle)|"
    r"sklearn\.datasets\.make_\w+|pyDOE2?\.lhs)$|"
    r"\.(choice|permutation|sample|integers|next_batch|rvs)$"
)
# Calls that permute: where the loop then goes through the permutation, all ranks must use one and the same.
_PERMUTES = (
    "torch.randperm",
    "numpy.random.permutation",
    "random.sample",
    "tensorflow.random.shuffle",
    "keras.random.shuffle",
    "tensorflow.keras.random.shuffle",
)
_NUMBERS = ("builtins.range", "numpy.arange", "torch.arange")
# Methods whose results are no batches: the weights of a module, a tensor along its first axis.
_PARTS = (
    "parameters",
    "named_parameters",
    "children",
    "modules",
    "buffers",
    "view",
    "reshape",
    "transpose",
    "permute",
    "unbind",
    "chunk",
    "contiguous",
    "expand",
    "flip",
)
IN_PLACE = ("numpy.random.shuffle", "random.shuffle")

_SPANS = ("builtins.slice", "builtins.range", "numpy.arange", "torch.arange", "tensorflow.range", "itertools.islice")


class Draws:
    """Tells what running a piece of a script draws, through the functions that it calls."""

    def __init__(self, loops: Loops) -> None:
        """Answer for the script of ``loops``."""
        self.loops = loops
        self.script = loops.script
        self.flow = loops.flow
        self.iterated = Iterated(loops.flow)
        self._reached: dict[tuple[cst.CSTNode, int], tuple[cst.Call, ...]] = {}

    def reached(self, node: cst.CSTNode, depth: int = 4) -> tuple[cst.Call, ...]:
        """Return the calls that running ``node`` may make, through the functions of this script, each once."""
        if (node, depth) not in self._reached:
            inside = (n for body in self.flow.bodies(node, depth) for n in walk(body))
            self._reached[node, depth] = tuple(dict.fromkeys(n for n in inside if isinstance(n, cst.Call)))
        return self._reached[node, depth]

    def functions(self, node: cst.CSTNode) -> Iterator[cst.FunctionDef]:
        """Yield the functions of this script that running ``node`` may enter."""
        for call in self.reached(node):
            yield from self.flow.targets(call)

    def __call__(self, node: cst.CSTNode) -> bool:
        """Tell whether running ``node`` draws its own samples: at random, in turn, or with next() from a loader."""
        return any(self._drawing(node))

    def noise_alone(self, node: cst.CSTNode) -> bool:
        """Tell whether all that running ``node`` draws is in the shape of other values: ``torch.randn_like(mean)``."""
        return all(map(self.is_noise, self._drawing(node)))

    def is_noise(self, call: cst.Call) -> bool:
        """Tell whether ``call`` draws in the shape of other values: ``torch.randn(mean.size())``."""
        name, shape = self._name(call), list[cst.BaseExpression | None]()
        if re.search(r"^(torch|numpy\.random)\.randn?$", name):
            shape = [arg.value for arg in call.args if arg.keyword is None]
        elif re.search(r"^numpy\.random\.(normal|uniform)$", name):
            shape = [argument(call, "size", 2)]
        elif name.startswith("tensorflow."):
            shape = [argument(call, "shape", 0)]
        sizes = (dotted(n).rsplit(".", 1)[-1] for s in shape if s is not None for n in walk(s))
        return name.endswith("n_like") or any(size in ("shape", "size", "len") for size in sizes)

    def each_iteration(self, loop: cst.For | cst.While) -> tuple[cst.Call, ...]:
        """Return the calls that an iteration of ``loop`` may make: in its body, in the test of a ``while``.

        So does what ``iter(function, sentinel)`` calls.
        """
        head = loop.test if isinstance(loop, cst.While) else loop.iter
        called = (
            isinstance(head, cst.Call) and self.script.name_of(head.func) == "builtins.iter" and len(head.args) == 2
        )
        before = self.reached(head) if isinstance(loop, cst.While) or called else ()
        return (*before, *self.reached(loop.body))

    def random(self, node: cst.CSTNode) -> list[cst.Call]:
        """Return the calls, made by running ``node``, that draw samples at random."""
        return [call for call in self.reached(node) if DRAWS.search(self._name(call))]

    def _drawing(self, node: cst.CSTNode) -> Iterator[cst.Call]:
        for call in self.reached(node):
            if self.advanced(call) is not None or DRAWS.search(self._name(call)) or self.keeps_its_place(call):
                yield call

    def _name(self, call: cst.Call) -> str:
        return self.script.name_of(call.func) or f".{dotted(call.func)}"

    def advanced(self, call: cst.Call) -> cst.BaseExpression | None:
        """Return the iterator from which ``call`` draws samples with next(); None where it goes through no samples.

        A function that a training loop calls may go through the time steps of a tensor, or the weights of a module.
        """
        iterator = self.iterated.advanced(call)
        made = [o.node for o in self.flow.origins(iterator)] if iterator is not None else []
        while made and all(isinstance(n, cst.Call) and self.iterated.source(n) is not n for n in made):
            made = [o.node for n in made for o in self.flow.origins(self.iterated.source(n))]  # type: ignore[arg-type]
        home = self.script.function_of(call)
        computed = made and all(self.script.function_of(n) is home and self._is_part(n) for n in made)
        listed = isinstance(iterator, cst.Call) and made and all(isinstance(n, (cst.List, cst.Tuple)) for n in made)
        return None if computed or listed else iterator  # next(iter([a, b])) goes through nothing

    def _is_part(self, made: cst.CSTNode) -> bool:
        """Tell whether ``made`` computes a tensor, or lists the weights of a module."""
        if not isinstance(made, cst.Call):
            return isinstance(made, cst.BinaryOperation)
        method = made.func.attr.value if isinstance(made.func, cst.Attribute) else ""
        name = self.script.name_of(made.func)
        computes = name.startswith("torch.") and not name.startswith("torch.utils.")
        return method in _PARTS or computes or self.loops.kinds.of(made.func) == "module"

    def generators(self, node: cst.BaseExpression) -> list[tuple[cst.Call, cst.FunctionDef]]:
        """Return the calls behind ``node`` that make generators of this script, each with its function.

        Behind a name, an attribute or an entry, ``data["train"]``, there may be several. Of generators that go through
        others the last one is meant.
        """
        made = [found for n in self.flow.through(node) for found in self._generating(n)]
        inner = {n for call, _ in made for n in self.flow.through(call) if n is not call}
        return [found for found in made if found[0] not in inner]

    def _generating(self, made: cst.CSTNode) -> Iterator[tuple[cst.Call, cst.FunctionDef]]:
        for function in self.flow.targets(made) if isinstance(made, cst.Call) else ():
            if self.flow.yields(function):
                yield made, function  # type: ignore[misc]

    def keeps_its_place(self, call: cst.Call) -> bool:
        """Tell whether ``call`` returns the next samples after those of the call before: ``data.next_batch(32)``."""
        return any(self._walks_on(function) for function in self.flow.targets(call))

    def _walks_on(self, function: cst.FunctionDef) -> bool:
        """Tell whether ``function`` returns what lies at a position that it moves on in an attribute or a global."""
        outer = self.script.scopes[function.body].outer
        moved: set[str] = set()
        counted: set[str] = set()  # of these, those that go up: self.at += 1, at = (at + 1) % n
        for n in walk(function.body):
            target = n.target if isinstance(n, cst.AugAssign) else None
            if isinstance(n, cst.Assign):
                target = n.targets[0].target
            name = dotted(target) if target is not None else ""
            if name.startswith("self.") or name in outer:
                moved.add(name)
                on = isinstance(n, cst.AugAssign) or (isinstance(n, cst.Assign) and self._names(n.value, {name}))
                counted |= {name} if on else set()
        if not moved or not self.flow.returns(function):
            return False
        known = set(moved)
        for n in walk(function.body):  # start = self.at
            target = n.targets[0].target if isinstance(n, cst.Assign) else None
            if isinstance(n, cst.Assign) and isinstance(target, cst.Name) and self._names(n.value, moved):
                known.add(target.value)
        if any(isinstance(n, cst.Slice) and self._names(n, known) for n in walk(function.body)):
            return True
        if self.loops.gradients.runs_step(function.body):
            return False
        return any(self._picks(n, counted) or (self._spans(n) and self._names(n, known)) for n in walk(function.body))

    def _spans(self, node: cst.CSTNode) -> bool:
        """Tell whether ``node`` makes a range of positions: ``slice(at, at + n)``, ``np.arange(at, at + n)``."""
        return isinstance(node, cst.Call) and self.script.name_of(node.func) in _SPANS

    def _picks(self, node: cst.CSTNode, counted: set[str]) -> bool:
        """Tell whether ``node`` reads a batch by its number: ``self.batches[self.at]``, maybe by ``self.at % n``."""
        index = node.slice[0].slice if isinstance(node, cst.Subscript) and len(node.slice) == 1 else None
        place = index.value if isinstance(index, cst.Index) else None
        if isinstance(place, cst.BinaryOperation) and isinstance(place.operator, cst.Modulo):  # at % len(batches)
            place = place.left
        at = dotted(place) if place is not None else ""
        return at in counted and not isinstance(self.script.parents[node], cst.AssignTarget)

    def _names(self, node: cst.CSTNode, names: set[str]) -> bool:
        return any(isinstance(m, (cst.Name, cst.Attribute)) and dotted(m) in names for m in walk(node))

    def is_order(self, node: cst.BaseExpression) -> bool:
        """Tell whether ``node`` names positions in a random order: a permutation, or numbers that are shuffled."""
        if not isinstance(node, cst.Name):
            return False
        scope = self.script.scope_of(node)
        made = {name for o in self.flow.origins(node) if isinstance(o.node, cst.Call) for name in self.names(o.node)}
        shuffled = [c.args[0].value for c in self.script.calls if self.script.name_of(c.func) in IN_PLACE and c.args]
        same = any(
            isinstance(n, cst.Name) and n.value == node.value and self.script.scope_of(n) is scope for n in shuffled
        )
        return bool(made & set(_PERMUTES)) or (same and bool(made & set(_NUMBERS)))

    def permutations(self, node: cst.CSTNode) -> Iterator[cst.Call]:
        """Yield the calls, made by running ``node``, that draw an order of samples."""
        for call in self.reached(node):
            if self.permutes(call):
                yield call

    def permutes(self, call: cst.Call) -> bool:
        """Tell whether ``call`` draws an order of all samples."""
        return not {*_PERMUTES, *IN_PLACE}.isdisjoint(self.names(call))

    def shuffles(self, call: cst.Call) -> bool:
        """Tell whether ``call`` puts what it is given into another order, in place."""
        return self.script.name_of(call.func) in IN_PLACE and bool(call.args)

    def names(self, call: cst.Call) -> list[str]:
        """Return what the function that is called may be: either one of ``(torch.randperm if mixed else range)(n)``."""
        chosen = isinstance(call.func, cst.IfExp) or any(b.value for b in self.script.bindings_of(call.func))
        return self.loops.kinds.names(call.func) if chosen else [self.script.name_of(call.func)]
