"""Which parts of the training did the runs not reach? Nothing is said of those."""

from __future__ import annotations

from dlrun.verify.trace import Run
from dlrun.verify.tracer.sites import LOAD
from dlrun.verify.verdict import Check, skipped

NAME = "not reached"


def reached(run: Run) -> Check | None:
    """Name the calls that compute gradients and were not made; None where all were, or none is known."""
    known = run.root.first("sites")
    if known is None or not run.whole:
        return None
    lines = {event.at for event in run.root.all("backward", "derivative", "epoch", "restores")}
    lines |= {event.at for event in run.root.returns(LOAD)}
    calls = [(site["call"], [f"{known['file']}:{line}" for line in range(site["first"], site["last"] + 1)])
             for site in known["calls"]]  # fmt: skip
    left = [(name, at[0]) for name, at in calls if lines.isdisjoint(at)]
    trains, restores = (
        [f"{name}() at {at}" for name, at in left if (name == LOAD) is loads] for loads in (False, True)
    )
    if len(trains) == sum(name != LOAD for name, _ in calls):
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


def _shown(left: list[str]) -> str:
    return ", ".join(left[:3]) + (f" and {len(left) - 3} more" if len(left) > 3 else "")
