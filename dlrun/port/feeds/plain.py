"""Numbers, texts, devices and parameters among what goes into a loss: all that is no data."""

from __future__ import annotations

import re
from collections.abc import Callable

import libcst as cst

from dlrun.port.facts.models.kinds import Kinds
from dlrun.port.facts.numbers.tested import is_value
from dlrun.port.inputs import made_of

# Names of what is one for each column of the samples, or for all: the domain's bounds, what inputs are scaled by.
_BOUNDS = re.compile(r"(^|_)(lb|ub|lower|upper|(lower|upper)_?bounds?|mean|std)$", re.IGNORECASE)
# Methods of modules that compute nothing with what they are given.
_KEEPS = ("load_state_dict", "to", "train", "register_buffer", "register_parameter", "add_module", "apply")
_PLAIN = (cst.Integer, cst.Float, cst.SimpleString, cst.Comparison, cst.ConcatenatedString, cst.Lambda)
_CONSTANTS = ("numpy.pi", "math.pi", "torch.pi", "numpy.e", "math.e")
_NUMBERS = ("torch.device", "builtins.len", "builtins.int", "builtins.float", "builtins.range", "time.time")


class Plain:
    """Tells what is a number, a text, a device or a parameter rather than data."""

    def __init__(self, kinds: Kinds, trained: Callable[[str], bool]) -> None:
        """Answer for the script of ``kinds``, of which an optimizer gets the names that are ``trained``."""
        self.kinds, self.flow, self.script = kinds, kinds.flow, kinds.script
        self._trained = trained

    def __call__(self, name: cst.Name | cst.Attribute) -> bool:
        """Tell whether ``name`` stands for no data."""
        text = name.value if isinstance(name, cst.Name) else name.attr.value
        if _BOUNDS.search(text):
            return True
        for origin in self.flow.origins(name):
            node = origin.node
            labels = isinstance(node, cst.Comparison) and is_value(self.script, node)  # (x.sum(1) > 0).float()
            if (isinstance(node, _PLAIN) and not labels) or self._is_number(node):
                return True
            if isinstance(node, cst.Call):
                called = self.script.name_of(node.func)
                if called in _NUMBERS or called.endswith(("parse_args", "Parameter")):
                    return True
                if any(a.keyword is not None and a.keyword.value == "requires_grad" for a in node.args):
                    return isinstance(name, cst.Name) and not self._is_input(name, node)
                if isinstance(node.func, cst.Attribute) and node.func.attr.value in ("requires_grad_", "item"):
                    return True
            if isinstance(node, cst.DictComp) and isinstance(node.value, (cst.Name, *_PLAIN)):
                return True  # a vocabulary: the number of each word
            if (
                isinstance(node, (cst.Dict, cst.List, cst.Tuple))
                and node.elements
                and all(
                    isinstance(e.value, cst.SimpleString if isinstance(node, cst.List) else _PLAIN)
                    for e in node.elements
                )
            ):
                return True
        return False

    def _is_number(self, node: cst.CSTNode, seen: frozenset[cst.CSTNode] = frozenset()) -> bool:
        """Tell whether ``node`` is computed from numbers alone, or from lengths: ``0.01 / np.pi``, ``x.shape[0]``.

        ``seen`` are the names on the way to it: a sum that starts as a number, ``s = 0; s = s + x``, may hold anything.
        """
        inner = node.value if isinstance(node, cst.Subscript) else node
        shape = isinstance(inner, cst.Attribute) and inner.attr.value == "shape"
        if isinstance(node, cst.UnaryOperation):
            return self._is_number(node.expression, seen)
        if isinstance(node, cst.BinaryOperation):
            return self._is_number(node.left, seen) and self._is_number(node.right, seen)
        if isinstance(node, cst.Name):
            made = [o.node for o in self.flow.origins(node)]
            return node not in (*made, *seen) and all(self._is_number(m, seen | {node}) for m in made)
        if isinstance(node, cst.Call):
            return self.script.name_of(node.func) in _NUMBERS
        return shape or isinstance(node, (cst.Integer, cst.Float)) or self.script.name_of(node) in _CONSTANTS

    def _is_input(self, name: cst.Name, made: cst.Call) -> bool:
        """Tell whether the tensor ``made`` with a gradient goes into a module, and so is no weight: ``net(x)``."""
        given = [a.value for c in self.script.calls if self._runs_module(c.func) for a in c.args]
        return not self._trained(name.value) and any(made_of(self.flow, value, {made}) for value in given)

    def _runs_module(self, func: cst.BaseExpression) -> bool:
        """Tell whether ``func`` is a module, or a method of one that computes: ``model.time_derivative``."""
        owner = func.value if isinstance(func, cst.Attribute) and func.attr.value not in _KEEPS else func
        return "module" in (self.kinds.of(func), self.kinds.of(owner))
