"""How a loss gathers its samples: as a mean over them, as a sum, or so that no mean over ranks can stand for it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Literal

import libcst as cst

from dlrun.port.facts.models.kinds import Kinds
from dlrun.port.facts.models.kinds_tensorflow import plain
from dlrun.port.facts.paired_arrays import Together
from dlrun.port.facts.updates import coupling
from dlrun.port.facts.updates.entries_of import EntriesOf, each_of
from dlrun.port.program.script import Binding, argument, calls_method, dotted, walk

Kind = Literal["free", "count", "each", "mean", "odd"]
_ORDER: dict[str, int] = {"free": 0, "count": 1, "each": 2, "mean": 3, "odd": 4}
# What is linear in its first argument, or gives it back: a mean stays a mean.
_SAME = {
    "to",
    "cuda",
    "cpu",
    "float",
    "double",
    "half",
    "type",
    "data",
    "detach",
    "clone",
    "squeeze",
    "unsqueeze",
    "view",
    "reshape",
    "contiguous",
    "item",
    "numpy",
    "Variable",
    "cast",
    "identity",
    "convert_to_tensor",
    "stop_gradient",
    "tensor",
    "requires_grad_",
    "flatten",
    "transpose",
    "t",
    "permute",
    "stack",
    "cat",
    "concat",
    "FloatTensor",
    "scale_loss",
    "get_scaled_loss",
}
_MEANS, _SUMS = ("mean", "reduce_mean", "average"), ("sum", "reduce_sum", "l2_loss")
_LOSS = re.compile(r"(_loss|cross_entropy|_with_logits|kl_div|_error)$")
_FILLED = re.compile(r"^(torch|numpy|tensorflow)\.(random\.)?(rand|randn|normal|uniform|zeros|ones|full|fill|arange)$")
_SIZED = ("expand", "repeat", "view", "reshape", "broadcast_to", "tile", "new_zeros", "new_ones", "new_full")
_DIFFERENTIATES = re.compile(r"(^|\.)(grad|gradient|gradients|jacobian|batch_jacobian)$")
_OF_KERAS = re.compile(r"^(tensorflow\.)?keras\.losses\.[A-Z]")
_COMPILED = ("compute_loss", "compiled_loss")  # of a Keras model: the losses of compile(), whose reductions fit() reads
_SHAPES = ("tensorflow.shape", "keras.backend.shape", "keras.ops.shape")
_DEPTH = 60


@dataclass(frozen=True)
class Level:
    """What an expression is to the samples: free of them, their number, one value each, a mean, or something odd.

    ``sums`` are the parts that are sums over the samples: a "mean" once they are multiplied by the number of ranks.
    ``names`` are the arrays behind it; ``means`` is whether a part of it is a mean over them.
    """

    kind: Kind
    sums: tuple[cst.BaseExpression, ...] = ()
    names: frozenset[str] = frozenset()
    means: bool = False


FREE = Level("free")


class Reductions:
    """What the losses of one training loop do to the samples in the arrays that ``data`` knows."""

    def __init__(
        self,
        kinds: Kinds,
        losses: Iterable[cst.BaseExpression],
        data: Callable[[cst.CSTNode], str | None],
        counted: Callable[[cst.CSTNode], bool],
    ) -> None:
        """Read the ``losses``; ``data`` names the array that a name holds, ``counted`` tells a share's length."""
        self.kinds = kinds
        self.flow = kinds.flow
        self.script = kinds.script
        self._data = data
        self._counted = counted
        self._known: dict[cst.CSTNode, Level] = {}
        self._busy: set[cst.CSTNode] = set()
        self._modules: dict[cst.CSTNode, list[cst.Call]] = {}  # the calls of modules, by the ``forward`` that they run
        self.odd: list[cst.CSTNode] = []  # where a mean over ranks is not the value over all samples
        self.weighted: list[cst.CSTNode] = []  # means whose samples count by the weight of their class
        self.coupled: list[cst.BaseExpression] = []  # where samples of one batch are compared with each other
        self.spread: list[cst.BaseExpression] = []  # what is measured over the samples of a batch, and no mean
        self.unsure: list[cst.BaseExpression] = []  # sums over what may be samples, or parts that each hold all
        self.entries = EntriesOf(
            kinds,
            lambda node: isinstance(node, (cst.Name, cst.Attribute)) and data(node) is not None,
            lambda node: self.of(node).kind == "count",
            lambda node: self.of(node).kind != "free",
        )
        self.together = Together(kinds.flow, lambda node: self.of(node).names)
        found = [self.of(loss) for loss in losses]
        self.means = any(level.means for level in found)
        self.sums = tuple(dict.fromkeys(node for level in found for node in level.sums))
        self.gathered = bool(found) and all(level.kind in ("mean", "odd", "free") for level in found)

    def of(self, node: cst.CSTNode) -> Level:
        """Return what ``node`` is to the samples."""
        if node not in self._known:
            if node in self._busy or len(self._busy) > _DEPTH:
                return FREE
            self._busy.add(node)
            self._known[node] = self._of(node)
            self._busy.discard(node)
        return self._known[node]

    def _of(self, node: cst.CSTNode) -> Level:
        match node:
            case cst.Name():
                return self._of_name(node)
            case cst.Attribute():
                if (array := self._data(node)) is not None:
                    return Level("each", (), frozenset([array]))
                made = [v for b in self.script.kept_bindings(node) for v in self._of_binding(b)]
                level = self._joined(node, made or [self.of(node.value)])
                return level if node.attr.value not in ("shape", "size", "dtype", "device", "ndim") else FREE
            case cst.Call():
                if (array := self._data(node)) is not None:
                    return Level("each", (), frozenset([array]))
                return self._of_call(node)
            case cst.BinaryOperation():
                return self._of_pair(node, self.of(node.left), self.of(node.right))
            case cst.UnaryOperation():
                return self.of(node.expression)
            case cst.IfExp():
                return self._joined(node, [self.of(node.body), self.of(node.orelse)])
            case cst.Subscript():
                if (array := self._data(node)) is not None:
                    return Level("each", (), frozenset([array]))
                return self._count(node, node.value, node.slice[0]) or self._taken(node)
            case cst.Tuple() | cst.List() | cst.Dict():
                return self._joined(node, [self.of(value) for value in self.entries.held(node)])
            case cst.ListComp() | cst.GeneratorExp():
                return self.of(node.elt)
            case cst.Comparison():
                level = self.of(node.left)
                self._crossed(node, level, self.of(node.comparisons[0].comparator), node.left, node.comparisons[0])
                return level
        return FREE

    def _taken(self, node: cst.Subscript) -> Level:
        """Return the level of a part of an array; a random order of what a model makes pairs its samples anew."""
        level, at = self.of(node.value), node.slice[0].slice
        if level.kind == "free" and isinstance(at, cst.Index):
            picks = self.of(at.value)
            return picks if picks.kind == "each" else level
        if level.kind == "each" and isinstance(at, cst.Index) and coupling.redrawn(self.script, at.value):
            made = [o.node for o in self.flow.origins(node.value) if isinstance(o.node, cst.Call)]
            self.coupled += [node] if any(self.kinds.of(call.func) == "module" for call in made) else []
        return level

    def _crossed(
        self, node: cst.BaseExpression, one: Level, other: Level, left: cst.BaseExpression, right: cst.CSTNode
    ) -> None:
        """Note an operation of two arrays of samples in which each meets others."""
        side = right.comparator if isinstance(right, cst.ComparisonTarget) else right
        op = node.operator if isinstance(node, cst.BinaryOperation) else None
        meet = one.kind == other.kind == "each" and isinstance(side, cst.BaseExpression)
        if meet and coupling.crossed(self.script, left, side, op):  # type: ignore[arg-type]
            self.coupled.append(node)

    # -- names --------------------------------------------------------------------------------------------------

    def _of_name(self, node: cst.Name) -> Level:
        array = self._data(node)
        if array is not None:
            return Level("each", (), frozenset([array]))
        bindings = [b for b in self.script.bindings_of(node) if not self._is_of_earlier(node, b)]
        levels = [level for b in bindings for level in self._of_binding(b)]
        adds = [b for b in bindings if isinstance(b.node, cst.AugAssign)]
        return self._joined(node, levels, adds)

    def _is_of_earlier(self, use: cst.Name, binding: Binding) -> bool:
        """Tell whether ``binding`` gives ``use`` a plain number of an earlier step: of all ranks, as balances tell."""
        number = binding.value is not None and any(
            isinstance(n, cst.Call) and isinstance(n.func, cst.Attribute) and n.func.attr.value == "item"
            for n in walk(binding.value)
        )
        loops = [up for up in self.script.above(binding.node) if isinstance(up, (cst.For, cst.While))]
        other = any(not self.script.inside(use, loop) for loop in loops)
        return number and (other or self.script.order[binding.node] > self.script.order[use])

    def _of_binding(self, binding: Binding) -> list[Level]:
        if binding.how == "param":
            function = self.script.scopes[binding.node].node
            calls = self.flow.callers(function) if isinstance(function, cst.FunctionDef) else []
            calls = calls or self._modules.get(function, [])
            given = [self.flow.argument(c, function, binding.name) for c in calls]  # type: ignore[arg-type]
            levels = [self.of(value) for value in given if value is not None]
            name = frozenset([self.together.parameter(binding)]) if levels else frozenset()
            return [replace(level, names=name) for level in levels]
        if binding.value is None or binding.how != "assign":
            over = each_of(binding) if isinstance(binding.node, (cst.For, cst.CompFor)) else None
            return [level] if over is not None and (level := self.of(over)).kind in ("each", "mean") else []
        value: cst.CSTNode = binding.value
        if isinstance(value, cst.Attribute) and value.attr.value == "shape" and binding.path == (0,):
            return [self._number(value, value.value)]
        values: list[cst.BaseExpression] = [binding.value]
        if isinstance(value, cst.Call) and binding.path:
            values = [r for t in self.flow.targets(value) for r in self.flow.returns(t)]
        at = binding.path[0] if binding.path else None
        parts = [
            v.elements[at].value
            for v in values
            if isinstance(v, (cst.Tuple, cst.List)) and isinstance(at, int) and at < len(v.elements)
        ]
        return [self.of(part) for part in parts or [binding.value]]

    def _joined(self, node: cst.CSTNode, levels: list[Level], adds: Iterable[Binding] = ()) -> Level:
        """Return what a value is that may be each of ``levels``, or holds them all."""
        if not levels:
            return FREE
        most = max(levels, key=lambda level: _ORDER[level.kind])
        for added in adds:  # a mean for each of the samples, added up
            loops = [u for u in self.script.above(added.node) if isinstance(u, cst.For)]
            samples = self.entries.samples(loops[0].iter) if most.kind == "mean" and loops else False
            if samples is not False:
                if samples is None:
                    self.unsure.append(added.node.value)  # type: ignore[attr-defined]
                    return self._strange(node, levels)
                own = isinstance(added.node, cst.AugAssign) and isinstance(added.node.operator, cst.AddAssign)
                if len(levels) > 2 or not own or any(level.sums for level in levels):
                    return self._strange(node, levels)
                return Level("mean", (added.node.value,), most.names)  # type: ignore[attr-defined]
        names = frozenset().union(*(v.names for v in levels))
        return Level(most.kind, tuple(n for v in levels for n in v.sums), names, any(v.means for v in levels))

    def _strange(self, node: cst.CSTNode, levels: Iterable[Level]) -> Level:
        levels = list(levels)
        if not any(level.kind == "odd" for level in levels):
            self.odd.append(node)
        return Level("odd", (), frozenset().union(*(level.names for level in levels)))

    # -- operators ----------------------------------------------------------------------------------------------

    def _of_pair(self, node: cst.BinaryOperation, left: Level, right: Level) -> Level:
        kinds = {left.kind, right.kind}
        names = left.names | right.names
        self._crossed(node, left, right, node.left, node.right)
        if "odd" in kinds:
            return Level("odd", (), names)
        additive = isinstance(node.operator, (cst.Add, cst.Subtract))
        if kinds <= {"free", "count"}:
            return Level("count" if "count" in kinds else "free", (), names)
        if left.kind == "mean" and right.kind == "count" and isinstance(node.operator, cst.Divide) and left.sums:
            return Level("mean", (), names, True)  # a sum, divided by the number of this rank's samples
        if "mean" not in kinds:
            return Level("each", (), names) if "count" not in kinds else self._strange(node, [left, right])
        if "each" in kinds or "count" in kinds:
            return self._strange(node, [left, right])
        linear = additive or (
            isinstance(node.operator, (cst.Multiply, cst.Divide))
            and kinds == {"mean", "free"}
            and (isinstance(node.operator, cst.Multiply) or left.kind == "mean")
        )
        means = left.means or right.means
        return Level("mean", left.sums + right.sums, names, means) if linear else self._strange(node, [left, right])

    # -- calls --------------------------------------------------------------------------------------------------

    def _of_call(self, call: cst.Call) -> Level:
        name = plain(self.script.name_of(call.func))
        method = call.func.attr.value if isinstance(call.func, cst.Attribute) else ""
        last = method or name.rsplit(".", 1)[-1]
        own = isinstance(call.func, cst.Attribute) and (not name or name.startswith("."))
        first = (
            call.func.value
            if own and isinstance(call.func, cst.Attribute)
            else (call.args[0].value if call.args else None)
        )
        if first is not None and not self.flow.targets(call):
            self._compared(call, first, name, last, 0 if own else 1)
        if name == "builtins.len" and first is not None:
            return self._number(call, first)
        if method in ("size", "numel") and own and first is not None:
            whole = not call.args or self.script.code(call.args[0].value) == "0"
            return self._number(call, first) if whole else FREE
        if last == "add_n" and first is not None:
            return self.of(first)
        if (last in _MEANS or last in _SUMS) and first is not None and not self.flow.targets(call):
            return self._reduced(call, first, last in _SUMS, 0 if own else 1)
        if (reduction := self._loss(call, name)) is not None:
            return self._gathered(call, self._joined(call, [self.of(a.value) for a in call.args]), reduction)
        if targets := self.flow.targets(call):
            returned = [r for t in targets for r in self.flow.returns(t)]
            if self.kinds.of(call.func) != "module" and returned:
                level = self._joined(call, [self.of(r) for r in returned])
                return replace(level, names=self.together.given(call, level.names))
        if self.kinds.of(call.func) in ("module", "loss"):
            self._inside(call)
        levels = [self.of(a.value) for a in call.args]
        levels += [self.of(call.func.value)] if own and isinstance(call.func, cst.Attribute) else []
        kinds = {level.kind for level in levels}
        if _DIFFERENTIATES.search(last):
            names = frozenset().union(*(level.names for level in levels))
            return Level("each" if kinds & {"each", "mean"} else "free", (), names)
        if _FILLED.search(name) and kinds <= {"free", "count"} and "count" in kinds:  # torch.randn(mean.size())
            return Level("each", (), frozenset().union(*(level.names for level in levels)))
        if own and last in _SIZED and kinds <= {"free", "count"} and "count" in kinds:  # scale.expand(x.size(0), 5)
            return Level("each", (), frozenset().union(*(level.names for level in levels)))
        if "mean" in kinds and last not in _SAME:
            return self._strange(call, levels)
        return self._joined(call, levels)

    def _compared(self, call: cst.Call, first: cst.BaseExpression, name: str, last: str, at: int) -> None:
        """Note a call in which the samples of a batch meet others, or are measured together; ``at``: its other axes."""
        pairs = coupling.paired(self.script, call, name, last)
        statistic = last in coupling.STATISTICS and self._over_samples(call, at)
        if not (pairs or statistic or coupling.turned(self.script, call, last, at)):
            return
        arrays = [first, *(arg.value for arg in call.args[-1:])] if pairs else [first]
        if name.endswith("einsum"):
            arrays = [arg.value for arg in call.args[1:]]
        if all(self.of(array).kind == "each" for array in arrays):
            (self.spread if statistic else self.coupled).append(call)

    def _inside(self, call: cst.Call) -> None:
        """Look for what meets in the ``forward`` of a loss that is written as a module without weights."""
        for cls in self.flow.classes(call.func):
            forward = self.flow.method(cls, "forward")
            if forward is None or call in self._modules.get(forward, ()) or not coupling.computes(self.script, cls):
                continue
            self._modules.setdefault(forward, []).append(call)
            odd, weighted = [*self.odd], [*self.weighted]
            for value in self.flow.returns(forward):
                self.of(value)
            self.odd, self.weighted = odd, weighted  # what comes out is taken for one value of each sample

    def _count(self, node: cst.CSTNode, value: cst.BaseExpression, element: cst.SubscriptElement) -> Level | None:
        """Return the level of ``x.shape[0]`` and ``tf.shape(x)[0]``; None of any other part."""
        shape = isinstance(value, cst.Attribute) and value.attr.value == "shape"
        called = isinstance(value, cst.Call) and bool(value.args)
        if called and isinstance(value, cst.Call):
            called = plain(self.script.name_of(value.func)) in _SHAPES
        if not shape and not called:
            return None
        index = element.slice.value if isinstance(element.slice, cst.Index) else None
        owner = value.value if isinstance(value, cst.Attribute) else value.args[0].value  # type: ignore[attr-defined]
        zero = isinstance(index, cst.Integer) and index.value == "0"
        return self._number(node, owner, called) if zero else FREE

    def _number(self, node: cst.CSTNode, of: cst.CSTNode, later: bool = False) -> Level:
        """Return the level of the length of ``of``: this rank's number of samples, if it is taken of the share."""
        level = self.of(of)
        listed = level.kind == "mean" and self.entries.samples(of) is True  # losses, one for each sample
        mine = (level.kind == "each" or listed) and (later or self._counted(node))
        return Level("count", (), level.names) if mine else FREE

    def _reduced(self, call: cst.Call, first: cst.BaseExpression, sums: bool, at: int) -> Level:
        level = self.of(first)
        listed, stacked = self.script.name_of(call.func) == "builtins.sum", self.entries.is_stack(first)
        if sums and level.kind != "free" and (listed or stacked or level.kind == "mean"):
            samples = self.entries.samples(first)
            if (listed and samples is None) or (stacked and not samples and level.kind == "each"):
                self.unsure.append(call)
                return self._strange(call, [level])
            return Level("mean", (call,), level.names) if samples and not level.sums else level
        if not self._over_samples(call, at):
            return level  # over what belongs to one sample
        return self._gathered(call, level, "sum" if sums else "mean")

    def _over_samples(self, call: cst.Call, at: int) -> bool:
        """Tell whether a reduction goes over the axis of samples."""
        axis = argument(call, "dim", at) or argument(call, "axis", at) or argument(call, "reduction_indices")
        text = self.script.code(axis).strip("[]() ,") if axis is not None else "None"
        return text in ("None", "0") or "0" in re.split(r"[,\s]+", text)

    def _gathered(self, call: cst.BaseExpression, level: Level, reduction: str) -> Level:
        if level.kind != "each" or reduction == "none":
            return level
        self.together.take(level.names)
        if reduction == "sum":
            return Level("mean", (call,), level.names)
        return Level("mean", (), level.names, True)

    def _loss(self, call: cst.Call, name: str) -> str | None:
        """Return the reduction of a call that computes a loss: "mean", "sum" or "none"; None where it is no loss."""
        if calls_method(call, *_COMPILED) and not self.flow.targets(call):
            return "mean"
        made = call
        keras = name.startswith(("keras.losses.", "tensorflow.keras.losses."))
        handed = [o.node for o in self.flow.origins(call.func)]
        of_keras = all(isinstance(n, cst.Call) and _OF_KERAS.search(self.script.name_of(n.func)) for n in handed)
        if self.kinds.of(call.func) == "loss" or (handed and of_keras):  # what compile(loss_fn=...) was given
            found = [o.node for o in self.flow.origins(call.func) if isinstance(o.node, cst.Call)]
            made = found[0] if found else call
        elif keras or (name.startswith("tensorflow.nn.") and _LOSS.search(name)):
            return None  # one value for each sample
        elif not (name.startswith(("torch.nn.functional.", "tensorflow.losses.")) and _LOSS.search(name)):
            return None
        named = argument(made, "reduction")
        text = self.script.code(named).strip("'\"").lower().rsplit(".", 1)[-1] if named is not None else ""
        averages = argument(made, "size_average")
        weights = argument(made, "weight") or (argument(made, "weights") if name.startswith("tensorflow.") else None)
        if text in ("", "mean") and weights is not None and averages is None:
            self.weighted.append(call)
        if text == "sum" or (averages is not None and dotted(averages) == "False"):
            return "sum"
        return "none" if text == "none" else "mean"
