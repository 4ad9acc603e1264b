"""What a script does with its DataLoaders, by the order in which it made them."""

from __future__ import annotations

from dlrun.verify.checks.data import training as trained
from dlrun.verify.trace import Trace
from dlrun.verify.tracer.recorder import EVALUATED, SHUFFLED


def training(trace: Trace) -> tuple[int, ...]:
    """Return the numbers of the loaders whose batches went into backward."""
    known = {event["loader"]: event["made"] for event in trace.all("loader")}
    return tuple({known[epoch.loader] for epoch in trained(trace) if epoch.loader in known})


def uses(trace: Trace) -> tuple[str, ...]:
    """Return what is done with each loader: ``shuffled``, ``evaluated``, or nothing where it trains in order."""
    train = training(trace)
    made = [event.facts for event in trace.all("loader") if "shuffle" in event.facts]
    return tuple(SHUFFLED if e["shuffle"] else "" if e["made"] in train else EVALUATED for e in made)
