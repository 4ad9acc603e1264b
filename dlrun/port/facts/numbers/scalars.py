"""Which expressions are surely one number: only those may be averaged without asking."""

from __future__ import annotations

from collections.abc import Collection
from functools import cached_property

import libcst as cst

from dlrun.port.facts.models.kinds import Kinds, plays
from dlrun.port.facts.numbers.computed import given, in_turn
from dlrun.port.facts.numbers.entries import Entries, of_zeros, written
from dlrun.port.facts.numbers.fetches import entry, fetched, taken
from dlrun.port.facts.numbers.lists import Lists, turned
from dlrun.port.facts.numbers.scalars_called import is_rate, of_library, of_table
from dlrun.port.facts.numbers.scalars_tensorflow import of_tensorflow
from dlrun.port.program.script import Binding, calls_method, dotted

_WHOLE = ("torch.sum", "torch.mean", "torch.max", "torch.min")  # of one tensor: one number
_SAME = {"data", "detach", "cpu", "numpy", "cuda", "clone", "float", "double", "to"}
# What those attributes are called that are one number: of the usual meters, and of batches.
_NUMBERS = {"avg", "val", "global_avg", "batch_size", "num_graphs", "num_nodes", "num_samples", "ntokens"}
_DEPTH = 16


class Scalars:
    """Tells whether an expression is one number, following names, arguments and returns."""

    def __init__(self, kinds: Kinds, runs: Collection[cst.CSTNode] = ()) -> None:
        """Answer for the script of ``kinds``; ``runs`` are the calls in which a session returns what it fetched."""
        self.runs = runs
        self.kinds = kinds
        self.flow = kinds.flow
        self.script = kinds.script
        self.lists = Lists(kinds.flow)
        self.entries = Entries(kinds.script)
        self._busy: set[tuple[int, str]] = set()

    def __call__(self, node: cst.CSTNode, depth: int = 0) -> bool:
        """Tell whether ``node`` is surely one number (or a tensor of one)."""
        if depth > _DEPTH:
            return False
        match node:
            case cst.Integer() | cst.Float():
                return True
            case cst.Call():
                return self._of_call(node, depth + 1)
            case cst.BinaryOperation():
                text = isinstance(node.operator, cst.Modulo) and isinstance(node.left, cst.SimpleString)
                return not text and self(node.left, depth + 1) and self(node.right, depth + 1)
            case cst.UnaryOperation():
                return self(node.expression, depth + 1)
            case cst.IfExp():
                return self(node.body, depth + 1) and self(node.orelse, depth + 1)
            case cst.Attribute():
                if node.attr.value in _NUMBERS or self._is_option(node):
                    return True
                if there := self.script.member(node):
                    return self._of_variable(there[1], node.attr.value, there[0], depth + 1)
                if owners := self._owners(node):
                    return all(self._of_attribute(owner, node.attr.value, depth + 1) for owner in owners)
                same = node.attr.value in _SAME and self(node.value, depth + 1)
                return same or self._is_property(node, depth + 1)
            case cst.Subscript(value=cst.Attribute(attr=cst.Name("shape"))):
                return True
            case cst.Subscript(value=cst.Call(func=cst.Attribute(attr=cst.Name("size")), args=[])):
                return True
            case cst.Subscript() if is_rate(node):
                return True
            case cst.Subscript():
                index = node.slice[0].slice
                at = index.value if isinstance(index, cst.Index) else None
                if isinstance(node.value, cst.Call) and isinstance(at, cst.Integer):
                    return self._part(node.value, at.evaluated_value, depth + 1)
                if isinstance(node.value, cst.Attribute) and node.value.attr.value == "data":  # loss.data[0]
                    return self(node.value, depth + 1)
                if isinstance(index, cst.Index) and self.lists.of(node.value, lambda v: self(v, depth + 1)):
                    return True  # losses[-1]
                if (values := taken(self.flow, self.runs, node)) is not None:
                    return bool(values) and all(self(v, depth + 1) for v in values)
                begun = [o.node for o in self.flow.origins(node.value)]
                named = isinstance(at, (cst.SimpleString, cst.Name))
                if named and begun and all(of_zeros(self.script, m) for m in begun):
                    return True
                if self.entries.grow(node.value, lambda entry: self(entry, depth + 1)):
                    return True  # sums["loss"]
                made = [o.node for o in self.flow.origins(node)]  # sizes["train"]
                return all(m is not node and self(m, depth + 1) for m in made)
            case cst.Name():
                return self._of_name(node, depth + 1)
        return False

    def _of_name(self, node: cst.Name, depth: int) -> bool:
        bindings, scope = self.script.scopes[node].lookup(node.value)
        bindings, key = in_turn(self.script, node, bindings), (id(scope), node.value)
        if key in self._busy:
            return True  # total = total / count: the other bindings tell
        if bindings and all(b.how == "param" for b in bindings):
            made = [o.node for o in self.flow.origins(node)]
            told = all(isinstance(n, (cst.Integer, cst.Float, cst.Call)) and self(n, depth) for n in made)
            return told or self._given(bindings, depth)
        if (scope, node.value, self._last(node, bindings)) in self._led_back:
            return True
        self._busy.add(key)
        try:
            # mean = x if mean is None else (mean + x) / 2; if mean is None: mean = x
            chosen = any(isinstance(b.value, cst.IfExp) or self._begins(b) for b in bindings)
            kept = [b for b in bindings if not (chosen and b.written is not None and dotted(b.written) == "None")]
            return bool(kept) and all(self._of_binding(b, depth) for b in kept)
        finally:
            self._busy.discard(key)

    def _begins(self, binding: Binding) -> bool:
        """Tell whether ``binding`` stands below ``if mean is None:``, and so gives the name its first value."""
        up = self.script.parents.get(self.script.suite(binding.node)) if binding.how == "assign" else None
        return isinstance(up, cst.If) and self.script.code(up.test) == f"{binding.name} is None"

    def _is_property(self, node: cst.Attribute, depth: int) -> bool:
        """Tell whether a method of the script's own computes one number for what is written as an attribute."""
        made = [self.flow.method(cls, node.attr.value) for cls in self.flow.classes(node.value)]
        return bool(made) and all(
            method is not None
            and any(dotted(d.decorator) == "property" for d in method.decorators)
            and all(self(r, depth) for r in self.flow.returns(method))
            for method in made
        )

    def _given(self, bindings: list[Binding], depth: int) -> bool:
        """Tell whether all calls hand on one number for a parameter."""
        values = [value for b in bindings for value in given(self.flow, b)]
        return bool(values) and all(self(value, depth) for value in values)

    def _owners(self, node: cst.Attribute) -> list[cst.CSTNode]:
        """Return what sets the attribute ``node``, ``self.loss``, ``state.loss``; none where it is not known."""
        if dotted(node.value) == "self":
            own = self.script.class_of(node)
            return [self.flow.keeper(own, node.attr.value) or own] if own is not None else []
        return self.flow.keepers(node) if not self.kinds.of(node.value) else []

    def _of_attribute(self, owner: cst.CSTNode, name: str, depth: int) -> bool:
        return self._of_variable(owner, name, self.script.attributes.get((owner, name), []), depth)

    def _of_variable(self, owner: object, name: str, bindings: list[Binding], depth: int) -> bool:
        key = (id(owner), name)
        if key in self._busy:
            return True
        self._busy.add(key)
        try:
            kept = [b for b in bindings if b.written is None or dotted(b.written) != "None"]  # none as yet
            return bool(kept) and all(self._of_binding(b, depth) for b in kept)
        finally:
            self._busy.discard(key)

    def _last(self, node: cst.CSTNode, bindings: list[Binding]) -> Binding | None:
        """Return the last of ``bindings`` before ``node``, which is what a name stands for there."""
        order = self.script.order
        own = {up for up in self.script.above(node) if isinstance(up, (cst.Assign, cst.AnnAssign, cst.AugAssign))}
        before = [b for b in bindings if b.how == "assign" and b.node not in own and order[b.node] < order[node]]
        return max(before, key=lambda b: order[b.node], default=None)

    @cached_property
    def _led_back(self) -> set[tuple[object, str, Binding | None]]:
        """The names, each with what it stands for then, that ``backward()`` begins at, or a term or factor of it.

        Without arguments it begins at one number, and sums and products are one number if all in them are.
        """
        found: set[tuple[object, str, Binding | None]] = set()
        calls = (c for c in self.script.calls if calls_method(c, "backward"))
        todo: list[cst.BaseExpression] = [c.func.value for c in calls if not c.args]
        while todo:
            match node := todo.pop():
                case cst.BinaryOperation(operator=cst.Add() | cst.Subtract() | cst.Multiply() | cst.Divide()):
                    todo += [node.left, node.right]
                case cst.Call(func=cst.Attribute(attr=cst.Name("scale")), args=[cst.Arg(value=value)]):
                    todo.append(value)
                case cst.Name():
                    bindings, scope = self.script.scopes[node].lookup(node.value)
                    last = self._last(node, bindings)
                    while last is not None and (scope, node.value, last) not in found:
                        found.add((scope, node.value, last))
                        todo += self._written(last)
                        grows = isinstance(last.node, cst.AugAssign)
                        last = self._last(last.node, bindings) if grows else None
        return found

    def _written(self, binding: Binding) -> list[cst.BaseExpression]:
        """Return what ``binding`` makes its name, be it what a function returns."""
        value, path = binding.written or binding.value, binding.path
        path = () if isinstance(binding.node, cst.AugAssign) else path
        if not isinstance(value, cst.Call) or not self.flow.targets(value):
            return [value] if value is not None and (not path or binding.written is not None) else []
        returned = [r for t in self.flow.targets(value) for r in self.flow.returns(t)]
        if path and isinstance(at := path[0], int):
            return [r.elements[at].value for r in returned if isinstance(r, cst.Tuple) and at < len(r.elements)]
        return [] if path else returned

    def _is_option(self, node: cst.Attribute) -> bool:
        """Tell whether ``node`` is an argument of the command line, which is a number where one counts with it."""
        made = [o.node for o in self.flow.origins(node.value)]
        calls = [m.func for m in made if isinstance(m, cst.Call)]
        return any(isinstance(f, cst.Attribute) and f.attr.value == "parse_args" for f in calls)

    def _of_call(self, call: cst.Call, depth: int) -> bool:
        if call in self.runs:
            what = fetched(call)
            return what is not None and self(what, depth)
        if isinstance(call.func, cst.Attribute):
            method = call.func.attr.value
            if method == "item" or (method == "result" and not call.args):  # of a tensor; of a Keras metric
                return True
            if method in ("mean", "sum", "max", "min", "numel") and not call.args:
                return not of_table(self.flow, call.func.value)
            if method == "size" and len(call.args) == 1:
                return True
            if self.script.name_of(call.func) in _WHOLE and len(call.args) == 1:
                return True
            if method in _SAME:
                return self(call.func.value, depth)
        name = self.script.name_of(call.func)
        if (known := of_library(call, name, lambda node: self(node, depth))) is not None:
            return known
        if name.startswith("tensorflow.") and of_tensorflow(self.flow, call, name, lambda node: self(node, depth)):
            return True
        if self._is_loss(call):
            return not any(map(_leaves_samples, call.args))
        returned = [r for t in self.flow.targets(call) for r in self.flow.returns(t)]
        return bool(returned) and all(self(r, depth) for r in returned)

    def _is_loss(self, call: cst.Call) -> bool:
        name = self.script.name_of(call.func)
        if name.startswith("torch.nn.functional."):
            return "loss" in name or name.endswith(("cross_entropy", "binary_cross_entropy_with_logits", "kl_div"))
        made = [o.node for o in self.flow.origins(call.func)]
        return self.kinds.of(call.func) == "loss" and not any(
            isinstance(m, cst.Call) and any(map(_leaves_samples, m.args)) for m in made
        )

    def _of_binding(self, binding: Binding, depth: int) -> bool:
        value = binding.value
        if value is not None and (yielded := self.flow.entries(value, binding.path)):
            return all(self(v, depth) for v in yielded)
        if isinstance(binding.node, (cst.For, cst.CompFor)):
            made = self.flow.through(value) if value is not None else ()
            counts = any(
                isinstance(m, cst.Call) and self.script.name_of(m.func) in ("builtins.range", "builtins.enumerate")
                for m in made
            )
            over = turned(value, binding.path) if value is not None else None
            numbers = over is not None and (
                written(self.flow, over, lambda entry: self(entry, depth))
                or self.entries.grow(over, lambda entry: self(entry, depth))
            )
            if over is not None and numbers and not self._gives_keys(over):
                return True
            return counts and binding.path in (("each",), ("each", 0))
        if binding.how != "assign" or value is None:
            return False
        if binding.path == (1,) and plays(self.kinds, binding.node):
            return True  # the reward
        if len(binding.path) == 1 and isinstance(binding.path[0], int):
            return self._part(value, binding.path[0], depth)
        if isinstance(binding.node, cst.AugAssign) and _is_named(value):
            return True  # what it is added to tells: total += losses["total"]
        return binding.path in ((), ("part",)) and self(value, depth)

    def _gives_keys(self, over: cst.CSTNode) -> bool:
        """Tell whether a loop over ``over`` goes through the keys of a dict: ``for name in sums``."""
        listed = all(
            isinstance(o.node, (cst.List, cst.Tuple, cst.ListComp, cst.BinaryOperation))
            for o in self.flow.origins(over)
        )
        return not listed and not isinstance(self.script.parents[over], cst.Attribute)  # sums.values()

    def _part(self, value: cst.BaseExpression, at: int, depth: int) -> bool:
        """Tell whether element ``at`` of a tuple is one number: of a literal one, or of what a function returns."""
        sources: list[cst.BaseExpression] = [value]
        if isinstance(value, cst.Call) and value in self.runs:
            values = entry(self.flow, value, at)
            return bool(values) and all(self(v, depth) for v in values)
        if isinstance(value, cst.Call):
            sources = [r for t in self.flow.targets(value) for r in self.flow.returns(t)]
        parts = [s.elements[at].value for s in sources if isinstance(s, (cst.Tuple, cst.List)) and at < len(s.elements)]
        return bool(parts) and len(parts) == len(sources) and all(self(p, depth) for p in parts)


def _is_named(value: cst.BaseExpression) -> bool:
    """Tell whether ``value`` is the entry of a table under a text."""
    index = value.slice[0].slice if isinstance(value, cst.Subscript) and len(value.slice) == 1 else None
    return isinstance(index, cst.Index) and isinstance(index.value, cst.SimpleString)


def _leaves_samples(arg: cst.Arg) -> bool:
    """Tell whether a loss that is given ``arg`` may return a number of each sample: ``reduction="none"``."""
    if arg.keyword is None or arg.keyword.value not in ("reduction", "reduce"):
        return False
    how = arg.value.raw_value if isinstance(arg.value, cst.SimpleString) else dotted(arg.value).rpartition(".")[2]
    return not how.lower().startswith(("mean", "sum", "auto"))
