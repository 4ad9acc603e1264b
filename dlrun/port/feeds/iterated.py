"""What a loop runs over, behind the names and wrappers in which scripts hide it."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from dlrun.port.program.flow import Flow
from dlrun.port.program.script import dotted, names_in, numbered

BARS = ("tqdm", "track", "progress_bar")
WRAPPERS = ("enumerate", "iter", "cycle", "islice", "list", *BARS)
_COUNTS = (
    "builtins.range",
    "numpy.arange",
    "torch.arange",
    "tensorflow.range",
    "itertools.count",
    "tqdm.trange",
    "tqdm.auto.trange",
    "tqdm.notebook.trange",
)


class Iterated:
    """Answers what the loops of one script run over."""

    def __init__(self, flow: Flow) -> None:
        self.flow = flow
        self.script = flow.script

    def source(self, node: cst.BaseExpression) -> cst.BaseExpression:
        """Return what is iterated: ``loader`` in ``enumerate(tqdm(loader), 1)``."""
        while isinstance(node, cst.Call):
            if isinstance(node.func, cst.Attribute) and (numbered(node) or node.func.attr.value == "__iter__"):
                node = node.func.value
                continue
            if self.script.name_of(node.func) == "builtins.map" and len(node.args) == 2:
                node = node.args[1].value
                continue
            if not node.args or self.script.name_of(node.func).rsplit(".", 1)[-1] not in WRAPPERS:
                break
            node = node.args[0].value
        return node

    def counted(self, node: cst.BaseExpression) -> cst.BaseExpression:
        """Return what is iterated, also where a bar around it has a name: ``range(9)`` of ``bar = tqdm(range(9))``."""
        source = self.source(node)
        bound = (
            [b for b in self.script.bindings_of(source) if b.how == "assign"] if isinstance(source, cst.Name) else []
        )
        value = bound[0].value if len(bound) == 1 and not bound[0].path else None
        return self.source(value) if isinstance(value, cst.Call) else source

    def advanced(self, call: cst.CSTNode) -> cst.BaseExpression | None:
        """Return ``it`` in ``next(it)``, ``it.__next__()`` and Python 2's ``it.next()``."""
        if not isinstance(call, cst.Call):
            return None
        if self.script.name_of(call.func) == "builtins.next" and call.args:
            return call.args[0].value
        method = call.func if isinstance(call.func, cst.Attribute) and not call.args else None
        if not call.args and (handed := self._handed_on(call.func)) is not None:
            return handed
        if method is None or method.attr.value not in ("next", "__next__") or self.flow.targets(call):
            return None
        if isinstance(self.script.parents.get(call), cst.Expr):
            return None  # `handle.next()` moves on something of the script's own: a batch would be taken
        return method.value

    def _handed_on(self, func: cst.BaseExpression) -> cst.BaseExpression | None:
        """Return ``it`` where ``func`` is a name for ``it.__next__``."""
        made = [o.node for o in self.flow.origins(func)]
        named = [n.value for n in made if isinstance(n, cst.Attribute) and n.attr.value == "__next__" and n is not func]
        return named[0] if len(named) == len(made) == 1 else None

    def of(self, loop: cst.For | cst.CompFor) -> cst.BaseExpression:
        """Return what ``loop`` runs over: the call of range() even if it hides behind a name or a progress bar."""
        iterated = self.source(loop.iter)
        for origin in self.flow.origins(iterated):
            if isinstance(origin.node, cst.BaseExpression) and self.numbers(origin.node):
                return origin.node
        return iterated

    def counts(self, node: cst.BaseExpression) -> bool:
        """Tell whether ``node`` is ``range(n)`` or the like."""
        if not isinstance(node, cst.Call):
            return False
        return self.script.name_of(node.func) in _COUNTS or dotted(node.func) == "xrange"  # Python 2's

    def numbers(self, node: cst.BaseExpression) -> bool:
        """Tell whether ``node`` counts, also in pairs: ``zip(range(0, n, size), range(size, n, size))``."""
        zips = isinstance(node, cst.Call) and self.script.name_of(node.func) == "builtins.zip" and bool(node.args)
        pairs = zips and isinstance(node, cst.Call) and all(self.counts(a.value) for a in node.args)
        return pairs or self.counts(node)

    def lists(self, loop: cst.CSTNode) -> bool:
        """Tell whether ``loop`` runs over what is written out, one iteration a kind of batch: ``in ("a", "b")``."""
        made = [o.node for o in self.flow.origins(self.of(loop))] if isinstance(loop, cst.For) else []
        return bool(made) and all(
            isinstance(n, (cst.List, cst.Tuple))
            and n.elements
            and all(isinstance(e.value, (cst.SimpleString, cst.BaseNumber)) for e in n.elements)
            for n in made
        )

    def picks_objects(self, loop: cst.CSTNode, way: Iterable[cst.CSTNode]) -> bool:
        """Tell whether ``loop`` runs over objects of the script's own, whose methods ``way`` calls: models to train."""
        names = names_in(loop.target) if isinstance(loop, cst.For) else set()
        called = [c.func.value for c in way if isinstance(c, cst.Call) and isinstance(c.func, cst.Attribute)]
        return any(dotted(c).split(".")[0] in names and self.flow.classes(c) for c in called)
