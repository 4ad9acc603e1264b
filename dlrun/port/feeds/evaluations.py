"""Loops that evaluate: they go through the batches of a loader, run a model, and change no weights."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import libcst as cst

from dlrun.port.facts import Evaluation
from dlrun.port.program.script import calls_method, walk

if TYPE_CHECKING:
    from dlrun.port.feeds import Feeds

_NAMED = (cst.Name, cst.Attribute, cst.Subscript, cst.Call)


def evaluations(feeds: Feeds) -> Iterator[Evaluation]:
    """Yield the loops that evaluate, and the calls that only evaluate of functions that train, too."""
    loops, gradients = feeds.loops, feeds.loops.gradients
    known = {*loops.turning, *loops.accumulating, *loops.parts}
    for node in feeds.script.nodes:
        if not isinstance(node, cst.For) or node in known or gradients.runs_backward(node.body):
            continue
        source = feeds.iterated.source(node.iter)
        if not gradients.runs_step(node.body) and _is_loader(feeds, source) and feeds.uses.computes(node.body):
            yield Evaluation(node, source)
    for loop, given in feeds.both_ways:
        if _is_loader(feeds, source := feeds.iterated.source(given)):
            yield Evaluation(loop, source, _mode(feeds, loop, given))
    for around in feeds.innermost:
        if isinstance(around, cst.For) and (test := _in_turns(feeds, around)) is not None:
            source = _source(feeds, around)
            yield Evaluation(around, source, _mode_by(feeds, around, test), test)


def _is_loader(feeds: Feeds, source: cst.BaseExpression) -> bool:
    return isinstance(source, _NAMED) and source not in feeds.found and feeds.kinds.of(source) == "loader"


def _mode(feeds: Feeds, loop: cst.For, given: cst.BaseExpression) -> bool | None:
    """Tell whether the call that gives ``loop`` what it evaluates puts a model into evaluation mode before."""
    function = feeds.script.function_of(loop)
    calls = [up for up in feeds.script.above(given) if isinstance(up, cst.Call) and function in feeds.flow.targets(up)]
    if not calls or not isinstance(function, cst.FunctionDef):
        return None
    return feeds.loops.sites.evaluates(function, calls[0], loop)


def _source(feeds: Feeds, loop: cst.For) -> cst.BaseExpression:
    """Return the batches, or the range of their positions, that ``loop`` goes through."""
    counted, source = feeds.iterated.counted(loop.iter), feeds.iterated.source(loop.iter)
    feed = feeds.found.get(counted)
    return counted if feed is not None and feed.how == "indices" else source


def _in_turns(feeds: Feeds, loop: cst.For) -> cst.BaseExpression | None:
    """Return the test by which ``loop`` trains, or evaluates: ``phase == "train"``; None where it is no such loop."""
    source = _source(feeds, loop)
    feed = feeds.found.get(source)
    if feed is None or (feed.how != "indices" and (feed.how != "iterable" or feeds.kinds.of(source) != "loader")):
        return None
    if any(call.args[0].value.deep_equals(source) for call in feeds.uses.lengths(feeds.found.values())):
        return None  # it counts a share by samples
    ends = [n for n in (*feeds.loops.gradients.backwards, *feeds.loops.ends) if feeds.script.inside(n, loop)]
    tests = [_tests(feeds, loop, end) for end in ends]
    set_here = {n.value for n in walk(loop) if isinstance(n, cst.Name) and _is_target(feeds, n)}
    for test in tests[0] if tests else ():
        names = {n.value for n in walk(test) if isinstance(n, cst.Name)}
        plain = not any(isinstance(n, cst.Call) for n in walk(test)) and names.isdisjoint(set_here)
        if plain and all(any(test.deep_equals(other) for other in others) for others in tests):
            return test
    return None


def _tests(feeds: Feeds, loop: cst.For, end: cst.CSTNode) -> list[cst.BaseExpression]:
    """Return the tests in ``loop`` that hold where ``end`` is run."""
    found: list[cst.BaseExpression] = []
    for up in feeds.script.above(end):
        if up is loop:
            break
        if isinstance(up, cst.If) and feeds.script.inside(end, up.body):
            found.append(up.test)
    return found


def _is_target(feeds: Feeds, name: cst.Name) -> bool:
    return any(isinstance(up, (cst.AssignTarget, cst.AugAssign)) for up in list(feeds.script.above(name))[:3])


def _mode_by(feeds: Feeds, loop: cst.For, test: cst.BaseExpression) -> bool:
    """Tell whether a model is put into evaluation mode before ``loop`` where ``test`` does not hold."""
    order, home = feeds.script.order, feeds.script.function_of(loop)
    modes = [c for c in feeds.script.calls if feeds.script.function_of(c) is home and order[c] < order[loop]]
    return any(
        calls_method(c, "eval") or (calls_method(c, "train") and bool(c.args) and c.args[0].value.deep_equals(test))
        for c in modes
    )
