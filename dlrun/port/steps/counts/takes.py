"""Part of step "steps": how many batches a loop takes of what is sharded: ``islice(loader, 100)``."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from dlrun.port.edits import Edit
from dlrun.port.facts import Facts
from dlrun.port.facts.numbers.computed import Tells
from dlrun.port.facts.updates.rates import is_zero
from dlrun.port.insert import expression
from dlrun.port.program.script import calls_method, children, dotted, walk
from dlrun.port.steps.counts.counters import feeds_of, spelled, takes_batches
from dlrun.port.steps.counts.update_counts import bare


def takes(facts: Facts) -> Iterator[tuple[cst.For, cst.BaseExpression]]:
    """Yield training loops and the numbers of batches that they take of what is sharded.

    ``islice(loader, 100)``, ``zip(range(100), loader)``. What is cut as a whole, ``dl.shard(islice(lines, 100))``, has
    the samples of all ranks.
    """
    for loop in facts.loops:
        if not isinstance(loop, cst.For) or not takes_batches(facts, loop):
            continue
        if not feeds_of(facts, loop) and not _generates(facts, loop):
            continue
        parts = spelled(facts.script, loop.iter)
        for call in dict.fromkeys(n for part in parts for n in walk(part) if isinstance(n, cst.Call)):
            if not any(facts.script.inside(call, feed.node) for feed in facts.feeds):
                yield from ((loop, count) for count in _taken(facts, call))


def resumed(facts: Facts, counts: Tells) -> Iterator[Edit]:
    """Yield the steps so far where they tell what of all batches is left, or done: ``data.take(total - step)``."""
    for call in (n for feed in facts.feeds for n in walk(feed.node) if calls_method(n, "take", "skip")):
        for read in (r for arg in call.args for r in _reads(facts, arg.value, counts)):
            yield Edit(
                read,
                "n ranks have taken n times as many of these batches",
                lambda n: expression("torch/serial_steps", {"step": n}, dl=facts.alias),
            )


def _reads(facts: Facts, node: cst.CSTNode, counts: Tells) -> Iterator[cst.BaseExpression]:
    """Yield the parts of ``node`` that are the number of steps so far: ``step.numpy()``."""
    if isinstance(node, cst.BaseExpression) and counts(bare(facts, node)):
        yield node
    else:
        for child in children(node):
            yield from _reads(facts, child, counts)


def _generates(facts: Facts, loop: cst.For) -> bool:
    """Tell whether ``loop`` draws from a generator of the script, which makes the batches or hands on a loader's."""
    called = (function for n in walk(loop.iter) if isinstance(n, cst.Call) for function in facts.flow.targets(n))
    return bool(facts.flow.drawn(loop)) or any(map(facts.flow.yields, called))


def _taken(facts: Facts, call: cst.Call) -> Iterator[cst.BaseExpression]:
    """Yield where ``call`` ends what it goes through, if it gives less than that has."""
    name = facts.script.name_of(call.func)
    given = [a.value for a in call.args if a.keyword is None and not a.star]
    if name == "itertools.islice":
        stop = given[1] if len(given) == 2 else given[2] if len(given) > 2 else None
        if stop is not None and dotted(stop) != "None":
            yield from (n for n in given[1:-1] if isinstance(n, cst.Integer) and not is_zero(n))  # from there on
            yield stop
    elif name == "builtins.zip":
        for iterations in (n for n in given if isinstance(n, cst.Call) and _is_range(facts, n)):
            plain = [a.value for a in iterations.args if a.keyword is None and not a.star]
            yield from [but_one(plain[min(1, len(plain) - 1)])] if plain else []


def _is_range(facts: Facts, call: cst.Call) -> bool:
    return (facts.script.name_of(call.func) or dotted(call.func)).endswith("range")


def but_one(count: cst.BaseExpression) -> cst.BaseExpression:
    """Return ``count`` without the one that is added to it, or taken away: ``n`` in ``n + 1``."""
    if not isinstance(count, cst.BinaryOperation) or not isinstance(count.operator, (cst.Add, cst.Subtract)):
        return count
    return count.left if isinstance(count.right, cst.Integer) and count.right.evaluated_value == 1 else count
