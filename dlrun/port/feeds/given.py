"""What the iterations of a training loop give to a model, to a loss, or to a session."""

from __future__ import annotations

from collections.abc import Callable

import libcst as cst

from dlrun.port.facts.loops import Loops
from dlrun.port.feeds.positions import beside
from dlrun.port.feeds.positions.positions import mentions
from dlrun.port.inputs import comes_from
from dlrun.port.program.script import calls_method, walk


class Given:
    """Tells what the loops of a script compute with; ``fed`` returns what a call feeds into a graph."""

    def __init__(self, loops: Loops, fed: Callable[[cst.Call], tuple[cst.BaseExpression, ...]]) -> None:
        self._loops = loops
        self._fed = fed

    def takes(self, loop: cst.For | cst.While, made: cst.CSTNode) -> bool:
        """Tell whether ``made`` is given to a model, to a loss, or to a session in ``loop``, or in what it calls."""
        kinds, bodies = self._loops.kinds, self._loops.flow.bodies(loop.body, 3)
        calls = [n for body in bodies for n in walk(body) if isinstance(n, cst.Call)]
        given = [a.value for c in calls if kinds.of(c.func) in ("module", "loss") for a in c.args]
        given += [value for c in calls for value in self._fed(c)]
        return any(comes_from(self._loops, value, {made}) for value in given)

    def _weighed_in(self, loop: cst.For | cst.While, made: cst.Subscript) -> bool:
        """Tell whether ``made``, a slice of an array or one of a list of batches, is a part of a loss in ``loop``."""
        kinds, bodies = self._loops.kinds, self._loops.flow.bodies(loop.body, 3)
        lists = [o.node for o in self._loops.flow.origins(made.value)]
        sliced = isinstance(made.slice[0].slice, cst.Slice)
        if not sliced and not any(beside.is_cut(n) or beside.holds_batches(kinds, n) for n in lists):
            return False  # an entry of a table, such as a rate
        calls = [n for body in bodies for n in walk(body) if isinstance(n, cst.Call)]
        losses: list[cst.CSTNode] = [c.func.value for c in calls if calls_method(c, "backward")]
        losses += [c.args[0].value for c in calls if calls_method(c, "gradient") and c.args]
        return any(comes_from(self._loops, loss, {made}) for loss in losses)

    def by_number(self, loop: cst.For | cst.While) -> cst.CSTNode | None:
        """Return what goes with a batch, picked by its number: ``y[i]`` for ``i, x in enumerate(xs)``."""
        script = self._loops.script
        if not (isinstance(loop, cst.For) and isinstance(loop.target, cst.Tuple)):
            return None
        first = loop.target.elements[0].value
        if not (isinstance(first, cst.Name) and script.code(loop.iter).startswith("enumerate(")):
            return None
        picked = [
            n
            for n in walk(loop.body)
            if isinstance(n, cst.Subscript)
            and mentions(n.slice[0], {first.value})
            and not isinstance(script.parents[n], cst.AssignTarget)
        ]
        return next((n for n in picked if self.takes(loop, n) or self._weighed_in(loop, n)), None)
