"""Which loops that evaluate go through a share of the batches: those that leave exactly the serial script's numbers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache

import libcst as cst

from dlrun.port.edits import Edit
from dlrun.port.facts import Evaluation, Facts
from dlrun.port.facts.tensorflow import TensorFlowFacts
from dlrun.port.placement import stays_whole
from dlrun.port.placement.cadences import run_with
from dlrun.port.placement.interpret import Interpreter
from dlrun.port.placement.interpret.exits import Exit
from dlrun.port.placement.interpret.whole import Left
from dlrun.port.placement.known import shards_of
from dlrun.port.placement.reduce import Reductions
from dlrun.port.placement.shown import Shown
from dlrun.port.placement.values import Kind, Place

_RUNS = (Kind.RUN, Kind.COUNT, Kind.INDEX, Kind.MIX, Kind.RATIO, Kind.EXTREME)
_TRIALS = 4
Source = cst.CSTNode  # of the batches of an evaluation


@dataclass(frozen=True, eq=False)
class Evaluations:
    """The abstract run of a script, the evaluations in it that are shared, and why others stay whole."""

    run: Interpreter
    shared: tuple[Evaluation, ...]
    whole: dict[Evaluation, str]


@lru_cache(maxsize=2)
def evaluations(facts: Facts) -> Evaluations:
    """Return which evaluations can be shared: tried, until none is left that cannot."""
    from dlrun.port.frameworks import tensorflow
    from dlrun.port.steps.counts import steps
    from dlrun.port.steps.metrics import environments, weights

    found = tensorflow.steps(facts) if isinstance(facts, TensorFlowFacts) else steps.torch(facts)
    edits = [e for e in (*found, *weights.torch(facts)) if isinstance(e, Edit)]
    shared = (
        []
        if facts.options.evaluate == "whole" or facts.keeps_steps or environments.uneven(facts) is not None
        else list(facts.evaluations)
    )
    whole: dict[Evaluation, str] = {}
    refused: dict[Source, str] = {e.source: why for e in shared if (why := stays_whole.reason(facts, e))}
    for _ in range(_TRIALS):
        whole |= {e: refused[e.source] for e in shared if refused.get(e.source) and e.trains is None}
        shared = [e for e in shared if e.source not in refused]
        run = _run(facts, edits, shared)
        refused = _refused(facts, run, shared)
        if not refused:
            return Evaluations(run, tuple(shared), whole)
    return Evaluations(_run(facts, edits, []), (), whole)


def _run(facts: Facts, steps: list[Edit], shared: list[Evaluation]) -> Interpreter:
    others = [e for e in facts.evaluations if e not in shared and e.loop not in facts.loops]
    noisy = frozenset(e.loop for e in others if stays_whole.draws(facts, e))
    shards = replace(shards_of(facts, steps, shared), noisy=noisy)
    while True:
        run = run_with(facts, shards)
        shards = run.shards
        forced = shards.forced.union(run.forced)
        unaveraged = shards.unaveraged if shards.parts else frozenset(run.gradients.left)
        if unaveraged != shards.unaveraged:
            shards = replace(shards, unaveraged=unaveraged)
            continue
        if forced == shards.forced or all(len(run.seen.get(node, ())) < 2 for node in forced - shards.forced):
            return run
        shards = replace(shards, forced=forced)  # the edit of a line holds for all calls of its function


def _refused(facts: Facts, run: Interpreter, shared: list[Evaluation]) -> dict[Source, str]:
    """Return what cannot be shared after all, and why; "" where there is nothing to be said."""
    if not shared:
        return {}
    if run.lost is not None:
        return {e.source: "the program is too large to be followed" for e in shared}
    refused: dict[Source, str] = {}
    for source, why in (*_reached(run, shared), *_left(run), *_inside(facts, run)):
        refused.setdefault(source, why)
    return refused


def _reached(run: Interpreter, shared: list[Evaluation]) -> Iterator[tuple[Source, str]]:
    """Yield what no loop goes through where the program runs, and where it cannot be shared where it runs."""
    for each in shared:
        if not run.gone_through.get(each.source):
            yield each.source, ""
    yield from run.refused.items()


def _left(run: Interpreter) -> Iterator[tuple[Source, str]]:
    """Yield where something that is read later is no serial value."""
    for mark in run.used:
        if isinstance(mark, Left):
            yield mark.source, mark.why
    gathered = {mark.loop for mark in run.used if isinstance(mark, Exit) and mark.how == "gather"}
    for source, loops in run.gone_through.items():
        counts = isinstance(source, cst.Call) and run.script.name_of(source.func) == "builtins.range"
        unnamed = not counts and (isinstance(source, cst.Call) or source in run.shards.turns)
        if unnamed and not gathered.isdisjoint(loops):
            yield source, "what it gathers needs a name for its loader"


def _inside(facts: Facts, run: Interpreter) -> Iterator[tuple[Source, str]]:
    """Yield where something is shown or decided within the loop, which ranks run unequally often."""
    for call, sinks in run.sinks.items():
        for sink in sinks:
            if sink.loop is not None and sink.loop.whole is not None:
                yield sink.loop.whole, f"{facts.script.code(call.func)}() has an effect of its own in it"
    for tests in run.tests.values():
        for tested in tests:
            source = tested.loop.whole if tested.loop is not None else None
            if source is not None and _counts(run, tested.node.test):
                text = facts.script.code(tested.node.test)
                yield source, f"{text}: it goes by how much has been evaluated so far"
    for found in Shown(facts, run, Reductions(facts, run)).edits():
        for source in run.within_whole.get(found.node, ()):
            yield source, f"{facts.script.code(found.node)}: it would have to be exchanged in it"


def _counts(run: Interpreter, test: cst.CSTNode) -> bool:
    """Tell whether a test goes by what has been counted or added up so far; a new extreme is none."""
    values = run.seen.get(test, ())
    if not any(v.place.kind in _RUNS for v in values):
        return False
    if isinstance(test, cst.Comparison) and len(test.comparisons) == 1:
        sides = [_place(run, test.left), _place(run, test.comparisons[0].comparator)]
        best = [p for p in sides if p is not None and p.untouched]
        other = [p for p in sides if p is not None and p.kind is Kind.ENTRY]
        return not (best and other)
    return True


def _place(run: Interpreter, node: cst.CSTNode) -> Place | None:
    values = run.seen.get(node, ())
    return values[-1].place if values else None
