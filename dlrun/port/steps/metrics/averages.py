"""Step "metrics": what is shown is the mean over the ranks, and what decides is the same on all of them."""

from __future__ import annotations

from collections.abc import Iterator

from dlrun.port.edits import Doubt, Edit
from dlrun.port.facts import Facts
from dlrun.port.placement import torch as placement
from dlrun.port.steps.metrics import (
    annealing,
    autograd_hooks,
    caught_errors,
    divergence,
    doubts,
    environments,
    guards,
    local_states,
    ramps,
    statistics,
    weights,
)


def torch(facts: Facts) -> Iterator[Edit | Doubt]:
    """Make serial what loops over shards leave, before a schedule, an early stop, a checkpoint or a line reads it.

    Before:
        total, right = 0.0, 0
        for x, y in loader:
            loss = (model(x) - y).pow(2).mean()
            loss.backward()
            opt.step()
            total += loss.item()
            right += (model(x) > y).sum().item()
        print(total / len(loader), right)

    After:
        total, right = 0.0, 0
        for x, y in loader:
            loss = (model(x) - y).pow(2).mean()
            loss.backward()
            opt.step()
            total += loss.item()
            right += (model(x) > y).sum().item()
        total, right = dl.total(total, right)  # sums over all ranks' samples
        print(total / len(loader), right)
    """
    numbers: list[Edit | Doubt] = []
    if environments.uneven(facts) is None:  # else the ranks do not come to the same places together
        numbers = list(placement.numbers(facts))
    yield from numbers
    yield from statistics.torch(facts)
    yield from doubts.torch(facts)
    yield from guards.torch(facts)
    yield from caught_errors.torch(facts)
    yield from divergence.torch(facts)
    yield from annealing.torch(facts)
    yield from ramps.torch(facts)
    yield from weights.torch(facts)
    yield from local_states.torch(facts, {f.node for f in numbers if isinstance(f, Edit)})
    yield from autograd_hooks.torch(facts)
