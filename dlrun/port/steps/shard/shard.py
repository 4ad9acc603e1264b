"""Step "shard": each rank trains on its own share of the samples."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import libcst as cst

from dlrun.port.edits import Doubt, Edit
from dlrun.port.facts import Facts, Feed, ScriptFacts
from dlrun.port.feeds.draws import IN_PLACE
from dlrun.port.feeds.positions.beside import cuts_batches, cuts_order
from dlrun.port.feeds.positions.positions import ends, slides
from dlrun.port.insert import expression, statements
from dlrun.port.program.script import calls_method, dotted, walk
from dlrun.port.steps.counts.bounds import FILLED, tables
from dlrun.port.steps.metrics import evaluation
from dlrun.port.steps.shard import alike, cuts, full, order, rows, seeds, stretches, unseeded

_HELD = (cst.Name, cst.Attribute, cst.Subscript)  # what has another name already
_TUPLES = ("split", "chunk", "tensor_split", "unbind")  # of tensors


def torch(facts: Facts) -> Iterator[Edit | Doubt]:
    """Wrap what training loops run over, and what evaluations do whose numbers come out exactly.

    Before:
        loader = DataLoader(data, batch_size=8, shuffle=True)
        for x, y in loader:
            (model(x) - y).pow(2).mean().backward()
            opt.step()

    After:
        loader = dl.shard(DataLoader(data, batch_size=8, shuffle=True))
        for x, y in loader:
            (model(x) - y).pow(2).mean().backward()
            opt.step()
    """

    yield from alike_orders(facts)

    def wrap(node: cst.BaseExpression) -> cst.BaseExpression:
        return expression("torch/shard", {"loader": node}, dl=facts.alias, batch=facts.options.batch)

    deals = "every epoch's order is drawn once and sharded over the ranks"
    if facts.options.batch == "global":
        deals = "each rank takes 1/n of every batch"

    for feed in facts.feeds:
        if isinstance(feed.node, (cst.List, cst.Tuple)) and not feed.node.elements:
            continue  # none yet: what is taken once they are made is shared
        share = (lambda node: wrap(_listed(node))) if _is_tuple(facts, feed.node) else wrap
        if feed.how == "loader":
            yield Edit(feed.node, deals, share)
        elif feed.how == "named":
            yield from cuts.named(facts, feed, deals)
        elif feed.how == "positions":
            yield from positions(facts, feed)
        elif feed.how in ("indices", "turns"):
            if (trains := evaluation.in_turns(facts, feed.node)) is not None:
                share = partial(_by_turns, facts, trains)
            yield Edit(feed.node, "the ranks take the batches of the serial run in turn", share)
            if feed.how == "turns" and (test := _asks_for_more(facts, feed.node)) is not None:
                yield Doubt(
                    test,
                    "n ranks take n batches an iteration: where n does not divide their number, some ranks go "
                    "past the end in the last iteration",
                    "high",
                    "as many batches as n divides",
                    name="uneven-share",
                )
        elif feed.how == "iterable":
            why = "the training loop takes this rank's share of the batches"
            pieces = cuts_order(facts.script, facts.flow, feed.node) or cuts_batches(
                facts.script, facts.flow, feed.node
            )
            if facts.options.batch == "global" and pieces:
                share = partial(_one_by_one, wrap)
            if (trains := evaluation.in_turns(facts, feed.node)) is not None:
                share = partial(_by_turns, facts, trains)
            yield Edit(feed.node, deals if facts.options.batch == "global" else why, share)
        elif feed.how == "cut":
            yield from cut_batches(facts, feed)
        elif feed.how == "drawn":
            yield from drawn_batches(facts, feed)
        elif feed.how in ("arrays", "array"):
            yield from full.arrays(facts, feed)
    if full.weighs_batches(facts):
        yield from full.batch_sums(facts)
    cut = {name for feed in facts.feeds if feed.how == "named" for name in feed.names}
    for loop, _ in facts.counted:
        if isinstance(loop, (cst.For, cst.While)) and any(dotted(n.value) in cut for n in slides(facts.flow, loop)):
            for end in ends(facts.flow, loop):
                yield Doubt(
                    end,
                    "a rank has 1/n of the samples, and goes past them where this is their number",
                    "high",
                    f"{facts.alias}.steps({facts.script.code(end)})",
                    name="uneven-share",
                )
    for call in facts.lengths:
        yield Edit(call.args[0].value, "this rank's batches, not all of the loader's", wrap)
    if facts.options.batch == "global":
        yield from rows.parts(facts)
    yield from stretches.torch(facts)
    yield from drawn_orders(facts)
    yield from alike.torch(facts)
    yield from evaluation.torch(facts)


def alike_orders(facts: Facts) -> Iterator[Edit | Doubt]:
    """Let all ranks have the samples in one order."""
    yield from order.torch(facts)
    yield from unseeded.torch(facts)
    yield from seeds.torch(facts)


def drawn_orders(facts: Facts) -> Iterator[Edit | Doubt]:
    """Let all ranks go through the orders that loops over positions draw."""
    for call in facts.permutations:
        yield from _one_order(facts, call)


def _by_turns(facts: Facts, trains: cst.BaseExpression, loader: cst.BaseExpression) -> cst.BaseExpression:
    """Return a share of what is trained on where ``trains`` holds, and else evaluated, in whole batches."""
    return expression("torch/shard_turns", {"loader": loader, "trains": trains}, dl=facts.alias)


def _asks_for_more(facts: Facts, function: cst.CSTNode) -> cst.CSTNode | None:
    """Return the test of a loop that goes on while the object that hands out batches has more: ``data.has_next()``."""
    owner = dotted(function.value) if isinstance(function, cst.Attribute) else ""
    for loop in facts.script.above(function):
        if isinstance(loop, cst.While):
            asked = [
                n.func.value for n in walk(loop.test) if isinstance(n, cst.Call) and isinstance(n.func, cst.Attribute)
            ]
            return loop.test if owner and owner in map(dotted, asked) else None
    return None


def cut_batches(facts: Facts, feed: Feed, summed: bool = False) -> Iterator[Edit]:
    """Yield what makes the slices that are batches this rank's part of them.

    Before:
        for i in range(0, len(order), 32):
            pick = order[i : i + 32]

    After:
        for i in range(0, len(order), 32):
            pick = dl.part(order[i : i + 32])
    """
    for pick in feed.picks:
        yield Edit(
            pick,
            "each rank takes 1/n of every batch",
            lambda batch: expression("torch/cut", {"batch": batch}, dl=facts.alias, summed=summed),
        )


def drawn_batches(facts: Facts, feed: Feed) -> Iterator[Edit | Doubt]:
    """Yield what lets all ranks draw one batch, and makes it this rank's part.

    Before:
        while step < 1000:
            x, y = get_batch("train")

    After:
        while step < 1000:
            dl.reseed(alike=True)  # what follows all ranks draw alike, from rank 0's random numbers
            x, y = dl.part(get_batch("train"))
            dl.reseed()  # from here on each rank draws random numbers of its own
    """
    yield from cut_batches(facts, feed)
    lines: set[cst.CSTNode] = set()
    for call in (*(pick for pick in feed.picks if isinstance(pick, cst.Call)), *feed.draws):
        statement = facts.script.statement_of(call)
        if not isinstance(statement, cst.If):
            yield from alike.drawn(facts, call, lines, why="all ranks draw this alike, from rank 0's random numbers")
        elif statement not in lines:
            lines.add(statement)
            why = "each rank has random numbers of its own: rank 0 decides"
            yield Edit(
                statement.test,
                why,
                lambda test: expression(
                    "reduced_value", {"value": test}, dl=facts.alias, how="agree", since="", over=""
                ),
            )


def positions(facts: ScriptFacts, feed: Feed) -> Iterator[Edit]:
    """Yield what lets all ranks count the same steps, and each pick by a number of its own."""
    target, *picks = feed.picks
    assert isinstance(target, cst.Name)
    own = f"own_{target.value}"
    yield Edit(
        feed.node,
        "all ranks count the same steps, and each takes batches of its own",
        lambda node: expression("torch/turns", {"positions": node}, dl=facts.alias),
    )
    comma = cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))
    yield Edit(
        target,
        "the step, and this rank's number",
        lambda name: cst.Tuple([cst.Element(name, comma=comma), cst.Element(cst.Name(own))], lpar=[], rpar=[]),
    )
    for pick in picks:
        yield Edit(pick, "this rank's number picks the samples", lambda name: name.with_changes(value=own))
    loop = next(up for up in facts.script.above(target) if isinstance(up, cst.For))
    counts = feed.node if isinstance(feed.node, cst.Call) else None
    bound = counts.args[0].value if counts is not None and len(counts.args) == 1 else None
    for node in tables(facts, loop, bound):
        yield Edit(node, FILLED, lambda n: expression("torch/steps", {"count": n}, dl=facts.alias))


def _is_tuple(facts: Facts, node: cst.CSTNode) -> bool:
    """Tell whether what is iterated is a tuple of batches: shard() would take it for arrays to be cut alike."""
    made = [*facts.flow.through(node), *(o.node for o in facts.flow.origins(node))]
    calls = [n for n in made if isinstance(n, cst.Call)]
    if any(facts.flow.yields(f) for c in calls for f in facts.flow.targets(c)):
        return False  # a generator, which may have no end
    tuples = any(isinstance(n, cst.Tuple) for n in made) or any(dotted(c.func) == "tuple" for c in calls)
    return tuples or any(calls_method(c, *_TUPLES) for c in calls)


def _listed(node: cst.BaseExpression) -> cst.BaseExpression:
    return cst.Call(cst.Name("list"), [cst.Arg(node)])


def _one_by_one(
    wrap: Callable[[cst.BaseExpression], cst.BaseExpression], node: cst.BaseExpression
) -> cst.BaseExpression:
    """Return a share of each batch of a list, which as it stands would be one batch."""
    return wrap(cst.Call(cst.Name("iter"), [cst.Arg(node)]))


def _one_order(facts: Facts, call: cst.Call) -> Iterator[Edit | Doubt]:
    """Yield what gives all ranks the order that rank 0 draws: of a permutation, or of what is shuffled in place."""
    why = "the batches are sharded, so all ranks must go through one order"
    if set(IN_PLACE).isdisjoint(facts.kinds.names(call.func)):
        yield Edit(call, why, lambda node: expression("torch/same", {"value": node}, dl=facts.alias))
        return
    place = facts.script.line_of(facts.script.statement_of(call))
    shuffled = call.args[0].value if call.args else None
    if isinstance(shuffled, (cst.Name, cst.Attribute)):
        whole = "[:]" if _is_outer(facts, shuffled) or _is_others(facts, shuffled) else ""
        lines = statements("torch/same_order", dl=facts.alias, name=facts.script.code(shuffled), whole=whole)
        yield Edit(place, why, after=lines)
    else:
        yield Doubt(call, f"{why}; this shuffle gives each rank another", "high", name="order-differs")


def _is_outer(facts: Facts, node: cst.BaseExpression) -> bool:
    """Tell whether ``node`` is a name from outside of its function, which an assignment there would hide."""
    if not isinstance(node, cst.Name):
        return False
    here = facts.script.scopes[node]
    return facts.script.scope_of(node) is not here and node.value not in here.outer


def _is_others(facts: Facts, node: cst.BaseExpression) -> bool:
    """Tell whether ``node`` is a name for what something else may hold, too, which must see the ranks' one order.

    So is a parameter, and what is read of an object: ``rows = self.rows``.
    """
    if isinstance(node, cst.Attribute):
        lines = (n for n in facts.script.of(cst.Assign) if _sets(n, node.attr.value))
        return any(isinstance(line.value, _HELD) for line in lines)
    bound = facts.script.bindings_of(node) if isinstance(node, cst.Name) else []
    return any(b.how == "param" or isinstance(b.written, _HELD) for b in bound)


def _sets(line: cst.Assign, attribute: str) -> bool:
    """Tell whether ``line`` sets an ``attribute`` of an object."""
    return any(isinstance(t.target, cst.Attribute) and t.target.attr.value == attribute for t in line.targets)
