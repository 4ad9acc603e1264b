"""Step "metrics": what is shown is the mean over the ranks, and what decides is the same on all of them."""

from __future__ import annotations

from collections.abc import Iterator

from dlrun.port.edits import Doubt, Edit
from dlrun.port.facts import Facts
from dlrun.port.passes import (
    annealing,
    apart,
    balances,
    curves,
    decisions,
    doubts,
    excepted,
    guards,
    in_objects,
    in_passing,
    kept,
    meters,
    own_numbers,
    own_states,
    played,
    ramps,
    seen,
    shown,
    statistics,
    tables,
    tallies,
    throughput,
    totals,
    weights,
)
from dlrun.port.passes.metrics import Metrics


def torch(facts: Facts) -> Iterator[Edit | Doubt]:
    """Average a metric before a plateau scheduler, an early stop or a best checkpoint reads it, and what is printed.

    Before:
        model, best = torch.nn.Linear(2, 1), 0
        for epoch in range(9):
            opt.step()
            accuracy = model(x).mean().item()
            if accuracy > best:
                best = accuracy
                break

    After:
        model, best = torch.nn.Linear(2, 1), 0
        for epoch in range(9):
            opt.step()
            accuracy = model(x).mean().item()
            accuracy = dl.average(accuracy)  # mean over the ranks: all ranks decide alike
            if accuracy > best:
                best = accuracy
                break
    """
    if played.uneven(facts) is None:  # else the ranks do not come to the same places together
        yield from numbers(Metrics(facts), histories=True)
    yield from statistics.torch(facts)
    yield from doubts.torch(facts)
    yield from guards.torch(facts)
    yield from excepted.torch(facts)
    yield from apart.torch(facts)
    yield from annealing.torch(facts)
    yield from ramps.torch(facts)
    yield from weights.torch(facts)
    yield from own_states.torch(facts)
    yield from in_passing.torch(facts)


def numbers(metrics: Metrics, histories: bool) -> Iterator[Edit | Doubt]:
    """Yield what sums, decides and is shown, in the order in which each needs the others; ``histories``: kept, too."""
    yield from seen.torch(metrics)
    yield from tables.torch(metrics)
    yield from in_objects.torch(metrics)
    yield from totals.torch(metrics)
    if histories:
        yield from meters.fed(metrics)
        yield from kept.torch(metrics)
        yield from balances.torch(metrics)
        yield from balances.fed(metrics)
        yield from own_numbers.torch(metrics)
    yield from (decided := list(decisions.torch(metrics)))
    yield from (found for found in totals.torch(metrics) if isinstance(found, Edit))  # below what is decided alike now
    yield from (told := list(shown.torch(metrics)))
    if histories:
        averaged = {found.node for found in told}
        yield from (curve for curve in curves.torch(metrics) if curve.node not in averaged)
    yield from throughput.torch(metrics)
    yield from tallies.both(metrics, {found.node for found in decided if isinstance(found, Edit)})
    yield from tallies.divided(metrics)
    yield from tallies.whole(metrics, {found.node for found in told})
