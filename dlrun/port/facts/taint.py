"""Which values differ between the ranks: what a model computes from its rank's batch, and what follows."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import libcst as cst

from dlrun.port.facts.kinds import Kinds
from dlrun.port.program.script import Binding, Scope, Script, children

# Methods that put their arguments into the object they are called on.
_FILLS = {"update", "append", "extend", "add", "insert", "push", "record"}


class Taint:
    """The names, attributes and functions that carry rank-local values, starting from the expressions ``seeds``."""

    def __init__(
        self, script: Script, kinds: Kinds, seeds: Iterable[cst.CSTNode], cuts: Iterable[cst.CSTNode] = ()
    ) -> None:
        """Follow assignments, arguments and returns until nothing new turns up; ``cuts`` are known to be equal."""
        self.script = script
        self.flow = kinds.flow
        self.seeds = set(seeds)
        self.cuts = set(cuts)
        self.names: set[tuple[Scope, str]] = set()
        self.attributes: set[tuple[cst.CSTNode, str]] = set()
        self.functions: set[cst.CSTNode] = set()
        self._statements = [n for n in script.nodes if isinstance(n, (cst.Return, cst.Assign))]
        while self._spread():
            pass

    def __call__(self, node: cst.CSTNode) -> bool:
        """Tell whether the value of ``node`` may differ between the ranks. A comparison's outcome counts as decided."""
        if node in self.cuts:
            return False
        if node in self.seeds:
            return True
        match node:
            case cst.Comparison():
                # As a condition it is decided; as an array of outcomes, counted or averaged, it is a value.
                counted = isinstance(self.script.parents.get(node), (cst.Arg, cst.Attribute, cst.BinaryOperation))
                return counted and any(self(part) for part in children(node))
            case cst.Lambda():
                return False
            case cst.Name():
                scope = self.script.scopes[node].lookup(node.value)[1]
                return scope is not None and (scope, node.value) in self.names
            case cst.Attribute():
                owner = self.script.class_of(node)
                if isinstance(node.value, cst.Name) and node.value.value == "self" and owner is not None:
                    return (owner, node.attr.value) in self.attributes
                if node.attr.value in ("shape", "dtype", "device", "size", "ndim"):
                    return False
                return self(node.value)
            case cst.Call():
                return self._of_call(node)
            case _:
                return any(self(part) for part in children(node))

    def _of_call(self, node: cst.Call) -> bool:
        if node in self.seeds:
            return True
        name = self.script.name_of(node.func)
        if name in ("builtins.len", "builtins.range", "builtins.type", "builtins.isinstance", "builtins.enumerate"):
            return False
        if isinstance(node.func, cst.Attribute):
            if node.func.attr.value in ("size", "dim", "numel", "state_dict", "parameters"):
                return False
            if self(node.func.value):
                return True
        targets = self.flow.targets(node)
        if targets:
            return any(t in self.functions for t in targets)
        return any(self(a.value) for a in node.args)

    def _spread(self) -> bool:
        before = len(self.names) + len(self.attributes) + len(self.functions)
        for scope in {id(s): s for s in self.script.scopes.values()}.values():
            for name, bindings in scope.names.items():
                if (scope, name) not in self.names and any(self._gives(b) for b in bindings):
                    self.names.add((scope, name))
        for (cls, name), bindings in self.script.attributes.items():
            if (cls, name) not in self.attributes and any(self._gives(b) for b in bindings):
                self.attributes.add((cls, name))
        for call in self.script.calls:
            if any(self(a.value) for a in call.args):
                self._into(call)
        for node in self._statements:
            if isinstance(node, cst.Return):
                if node.value is None:
                    continue
                function = self.script.function_of(node)
                if function not in self.functions and self(node.value):
                    self.functions.add(function)
            elif isinstance(node.targets[0].target, cst.Subscript) and self(node.value):
                self._mark(node.targets[0].target.value)
        return len(self.names) + len(self.attributes) + len(self.functions) > before

    def _gives(self, binding: Binding) -> bool:
        if binding.how != "assign" or binding.value is None:
            return False
        at = binding.path[0] if binding.path else "all"
        if isinstance(binding.value, cst.Tuple) and isinstance(at, int) and at < len(binding.value.elements):
            return self(binding.value.elements[at].value)
        return self(binding.value)

    def _into(self, call: cst.Call) -> None:
        for target in self.flow.targets(call):
            for param in (*target.params.params, *target.params.kwonly_params):
                argument = self.flow.argument(call, target, param.name.value)
                if argument is not None and self(argument):
                    self.names.add((self.script.scopes[target.body], param.name.value))
        if isinstance(call.func, cst.Attribute) and call.func.attr.value in _FILLS:
            self._mark(call.func.value)

    def _mark(self, node: cst.CSTNode) -> None:
        if isinstance(node, cst.Name):
            scope = self.script.scopes[node].lookup(node.value)[1]
            if scope is not None:
                self.names.add((scope, node.value))
        elif isinstance(node, cst.Attribute) and isinstance(node.value, cst.Name) and node.value.value == "self":
            owner = self.script.class_of(node)
            if owner is not None:
                self.attributes.add((owner, node.attr.value))
        elif isinstance(node, cst.Subscript):
            self._mark(node.value)


def forwards(script: Script, kinds: Kinds, where: Callable[[cst.CSTNode], bool]) -> list[cst.CSTNode]:
    """Return the calls of modules and losses, and ``.item()`` calls, at places for which ``where`` holds."""
    found: list[cst.CSTNode] = []
    for call in script.calls:
        item = isinstance(call.func, cst.Attribute) and call.func.attr.value == "item"
        if (item or kinds.of(call.func) in ("module", "loss") or _functional(script, call)) and where(call):
            found.append(call)
    return found


def chances(script: Script) -> list[cst.CSTNode]:
    """Return the calls that read the clock or draw at random: each rank sees something else."""
    heads = ("time.", "datetime.", "random.", "numpy.random.", "torch.rand", "torch.bernoulli")
    return [call for call in script.calls if script.name_of(call.func).startswith(heads)]


def _functional(script: Script, call: cst.Call) -> bool:
    return script.name_of(call.func).startswith("torch.nn.functional.")
