"""The loops around train_on_batch(): which of them make local iterations, and how many the serial script makes."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Set
from functools import partial

import libcst as cst

from dlrun.port.edits import Edit
from dlrun.port.facts.keras import KerasFacts
from dlrun.port.feeds.iterated import Iterated
from dlrun.port.insert import expression
from dlrun.port.program.script import dotted, walk
from dlrun.port.steps.counts.counters import batches_before


def shared(facts: KerasFacts) -> Iterator[cst.For]:
    """Yield the loops of which each rank makes 1/n of the iterations."""
    for loop in facts.loops:
        inner = iterations(facts, loop)
        if isinstance(inner, cst.For) and bound(facts, inner) is not None:
            yield inner
    yield from (loop for loop in facts.sharded if bound(facts, loop) is not None)
    for node in facts.iterated:
        over = next((up for up in facts.script.above(node) if isinstance(up, cst.For)), None)
        if over is not None and facts.script.inside(node, over.iter):
            yield over


def bound(facts: KerasFacts, loop: cst.For | cst.CompFor) -> cst.BaseExpression | None:
    """Return the number up to which ``loop`` counts."""
    known = Iterated(facts.flow)
    call = known.of(loop)
    args = call.args if isinstance(call, cst.Call) and known.counts(call) else ()
    plain = [a.value for a in args if a.keyword is None and not a.star]
    return plain[min(1, len(plain) - 1)] if plain else None


def in_strides(facts: KerasFacts, loop: cst.For) -> bool:
    """Tell whether ``loop`` counts in steps of more than one, or none are seen: ``range(0, n, 8)``."""
    call = Iterated(facts.flow).of(loop)
    return not isinstance(call, cst.Call) or len(call.args) > 2


def iterations(facts: KerasFacts, loop: cst.For | cst.While) -> cst.For | cst.While | cst.CompFor:
    """Return the loop that counts steps: the innermost, but for one that trains only a part, as a GAN's critic.

    Or the iterations of a list that holds all of its losses.
    """
    lists = [n for n in walk(loop.body) if isinstance(n, (cst.ListComp, cst.GeneratorExp))]
    for each in (n for n in lists if facts.script.code(n).count("train_on_batch(") == trains(facts, loop)):
        return each.for_in
    inner = [n for n in walk(loop.body) if isinstance(n, (cst.For, cst.While)) and trains(facts, n)]
    only = next((n for n in inner if trains(facts, n) == trains(facts, loop)), None)
    return iterations(facts, only) if only is not None else loop


def trains(facts: KerasFacts, loop: cst.For | cst.While) -> int:
    """Return how many calls of train_on_batch() stand in ``loop``."""
    return facts.script.code(loop.body).count("train_on_batch(")


def before(facts: KerasFacts, loops: Collection[cst.For], divided: Set[cst.CSTNode]) -> Iterator[Edit]:
    """Divide the batches of an epoch in counts over all epochs: ``epoch * batches + i``, i the number of ``loops``.

    Not where they are made of what is ``divided`` already.
    """
    divide = partial(_divided, facts.alias)
    for loop in loops:
        for n in walk(loop.body):
            if not isinstance(n, cst.BinaryOperation) or not isinstance(n.operator, cst.Add):
                continue
            for i, side in ((n.left, n.right), (n.right, n.left)):
                batches = batches_before(facts, side) if dotted(i) == dotted(loop.target) else None
                if batches is not None and divided.isdisjoint({batches, *facts.flow.through(batches)}):
                    yield Edit(batches, "the batches of an epoch, of which a rank takes 1/n", divide)


def _divided(dl: str, node: cst.BaseExpression) -> cst.BaseExpression:
    return expression("torch/steps", {"count": node}, dl=dl)
