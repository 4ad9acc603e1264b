"""The loops around train_on_batch(): which of them make a rank's own turns, and how many the serial script makes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import libcst as cst

from dlrun.port.facts.keras import KerasFacts
from dlrun.port.feeds.iterated import Iterated
from dlrun.port.passes.bounds import sources
from dlrun.port.program.script import names_in, walk


@dataclass(frozen=True)
class Shared:
    """A loop of which each rank makes 1/n of the turns, and the text of their serial number.

    ``shrunk`` are the names by which the script reads that number after it was divided where it is written.
    """

    loop: cst.For
    count: str
    shrunk: frozenset[str] = frozenset()


def shared(facts: KerasFacts) -> Iterator[Shared]:
    """Yield the loops whose turns the ranks share."""
    for loop in facts.loops:
        inner = turns(facts, loop)
        count = bound(facts, inner) if isinstance(inner, cst.For) else None
        if isinstance(inner, cst.For) and count is not None:
            here = count in sources(facts, count)
            yield Shared(inner, facts.script.code(count), frozenset() if here else frozenset(names_in(count)))
    for loop in facts.dealt:
        if (count := bound(facts, loop)) is not None:
            yield Shared(loop, facts.script.code(count))
    for node in facts.iterated:
        over = next((up for up in facts.script.above(node) if isinstance(up, cst.For)), None)
        if over is not None and facts.script.inside(node, over.iter):
            yield Shared(over, f"len({facts.script.code(node)})")


def bound(facts: KerasFacts, loop: cst.For | cst.CompFor) -> cst.BaseExpression | None:
    """Return the number up to which ``loop`` counts."""
    known = Iterated(facts.flow)
    call = known.of(loop)
    args = call.args if isinstance(call, cst.Call) and known.counts(call) else ()
    plain = [a.value for a in args if a.keyword is None and not a.star]
    return plain[min(1, len(plain) - 1)] if plain else None


def turns(facts: KerasFacts, loop: cst.For | cst.While) -> cst.For | cst.While | cst.CompFor:
    """Return the loop that counts steps: the innermost, but for one that trains only a part, as a GAN's critic.

    Or the turns of a list that holds all of its losses.
    """
    lists = [n for n in walk(loop.body) if isinstance(n, (cst.ListComp, cst.GeneratorExp))]
    for each in (n for n in lists if facts.script.code(n).count("train_on_batch(") == trains(facts, loop)):
        return each.for_in
    inner = [n for n in walk(loop.body) if isinstance(n, (cst.For, cst.While)) and trains(facts, n)]
    only = next((n for n in inner if trains(facts, n) == trains(facts, loop)), None)
    return turns(facts, only) if only is not None else loop


def trains(facts: KerasFacts, loop: cst.For | cst.While) -> int:
    """Return how many calls of train_on_batch() stand in ``loop``."""
    return facts.script.code(loop.body).count("train_on_batch(")
