"""Do all ranks evaluate, and save, with the same statistics of batch norm?

Each rank moves them by its own batches, of which they hold 1/n of the samples; the serial script's hold all. What is
evaluated or saved with them has to be all ranks', as ``dl.average(model)`` makes them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from dlrun.verify.trace import Event, Run, Trace
from dlrun.verify.verdict import Check, failed

NAME = "batch norm"
STATISTICS = re.compile(r"(running|moving)_(mean|var)")
USES = ("evaluated", "saved", "plain save")


@dataclass(frozen=True)
class Use:
    """Statistics, as a hash, that a model is evaluated or saved with, after so many steps."""

    event: Event
    made: int
    statistics: str


def normed(run: Run) -> Check | None:
    """Return a check that failed because ranks evaluate, or rank 0 saves, with statistics of its own; None else."""
    if not own_statistics(run):
        return None
    root, *others = (list(_uses(trace)) for trace in run.traces)
    shared = [_seen(trace) for trace in run.traces]
    for use in root:
        for rank, theirs in enumerate(others, 1):
            like = {u.statistics for u in theirs if (u.event.kind, u.made) == (use.event.kind, use.made)}
            if use.statistics not in (like or shared[rank]):
                return _own(use.event, rank)
    return None


def moved(sharded: Run, run: Run) -> Check | None:
    """Return a check that failed because statistics that ranks have moved apart are used; None else.

    ``run`` goes on to where a few steps do not come, and leaves statistics as they are: what was averaged is told by
    dl_comm's calls alone. So a port that asks another library for its ranks is not judged.
    """
    if not own_statistics(sharded) or any(trace.first("asked") for trace in run.traces):
        return None
    used = next((event for event in run.root.all(*USES) if event.facts.get("moved")), None)
    return _own(used, 0) if used else None


def own_statistics(run: Run) -> bool:
    """Whether ranks have moved statistics apart, as by samples of their own."""
    made = [[event.facts.get("statistics", "") for event in trace.all("forward")] for trace in run.traces]
    return any(len(set(together)) > 1 for together in zip(*made, strict=False))


def _uses(trace: Trace) -> Iterator[Use]:
    made = 0
    for event in trace.events:
        made += event.kind == "step"
        if event.kind == "saved":
            notes = {name: entry["note"] or {} for name, entry in event["tensors"].items() if STATISTICS.search(name)}
            if notes:
                yield Use(event, made, " ".join(f"{name} {note.get('hash')}" for name, note in notes.items()))
        elif event.kind == "evaluated" or (event.kind == "plain save" and event.facts.get("holds")):
            yield Use(event, made, event["statistics"])


def _seen(trace: Trace) -> set[str]:
    """Return the hashes of statistics that a rank had at any time when they were noted."""
    events = trace.all("evaluated", "plain save", "return", "forward", "decision", "choice")
    return {event.facts.get("statistics", "") for event in events} | {use.statistics for use in _uses(trace)}


def _own(event: Event, rank: int) -> Check:
    what = "a model is evaluated" if event.kind == "evaluated" else "what is saved of a model goes"
    finding = f"{what} with batch norm's statistics of local samples: 1/n of the serial script's"
    todo = "dl.average(model) before it, on all ranks"
    return failed(NAME, finding, todo, "statistics-differ", where=event.at, rank=rank)
