"""Part of step "shard": each rank evaluates its share of the test batches, each exactly one of the serial script's."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from dlrun.port.edits import Doubt, Edit, Note
from dlrun.port.facts import Facts
from dlrun.port.insert import expression
from dlrun.port.placement.evaluation import evaluations
from dlrun.port.program.script import walk


def torch(facts: Facts) -> Iterator[Edit | Doubt]:
    """Deal whole batches out to the ranks where the numbers that a loop leaves come out exactly.

    Before:
        for x, y in test_loader:
            right += (model(x).argmax(1) == y).sum().item()
        print(right / len(test_loader.dataset))

    After:
        for x, y in dl.shard(test_loader, whole="batches"):
            right += (model(x).argmax(1) == y).sum().item()
        right = dl.total(right)  # sums over all ranks' samples
        print(right / len(test_loader.dataset))
    """

    def wrap(node: cst.BaseExpression) -> cst.BaseExpression:
        return expression("torch/shard_whole", {"loader": node}, dl=facts.alias)

    shared = evaluations(facts).shared if facts.evaluations else ()
    for source in dict.fromkeys(each.source for each in shared if each.trains is None):
        yield Edit(source, "each rank evaluates 1/n of the batches, each one of the serial script's", wrap)
    yield from _numbered(facts)


def _numbered(facts: Facts) -> Iterator[Doubt]:
    """Doubt what counts iterations in a loop that trains on a share, and at other calls evaluates all batches."""
    found = evaluations(facts) if facts.evaluations and not facts.keeps_steps else None
    divided = found.run.shards.divided if found is not None else frozenset()
    for each in dict.fromkeys(e.loop for e in found.whole if e.trains is None) if found is not None else ():
        tests = [n for n in walk(each.body) if n in divided] if each in facts.loops else []
        for number in tests[:1]:
            yield Doubt(
                number,
                "every so many iterations of a share; where this loop evaluates all batches, it is divided as well: "
                "what it shows there comes n times as often, with numbers that are too large",
                "medium",
                f"show it under {facts.alias}.is_shard(...) of what the loop goes through, or not at all",
                name="unknown-placement",
            )


def in_turns(facts: Facts, source: cst.CSTNode) -> cst.BaseExpression | None:
    """Return the test by which the batches of ``source`` are trained on, where they are evaluated by turns."""
    shared = evaluations(facts).shared if facts.evaluations else ()
    return next((e.trains for e in shared if e.source is source), None)


def notes(facts: Facts) -> Iterator[Note]:
    """Yield why loops that evaluate stay whole."""
    if facts.evaluations:
        for source, why in dict.fromkeys((each.source, why) for each, why in evaluations(facts).whole.items()):
            yield Note(source, f"each rank evaluates all of it: {why}")
    for source in _comprehensions(facts) if facts.options.evaluate != "whole" else ():
        yield Note(source, "each rank evaluates all of it: a comprehension goes through it; a for loop would be shared")


def _comprehensions(facts: Facts) -> Iterator[cst.BaseExpression]:
    """Yield the loaders of which comprehensions evaluate the batches: ``[loss(model(x), y) for x, y in loader]``."""
    sharded = {node for feed in facts.feeds for node in (feed.node, *feed.picks)}
    for each in facts.script.of(cst.CompFor):
        loader = each.iter not in sharded and facts.kinds.of(each.iter) == "loader"
        made = facts.script.parents[each]
        if loader and any(n in facts.kinds.module_calls for n in walk(made)):
            yield each.iter
