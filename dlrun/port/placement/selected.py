"""Batches that a script trains on, or leaves out, by their number in the pass: ``if i % 5 == fold: continue``.

Each rank numbers the batches of its share. Those in front of a number are the serial script's in front of it, once the
number is divided; those of every so many are others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import libcst as cst

from dlrun.port.edits import Doubt
from dlrun.port.facts import Facts, ScriptFacts
from dlrun.port.placement.shards import Shards
from dlrun.port.placement.values import Kind, Place
from dlrun.port.program.script import calls_method, walk
from dlrun.port.steps.counts.conditions import ends_iteration
from dlrun.port.steps.counts.milestones import TAKEN_OF, updates

_FROM_0, _FROM_1 = (cst.LessThan, cst.GreaterThanEqual), (cst.LessThanEqual, cst.GreaterThan)


def compared_in_order(
    facts: ScriptFacts, place: Callable[[cst.BaseExpression], Place | None]
) -> Iterator[cst.BaseExpression]:
    """Yield the numbers in front of which, or from which on, no batch is trained on: ``if i < skipped: continue``."""
    for test in (n for n in facts.script.of(cst.If) if selects(facts, n)):
        for node in walk(test.test):
            match node:
                case cst.Comparison(left=left, comparisons=[cst.ComparisonTarget(operator=how, comparator=number)]):
                    at = place(left)
                    operators = {Kind.INDEX: _FROM_0, Kind.COUNT: _FROM_1}.get(at.kind, ()) if at is not None else ()
                    if isinstance(how, operators):
                        yield number


def selects(facts: ScriptFacts, test: cst.If) -> bool:
    """Tell whether an iteration that has its batch trains on it, or does not, by ``test``."""
    script = facts.script
    loop = next((up for up in script.above(test) if isinstance(up, (cst.For, cst.While, cst.FunctionDef))), None)
    if not isinstance(loop, cst.For) or test.orelse is not None or isinstance(script.parents[test], cst.If):
        return False
    inside = _trains(facts, [test.body])
    own = ends_iteration(script, test.body)
    block = script.block(test)
    rest = block[block.index(test) + 1 :] if own and test in block else []
    if own and not inside:
        return _trains(facts, rest) and not _trains(facts, [n for n in script.block_of(loop) if n not in block])
    below = {test, *script.above(test)}
    return inside and not own and not _trains(facts, [n for n in script.block_of(loop) if n not in below])


def doubts(facts: Facts, counted: Callable[[cst.BaseExpression], bool], shards: Shards) -> Iterator[Doubt]:
    """Yield the tests by which other batches are trained on than in the serial script."""
    for test in facts.script.of(cst.If) if not shards.parts and not shards.episodes else ():
        asked = [n for n in walk(test.test) if isinstance(n, (cst.Name, cst.Attribute)) and counted(n)]
        if asked and shards.cadences.keys().isdisjoint(walk(test.test)) and selects(facts, test):
            name = facts.script.code(asked[0])
            why = f"which batches are trained on goes by {name}, and each rank numbers those of its share"
            write = "a loader of the batches, or of the samples, that are to be trained on"
            yield Doubt(test, f"{why}: they are others than in the serial script", "medium", write, name="counts-steps")


def _trains(facts: ScriptFacts, bodies: list[cst.CSTNode]) -> bool:
    taken = ("backward", *TAKEN_OF)
    return updates(facts, bodies) or any(
        calls_method(n, *taken) for body in bodies for each in facts.flow.bodies(body, 3) for n in walk(each)
    )
