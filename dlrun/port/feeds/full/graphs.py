"""One graph that every step takes whole: what a script draws beside it is noise, unless it picks nodes."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from dlrun.port.feeds.draws import Draws
from dlrun.port.program.script import dotted, walk


def stays(draws: Draws, body: cst.CSTNode, graph: cst.CSTNode) -> bool:
    """Tell whether ``graph``, which a loss takes, is the same in all iterations of ``body``, and none draws its nodes.

    Edges that are drawn to be told from those that are there are no samples: each step takes all the others. A loss of
    drawn nodes, ``cross_entropy(model(x, adj)[idx], y[idx])``, is one of a batch.
    """
    while isinstance(graph, cst.Attribute) and dotted(graph.value) != "self":
        graph = graph.value
    made = {o.node for o in draws.flow.origins(graph)} if isinstance(graph, (cst.Name, cst.Attribute)) else set()
    if not made or any(call in made for call in draws.reached(body)):
        return False
    drawn = {call for call in draws.random(body) if not draws.is_noise(call)}
    return not any(drawn & _behind(draws, at) for at in _indices(draws, body))


def _indices(draws: Draws, body: cst.CSTNode) -> Iterator[cst.BaseExpression]:
    """Yield what arrays are read at, in all that ``body`` may run."""
    for part in (n for piece in draws.flow.bodies(body) for n in walk(piece) if isinstance(n, cst.Subscript)):
        if not isinstance(draws.script.parents[part], cst.AssignTarget):
            yield from (e.slice.value for e in part.slice if isinstance(e.slice, cst.Index))


def _behind(draws: Draws, index: cst.BaseExpression) -> set[cst.Call]:
    """Return the calls that ``index`` is made of; a permutation of all nodes picks none."""
    found = draws.flow.origins(index)
    permuted = {o.node for o in found if o.whole and isinstance(o.node, cst.Call) and draws.permutes(o.node)}
    return {n for o in found for n in walk(o.node) if isinstance(n, cst.Call)} - permuted
