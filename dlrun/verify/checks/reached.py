"""Which parts of the training did the runs not reach? Nothing is said of those."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dlrun.verify.trace import Run
from dlrun.verify.tracer.sites import LOAD
from dlrun.verify.verdict import Check, skipped

NAME = "not reached"


def reached(run: Run, more: Sequence[Run] = ()) -> Check | None:
    """Name the calls that compute gradients and were not made; None where all were, or none is known.

    ``more``: runs of the same script that have come elsewhere.
    """
    if run.root.first("sites") is None or not run.whole:
        return None
    trains, restores = left(run, more)
    if len(trains) == sum(site["call"] != LOAD for site in _sites(run)):
        return None  # how this script trains is not known
    said = []
    if trains:
        said = [f"{_shown(trains)}: what is trained there is not judged; more than --steps {len(run.root.steps)} may "
                "reach it"]  # fmt: skip
    if restores:
        said += [
            f"{_shown(restores)}: whether all ranks go on from what it reads is not judged; verify beside such a file"
        ]
    return skipped(NAME, "; ".join(said)) if said else None


def left(run: Run, more: Sequence[Run] = ()) -> tuple[list[str], list[str]]:
    """Return the calls that compute gradients and those that read a checkpoint, of those that no run has made."""
    lines: set[str] = set()
    for trace in (each.root for each in (run, *more)):
        lines |= {event.at for event in trace.all("backward", "derivative", "epoch", "restores")}
        lines |= {event.at for event in trace.returns(LOAD)}
    file = (run.root.first("sites") or {"file": ""})["file"]
    calls = [(site["call"], [f"{file}:{line}" for line in range(site["first"], site["last"] + 1)])
             for site in _sites(run)]  # fmt: skip
    names = [(name, at[0]) for name, at in calls if lines.isdisjoint(at)]
    trains, restores = ([f"{name}() at {at}" for name, at in names if (name == LOAD) is loads]
                        for loads in (False, True))  # fmt: skip
    return trains, restores


def _sites(run: Run) -> list[dict[str, Any]]:
    known = run.root.first("sites")
    return list(known["calls"]) if known is not None else []


def _shown(left: list[str]) -> str:
    return ", ".join(left[:3]) + (f" and {len(left) - 3} more" if len(left) > 3 else "")
