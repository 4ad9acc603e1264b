"""Full batches that an object keeps in its attributes, and the method in which they can be cut once and for all."""

from __future__ import annotations

from collections.abc import Collection

import libcst as cst

from dlrun.port.facts.models.kinds import Kinds
from dlrun.port.program.script import dotted


class Held:
    """The arrays that the losses of one loop read from attributes of ``self``, by name: ``self.x``."""

    def __init__(self, kinds: Kinds, reached: Collection[cst.FunctionDef]) -> None:
        """Take the functions that the loop runs; attributes that these set are no arrays but what is made of them."""
        self.kinds = kinds
        self.flow, self.script = kinds.flow, kinds.script
        self.reached = reached
        self.arrays: dict[str, cst.CSTNode] = {}  # each with the assignment that sets it
        self.scattered: cst.Attribute | None = None  # an array that is not set once, in a line of a method
        self.cls: cst.ClassDef | None = None

    def set_by(self, node: cst.Attribute) -> list[cst.CSTNode] | None:
        """Return the assignments that set the attribute ``node`` of a class of the script's own; None for others."""
        cls = self.script.class_of(node)
        if cls is None or not self.flow.is_plain(cls) or dotted(node) != f"self.{node.attr.value}":
            return None
        return [b.node for b in self.script.attributes.get((cls, node.attr.value), ())] or None

    def follows(self, node: cst.Attribute) -> list[cst.BaseExpression]:
        """Return what the functions that the loop runs set the attribute ``node`` to."""
        bindings = self.script.attributes.get((self.script.class_of(node), node.attr.value), ())  # type: ignore[arg-type]
        return [b.value for b in bindings if b.value is not None and self.script.function_of(b.node) in self.reached]

    def note(self, node: cst.Attribute) -> None:
        """Note the array ``node``, which is set before the loop."""
        made, cls = self.set_by(node) or [], self.script.class_of(node)
        function = self.script.function_of(made[0]) if made else None
        line = self.script.line_of(made[0]) if len(made) == 1 and isinstance(made[0], cst.Assign) else None
        body = function.body if isinstance(function, cst.FunctionDef) else None
        if line is None or self.script.parents[line] is not body or self.cls not in (None, cls):
            self.scattered = self.scattered or node
            return
        self.cls = cls
        self.arrays.setdefault(dotted(node), made[0])
        if len({self.script.function_of(n) for n in self.arrays.values()}) > 1:
            self.scattered = self.scattered or node

    @property
    def place(self) -> cst.CSTNode:
        """The assignment after which all the arrays are set."""
        return max(self.arrays.values(), key=lambda n: self.script.order[n])

    def uses(self) -> list[cst.Attribute]:
        """Return the expressions in functions that the loop runs, and in its own, which read the arrays."""
        return [n for n in self._named() if self.script.class_of(n) is self.cls and self._trains(n)]

    def elsewhere(self) -> bool:
        """Tell whether something reads the arrays that does not train, and may do so when they are cut."""
        return any(not self._trains(n) and not self._before(n) for n in self._named())

    def _named(self) -> list[cst.Attribute]:
        names = {name.removeprefix("self.") for name in self.arrays}
        found = [n for n in self.script.of(cst.Attribute) if n.attr.value in names]
        return [
            n
            for n in found
            if not isinstance(self.script.parents[n], cst.AssignTarget)
            and (self.script.class_of(n) is self.cls or self.cls in self.flow.classes(n.value))
        ]

    def _trains(self, node: cst.CSTNode) -> bool:
        return self.script.function_of(node) in self.reached

    def _before(self, node: cst.CSTNode) -> bool:
        function = self.script.function_of(self.place)
        return self.script.function_of(node) is function and self.script.order[node] < self.script.order[self.place]
