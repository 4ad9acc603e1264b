"""Step "gradients": the mean over the ranks, before anything reads the gradients."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import libcst as cst

from dlrun.port.edits import Doubt, Edit
from dlrun.port.facts import Facts, ScriptFacts, Step
from dlrun.port.facts.taint import draws
from dlrun.port.facts.torch import CLIPS
from dlrun.port.facts.updates.rates import ORDER
from dlrun.port.insert import expression, statements
from dlrun.port.program.script import calls_method, dotted, walk
from dlrun.port.steps.gradients import meeting, read_early, searches
from dlrun.port.steps.metrics import environments


def torch(facts: Facts) -> Iterator[Edit | Doubt]:
    """Average before clipping, unscaling and stepping, in the block of the step; in a closure, inside it.

    Before:
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()

    After:
        loss.backward()
        dl.gradients(opt)  # mean over the ranks
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
    """
    script = facts.script
    done: set[tuple[cst.CSTNode, str]] = set()
    drawn: set[cst.CSTNode] = set()
    for step in facts.steps:
        yield from _together(facts, step, drawn)
        place = step.closure or step.within or step.before
        if (place, step.what) in done:
            continue
        done.add((place, step.what))
        early = list(read_early.torch(facts, step))
        yield from early
        if step.closure is not None:
            yield from _closure(facts, step)
        elif step.within is not None:
            yield Edit(step.within, f"{step.what}: average before the step", partial(_averaged, facts, step.what))
        elif not any(isinstance(found, Edit) for found in early):
            why = "average before " + (
                "the step" if step.before is script.statement_of(step.node) else "gradients are read"
            )
            yield Edit(
                script.line_of(step.before),
                f"{step.what}: {why}",
                before=statements("torch/gradients", dl=facts.alias, what=step.what),
            )
    yield from read_early.never_averaged(facts)
    yield from searches.torch(facts)
    yield from meeting.doubts(facts)


def _averaged(facts: Facts, what: str, node: cst.BaseExpression) -> cst.BaseExpression:
    """Return ``node`` with the gradients of ``what`` averaged before it is evaluated."""
    return expression("torch/gradients_within", {"value": node}, dl=facts.alias, what=what)


def _together(facts: Facts, step: Step, drawn: set[cst.CSTNode]) -> Iterator[Edit | Doubt]:
    """Yield what lets all ranks come to ``step`` where chance decides, once a draw; a doubt where the clock does.

    What the ranks compute from their samples is averaged where it decides (step "metrics").
    """
    even = environments.uneven(facts) is None
    for up, part, ordered in _deciding(facts, step.node):
        agreed = _drawn(facts, part) or (facts.local(part) and ordered)
        if isinstance(up, cst.If) and facts.unequal(part) and not (agreed and even):
            why = f"ranks may not agree whether to update {step.what}: those that do wait for the others"
            yield Doubt(up, why, "high", "let rank 0 decide: flag = dl.broadcast(float(condition))", name="may-hang")
            return
    yield from rank_0_draws(facts, step.node, step.what, drawn)


def rank_0_draws(facts: ScriptFacts, update: cst.CSTNode, what: str, drawn: set[cst.CSTNode]) -> Iterator[Edit]:
    """Let rank 0 draw, once for each call that is not ``drawn``, where chance decides whether and how often to update.

    Before:
        for _ in range(random.randint(1, 3)):
            step(x, y)

    After:
        for _ in range(dl.broadcast(random.randint(1, 3))):
            step(x, y)
    """
    for _, part, _ in _deciding(facts, update):
        for call in (n for n in _drawn(facts, part) if n not in drawn):
            drawn.add(call)
            yield Edit(
                call,
                f"rank 0 draws for all, which update {what} together, or not",
                lambda node: expression("torch/same", {"value": node}, dl=facts.alias),
            )


def _deciding(facts: ScriptFacts, update: cst.CSTNode) -> Iterator[tuple[cst.CSTNode, cst.BaseExpression, bool]]:
    """Yield the tests and the loops around an update, but for those over the samples, with what they go by."""
    for up in _around(facts, update):
        fed = [feed.node for feed in getattr(facts, "feeds", ())] if isinstance(up, cst.For) else []
        if not any(facts.script.inside(node, up.iter) for node in fed):  # type: ignore[attr-defined]
            yield from ((up, part, ordered) for part, ordered in _decides(up))


def _around(facts: ScriptFacts, node: cst.CSTNode, deep: int = 3) -> Iterator[cst.CSTNode]:
    """Yield what stands around ``node``, and around the calls of the function which holds it."""
    for up in facts.script.above(node):
        if isinstance(up, cst.FunctionDef):
            for call in facts.flow.callers(up) if deep else ():
                yield from _around(facts, call, deep - 1)
            return
        yield up


def _decides(up: cst.CSTNode) -> Iterator[tuple[cst.BaseExpression, bool]]:
    """Yield what decides whether, or how often, ``up`` runs what it holds; with each whether it is put in an order."""
    if isinstance(up, cst.If):
        tests = [n for n in walk(up.test) if isinstance(n, cst.Comparison)]
        for test in tests:
            ordered = all(isinstance(c.operator, ORDER) for c in test.comparisons)
            yield from ((part, ordered) for part in (test.left, *(c.comparator for c in test.comparisons)))
        if not tests:
            yield up.test, False
    elif isinstance(up, cst.For) and isinstance(up.iter, cst.Call) and dotted(up.iter.func) in ("range", "trange"):
        yield from ((arg.value, False) for arg in up.iter.args)


def _drawn(facts: ScriptFacts, part: cst.BaseExpression) -> list[cst.CSTNode]:
    """Return the calls that draw ``part`` at random while the script trains: there each rank draws its own."""
    script = facts.script
    made = [o.node for n in walk(part) if isinstance(n, cst.Name) for o in facts.flow.origins(n)]
    found = [call for node in (part, *made) for call in draws(script, node)]
    again = (cst.For, cst.While, cst.FunctionDef)  # what stands in none of them all ranks draw before they train
    return [n for n in dict.fromkeys(found) if any(isinstance(up, again) for up in script.above(n))]


def _closure(facts: Facts, step: Step) -> Iterator[Edit | Doubt]:
    script = facts.script
    function = step.closure
    assert function is not None
    backward = [n for n in walk(function.body) if calls_method(n, "backward")]
    if backward:
        place = script.statement_of(backward[-1])
        above = list(script.above(place))
        above = above[: above.index(function)]
        block = script.block(place)
        behind = block[block.index(place) + 1 :]
        clips = any(isinstance(n, cst.Call) and CLIPS.search(dotted(n.func)) for line in behind for n in walk(line))
        if clips and not any(isinstance(up, (cst.For, cst.While)) for up in above):
            outer = place
        else:
            outer = next((u for u in (place, *above) if script.parents.get(script.line_of(u)) is function.body), place)
        yield Edit(
            script.line_of(outer),
            f"{step.what}: inside the closure, which runs several times a step",
            after=statements("torch/gradients", dl=facts.alias, what=step.what),
        )
    for n in walk(function.body):
        if isinstance(n, cst.Return) and n.value is not None:
            yield Edit(
                n.value,
                "the line search must see the mean loss, or the ranks step differently",
                lambda v: expression("torch/average", {"value": v}, dl=facts.alias),
            )
