"""From a step that was measured on one node to many: the model of ``dlrun scale``, with the network's rate put in.

A step is computing, which stays, and averaging. Within a node that was measured; b (m-1)/m is taken for it, and so b is
known. Between N nodes each moves 2 (N-1)/N of the gradients' bytes out and in (the bandwidth-optimal allreduce), and
2 log2(N) messages follow one another.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from dlrun.estimate.measure import Measured
from dlrun.estimate.network import Network
from dlrun.scale.predict import Model, terms
from dlrun.scale.result import WEAK

BACKWARD = 2 / 3  # of the computing: two of the three products of a layer are of backward


@dataclass(frozen=True)
class Row:
    """A step on so many ranks: seconds of it all and of averaging, its efficiency, and that where backward hides it."""

    ranks: int
    nodes: int
    step: float
    averaging: float
    efficiency: float
    hidden: float


def computing(measured: Measured) -> float:
    """Return the seconds of a step without averaging; where backward hides that, the step is all that is known."""
    return measured.step if measured.overlap else max(measured.step - measured.averaging, measured.step / 10)


def averaging(measured: Measured, network: Network, ranks: int, per_node: int) -> float:
    """Return the seconds that averaging takes on so many ranks."""
    on_node, nodes = min(ranks, per_node), math.ceil(ranks / per_node)
    within = measured.averaging / terms(WEAK, measured.ranks)[0]
    node = Model(WEAK, per_node, 0.0, within, 0.0)
    wires = Model(WEAK, nodes, 0.0, 2 * measured.nbytes / network.rate, 2 * network.latency)
    return _seconds(node, on_node) + _seconds(wires, nodes)


def _seconds(model: Model, members: int) -> float:
    """Return the seconds of one exchange among so many, by a model that computes nothing."""
    return members / model.rate(members) if members > 1 else 0.0


def rows(measured: Measured, network: Network, ranks: int, per_node: int) -> list[Row]:
    """Return a row for a node's ranks, each doubling of them, and the number that was asked for."""
    counts = [n for n in (per_node << i for i in range(32)) if n < ranks]
    alone, found = computing(measured), []
    for n in [*counts, ranks]:
        spent = averaging(measured, network, n, per_node)
        exposed = max(0.0, spent - BACKWARD * alone)
        step = alone + (exposed if measured.overlap else spent)
        found.append(Row(n, math.ceil(n / per_node), step, spent, alone / (alone + spent), alone / (alone + exposed)))
    return found
