"""Part of step "metrics": tests in a training loop that ask how large a batch is, or where it lies."""

from __future__ import annotations

import libcst as cst

from dlrun.port.facts import Facts, Feed
from dlrun.port.facts.updates.rates import ORDER
from dlrun.port.feeds.positions.positions import uses_of_number
from dlrun.port.program.script import argument, dotted, walk


def uneven(facts: Facts, feed: Feed, none: bool = False) -> bool:
    """Tell whether the batches of ``feed`` may differ in length at one step, or (``none``) one alone be empty.

    Of a loader's the last may differ, by one sample: 3 samples are 2 for one rank, and 1 for another.
    """
    made = [feed.node, *(o.node for o in facts.flow.origins(feed.node))]
    loaders = [n for n in made if isinstance(n, cst.Call) and facts.kinds.of_call(n) == "loader"]
    if feed.how in ("loader", "named", "iterable") and loaders:
        own = any(argument(call, name) is not None for call in loaders for name in ("batch_sampler", "collate_fn"))
        return own or not (
            none or all(dotted(argument(call, "drop_last") or cst.Name("False")) == "True" for call in loaders)
        )
    return feed.how in ("loader", "named", "iterable", "indices", "positions", "turns")


def asks_size(facts: Facts, test: cst.CSTNode, depth: int = 2) -> bool:
    """Tell whether ``test`` reads how many samples there are, or whether there are any, in what is local."""
    for n in walk(test):
        match n:
            case cst.Call(func=cst.Name("len"), args=[cst.Arg(value=value)]):
                found = facts.unequal(value) and facts.kinds.of(value) != "loader"  # of its batches
            case cst.Attribute(value=value, attr=cst.Name("shape" | "size" | "numel")):
                found = facts.unequal(value)
            case cst.Comparison(left=left, comparisons=[cst.ComparisonTarget(operator=cst.Is() | cst.IsNot())]):
                found = facts.unequal(left)
            case cst.Name():
                values = [b.written for b in facts.script.bindings_of(n) if b.how == "assign" and b.written is not None]
                found = bool(depth) and any(asks_size(facts, value, depth - 1) for value in values)
            case _:
                found = False
        if found:
            return True
    return False


def asks_place(facts: Facts, test: cst.CSTNode, loop: cst.For, feeds: list[Feed]) -> bool:
    """Tell whether ``test`` asks how far a local batch lies from the end: ``i + size > len(x)``."""
    own = set(uses_of_number(loop)) if any(feed.how == "indices" for feed in feeds) else set[cst.Name]()
    own |= {n for feed in feeds if feed.how == "positions" for n in feed.picks if isinstance(n, cst.Name)}
    return any(
        isinstance(c.operator, ORDER) and not own.isdisjoint((*walk(n.left), *walk(c.comparator)))
        for n in walk(test)
        if isinstance(n, cst.Comparison)
        for c in n.comparisons
    )
