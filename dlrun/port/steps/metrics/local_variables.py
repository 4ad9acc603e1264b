"""As ``local_states``, for TensorFlow and Keras: variables, tensors and numbers that local samples move."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from functools import cached_property

import libcst as cst

from dlrun.port.edits import Doubt
from dlrun.port.facts import ScriptFacts
from dlrun.port.facts.models.kinds_tensorflow import TensorFlowKinds, plain
from dlrun.port.facts.taint import Taint
from dlrun.port.facts.tensorflow import TensorFlowFacts
from dlrun.port.program.script import argument, calls_method, dotted, walk
from dlrun.port.steps.metrics.in_place import is_same, moved, tensor_of
from dlrun.port.steps.metrics.local_states import runs_in
from dlrun.port.steps.metrics.queues import fills, of_its_own

_METHODS = re.compile(r"^(assign(_add|_sub)?|scatter_(nd_)?(add|sub|update|max|min))$")
_FUNCTIONS = re.compile(
    r"^tensorflow\.(assign(_add|_sub)?|scatter_(nd_)?(add|sub|update))$|"
    r"^keras\.backend\.(update(_add|_sub)?|moving_average_update)$|\.assign_moving_average$"
)
_PUTS = re.compile(r"(^|\.)(assign|update)$")  # another value, maybe not made of the one before
_CALLS = ("call", "__call__", "train_step")
_SAMPLES = re.compile(r"^tensorflow\.(placeholder|placeholder_with_default)$|\.get_next$|^keras\.(layers\.)?Input$")
_SIZES = ("tensorflow.shape", "tensorflow.size", "tensorflow.rank", "keras.backend.shape")
_LOSSES = ("minimize", "compute_gradients", "gradient", "add_loss")


def tensorflow(facts: TensorFlowFacts, serial: Collection[cst.CSTNode] = ()) -> Iterator[Doubt]:
    """Yield a doubt about the first thing that each rank moves with its own samples, and that training reads.

    Edits make the values ``serial`` the same on all ranks.
    """
    yield from OwnVariables(facts, facts.unequal.seeds, {*facts.averages, *serial}).doubts()


def keras(facts: ScriptFacts) -> Iterator[Doubt]:
    """Likewise where ``fit()`` trains: what ``call()`` of its layers moves, and what that calls."""
    yield from OwnVariables(facts, (), ()).doubts()


class OwnVariables:
    """Finds EMAs of statistics, centers of classes, codebooks and baselines that each rank moves by itself."""

    def __init__(self, facts: ScriptFacts, own: Collection[cst.CSTNode], means: Collection[cst.CSTNode]) -> None:
        """``own`` are values that are local, beside the samples; ``means`` are the same on all ranks."""
        self.facts = facts
        self.script = facts.script
        self.kinds = facts.kinds if isinstance(facts.kinds, TensorFlowKinds) else TensorFlowKinds(facts.flow)
        sizes = [c for c in self.script.calls if plain(self.script.name_of(c.func)) in _SIZES]
        models = [c for c in self.script.calls if self.kinds.of_call(c) == "module"]  # keras.Model(Input(...), ...)
        self.own = Taint(self.script, self.kinds, [*own, *self._samples()], [*means, *sizes, *models])

    def doubts(self) -> Iterator[Doubt]:
        """Yield the first one, if there is one."""
        for node in self.script.nodes:
            for state, values in self._moves(node):
                if any(map(self.own, values)) and self._trains(node) and self._read(state):
                    name, dl = self.script.code(state), "dl_comm.tensorflow"
                    if fills(node):
                        yield of_its_own(node, name)
                        return
                    variable = isinstance(node, cst.Call)
                    line = f"{name}.assign({dl}.average({name}))" if variable else f"{name} = {dl}.average({name})"
                    yield Doubt(
                        node,
                        f"{name} moves with this rank's samples: each rank trains with another {name}",
                        "high",
                        f"{line} after this line, where all ranks come together",
                    )
                    return

    @cached_property
    def _calls(self) -> list[cst.FunctionDef]:
        """The methods of layers and models that get samples."""
        found = [n for n in self.script.nodes if isinstance(n, cst.FunctionDef) and n.name.value in _CALLS]
        owners = [self.script.class_of(f) for f in found]
        kinds = [self.kinds.of_bases(self.facts.flow.bases(o)) if o is not None else "" for o in owners]
        return [f for f, kind in zip(found, kinds, strict=True) if kind == "module"]

    def _samples(self) -> Iterator[cst.CSTNode]:
        """Yield what stands for samples: in the calls of layers, placeholders, what an Estimator gives its model."""
        functions = list(self._calls)
        for call in getattr(getattr(self.facts, "estimators", None), "custom", ()):
            model = argument(call, "model_fn", 0)
            made = self.facts.flow.definition(model) if model is not None else None
            functions += [made] if isinstance(made, cst.FunctionDef) else []
        for function in functions:
            names = {p.name.value for p in function.params.params} - {"self", "training", "mode", "params"}
            yield from (n for n in walk(function.body) if isinstance(n, cst.Name) and n.value in names)
        for c in self.script.calls:
            if _SAMPLES.search(plain(self.script.name_of(c.func)) or f".{dotted(c.func)}"):
                yield c

    def _moves(self, node: cst.CSTNode) -> Iterator[tuple[cst.BaseExpression, list[cst.BaseExpression]]]:
        """Yield what ``node`` changes from what it was, and the values by which."""
        state: cst.BaseExpression | None = None
        if isinstance(node, cst.Call):
            name = plain(self.script.name_of(node.func))
            values = [a.value for a in node.args]
            if isinstance(node.func, cst.Attribute) and _METHODS.search(node.func.attr.value) and "." in f"{name}.":
                state = tensor_of(node.func.value) if not name.startswith("tensorflow.") else None
            if state is None and _FUNCTIONS.search(name) and values:
                state, values = tensor_of(values[0]), values[1:]
            if state is not None and _PUTS.search(dotted(node.func)) and not self._reads(values, state):
                state = None
        elif isinstance(node, (cst.Assign, cst.AugAssign)) and not getattr(self.facts, "episodes", False):
            values, state = [node.value], moved(self.facts, node)
            if not isinstance(state, cst.Attribute) and not (state is not None and self._is_kept(state, node)):
                state = None
            state = None if state is not None and self._is_of_graph(state) else state
        if state is not None and not self._is_foreign(state):
            yield state, values

    def _is_of_graph(self, state: cst.BaseExpression) -> bool:
        """Tell whether ``state`` names parts of a graph, which is made once: ``self.out = tf.tanh(self.x)``."""
        if getattr(self.facts, "style", "") not in ("session", "estimator"):
            return False
        owner = self.script.class_of(state)
        bound = self.script.bindings_of(state) if isinstance(state, cst.Name) else ()
        if isinstance(state, cst.Attribute) and owner is not None:
            bound = self.script.attributes.get((owner, state.attr.value), ())
        made = (b.value for b in bound if isinstance(b.value, cst.Call))
        return any(plain(self.script.name_of(call.func)).startswith("tensorflow.") for call in made)

    def _reads(self, values: list[cst.BaseExpression], state: cst.BaseExpression) -> bool:
        """Tell whether one of ``values`` is made of what ``state`` was."""
        old = [n for n in self.script.nodes if is_same(self.facts, n, state)]
        made = Taint(self.script, self.kinds, old)
        return any(map(made, values))

    def _is_kept(self, state: cst.BaseExpression, node: cst.CSTNode) -> bool:
        """Tell whether the name ``state`` is bound before the training loop in which ``node`` changes it."""
        loop = self.script.outermost_loop(node)
        bindings = self.script.bindings_of(state)
        return loop in self.facts.loops and any(self.script.outermost_loop(b.node) is None for b in bindings)

    def _is_foreign(self, state: cst.BaseExpression) -> bool:
        """Tell whether ``state`` belongs to an optimizer or a metric, which have ways of their own."""
        owner = self.script.class_of(state)
        kind = self.kinds.of_bases(self.facts.flow.bases(owner)) if owner is not None else ""
        return kind in ("optimizer", "metric", "schedule")

    def _trains(self, node: cst.CSTNode) -> bool:
        """Tell whether the training runs ``node``; what makes the graph of a session stands outside of its loops."""
        graph = getattr(self.facts, "style", "") in ("session", "estimator") and isinstance(node, cst.Call)
        return graph or self.script.function_of(node) in self._calls or runs_in(self.facts, node, self._calls)

    def _read(self, state: cst.BaseExpression) -> bool:
        """Tell whether training reads ``state`` elsewhere: in the call of a layer, or in a loss."""
        name = state.attr.value if isinstance(state, cst.Attribute) else None
        moving = [
            self.script.statement_of(n)
            for n in self.script.nodes
            if any(is_same(self.facts, s, state) for s, _ in self._moves(n))
        ]
        reads = [
            n
            for n in self.script.nodes
            if isinstance(n, (cst.Name, cst.Attribute))
            and not any(self.script.inside(n, m) for m in moving)
            and (
                is_same(self.facts, n, state) if name is None else isinstance(n, cst.Attribute) and n.attr.value == name
            )
        ]
        reads = [n for n in reads if not isinstance(self.script.parents[n], cst.AssignTarget)]
        layers = [f for f in self._calls if f.name.value != "train_step"]  # which may show, or hand on, what it reads
        if any(self.script.function_of(n) in layers for n in reads):
            return True
        follows = Taint(self.script, self.kinds, reads)
        return any(follows(c.args[0].value) for c in self.script.calls if calls_method(c, *_LOSSES) and c.args)
