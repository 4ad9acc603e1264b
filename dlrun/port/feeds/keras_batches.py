"""Where the batches of ``train_on_batch()`` come from: what loops run over, generators, orders that are drawn."""

from __future__ import annotations

import re
from collections.abc import Iterator

import libcst as cst

from dlrun.port.feeds.iterated import Iterated
from dlrun.port.feeds.positions.positions import mentions
from dlrun.port.program.flow import Flow
from dlrun.port.program.script import dotted, names_in, walk

_ORDERS = re.compile(r"^(numpy\.random|random|sklearn\.utils)\.(shuffle|permutation|permuted|resample)$")
_SHARED = re.compile(r"^(tensorflow\.data\.|tensorflow_datasets\.|builtins\.(zip|map|iter)$)")
_TESTS = ("test_on_batch", "predict_on_batch", "evaluate", "predict")
_SEEN = re.compile(r"^(numpy|builtins|tensorflow|tensorflow_datasets)\.")


def trains(node: cst.CSTNode) -> list[cst.Call]:
    """Return the calls of ``train_on_batch()`` within ``node``."""
    calls = [n for n in walk(node) if isinstance(n, cst.Call) and isinstance(n.func, cst.Attribute)]
    return [c for c in calls if c.func.attr.value == "train_on_batch"]  # type: ignore[attr-defined]


def iterated(flow: Flow, outer: cst.For | cst.While) -> list[cst.BaseExpression]:
    """Return what loops within ``outer`` run over that brings the batches for ``train_on_batch()``."""
    known = Iterated(flow)
    found: list[cst.BaseExpression] = []
    loops = [n for n in walk(outer) if isinstance(n, cst.For) and trains(n.body)]
    for loop in loops:
        inner = any(n is not loop and flow.script.inside(n, loop) and _brings(n) for n in loops)
        if _brings(loop) and not inner and not known.numbers(known.of(loop)):
            found.append(known.source(loop.iter))
    return found


def _brings(loop: cst.For) -> bool:
    """Tell whether what the variables of ``loop`` hold goes into ``train_on_batch()``."""
    names = names_in(loop.target)
    for n in walk(loop.body):
        if isinstance(n, cst.Assign) and mentions(n.value, names):
            names |= {m.value for t in n.targets for m in walk(t.target) if isinstance(m, cst.Name)}
    return any(mentions(a.value, names) for c in trains(loop.body) for a in c.args)


def ends_by_itself(flow: Flow, node: cst.BaseExpression) -> bool:
    """Tell whether ``node`` is a generator, or a data set that dl_comm shares as a whole: no list of batches."""
    made = [n for n in flow.through(node) if isinstance(n, cst.Call)]
    return any(_SHARED.search(flow.script.name_of(c.func)) or _generates(flow, c) for c in made)


def _generates(flow: Flow, call: cst.Call) -> bool:
    return any(map(flow.yields, flow.targets(call)))


def is_unseen(flow: Flow, node: cst.BaseExpression) -> bool:
    """Tell whether something out of sight makes the batches that ``node`` brings, and may draw their order."""
    made = [o.node for o in flow.origins(node)]
    calls = [n for n in made if isinstance(n, cst.Call)]
    foreign = [c for c in calls if not flow.targets(c) and not _SEEN.search(flow.script.name_of(c.func))]
    return bool(foreign) or any(isinstance(n, cst.Param) for n in made)


def ends(loop: cst.For) -> list[cst.BaseExpression]:
    """Return what a count of the batches is compared with where that leaves ``loop``: ``if seen >= 100: break``."""
    counted = {dotted(n.target) for n in walk(loop.body) if isinstance(n, cst.AugAssign)}
    found: list[cst.BaseExpression] = []
    for node in (n for n in walk(loop.body) if isinstance(n, cst.If) and isinstance(n.test, cst.Comparison)):
        compared = node.test.comparisons[0]  # type: ignore[attr-defined]
        passed = isinstance(compared.operator, (cst.GreaterThan, cst.GreaterThanEqual, cst.Equal))
        leaves = any(isinstance(n, cst.Break) for n in walk(node.body))
        if passed and leaves and dotted(node.test.left) in counted:  # type: ignore[attr-defined]
            found.append(compared.comparator)
    return found


def generators(flow: Flow, outer: cst.For | cst.While) -> list[cst.Call]:
    """Return the calls that make the generators of the script's own from which ``outer`` takes batches by next()."""
    known = Iterated(flow)
    calls = [n for n in walk(outer) if isinstance(n, cst.Call) and _trains_on(flow, outer, n)]
    drawn = [known.advanced(n) for n in calls]
    made = [n for source in drawn if source is not None for n in flow.through(source)]
    calls = [n for n in made if isinstance(n, cst.Call) and not flow.script.inside(n, outer)]
    return [c for c in calls if _generates(flow, c)]


def _trains_on(flow: Flow, outer: cst.CSTNode, draw: cst.Call) -> bool:
    """Tell whether what ``draw`` returns may go into ``train_on_batch()``: not where it surely goes elsewhere."""
    line = flow.script.statement_of(draw)
    if any(flow.script.inside(draw, call) for call in trains(outer)):
        return True
    tests = [n for n in walk(line) if isinstance(n, cst.Call) and dotted(n.func).rsplit(".", 1)[-1] in _TESTS]
    if any(flow.script.inside(draw, call) for call in tests):
        return False
    names = {name for n in walk(line) if isinstance(n, cst.Assign) for t in n.targets for name in names_in(t.target)}
    order, begin = flow.script.order, flow.script.order[line]
    again = [
        order[n]
        for n in walk(outer)
        if isinstance(n, cst.Assign)
        and order[n] > begin
        and any(names & names_in(t.target) for t in n.targets)
        and not flow.script.inside(n, line)
    ]
    given = [
        n
        for n in walk(outer)
        if isinstance(n, cst.Call)
        and begin < order[n] < min(again, default=len(order))
        and any(mentions(a.value, names) for a in n.args)
    ]
    return not given or not all(dotted(n.func).rsplit(".", 1)[-1] in _TESTS for n in given)


def orders(flow: Flow, outer: cst.CSTNode, depth: int = 3) -> Iterator[cst.Call]:
    """Yield the calls that draw an order of the samples when ``outer`` runs, in its own or in functions it calls."""
    for call in [n for n in walk(outer) if isinstance(n, cst.Call)]:
        if _ORDERS.search(flow.script.name_of(call.func)):
            yield call
        for target in flow.targets(call) if depth else ():
            yield from orders(flow, target.body, depth - 1)
