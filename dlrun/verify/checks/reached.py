"""Which parts of the training did the runs not reach? Nothing is said of those."""

from __future__ import annotations

from dlrun.verify.trace import Run
from dlrun.verify.verdict import Check, skipped

NAME = "not reached"


def reached(run: Run) -> Check | None:
    """Name the calls that compute gradients and were not made; None where all were, or none is known."""
    known = run.root.first("sites")
    if known is None or not run.whole:
        return None
    lines = {event.at for event in run.root.all("backward", "derivative", "epoch")}
    left = [
        f"{site['call']}() at {known['file']}:{site['first']}"
        for site in known["calls"]
        if not any(f"{known['file']}:{line}" in lines for line in range(site["first"], site["last"] + 1))
    ]
    if not left or len(left) == len(known["calls"]):
        return None
    shown = ", ".join(left[:3]) + (f" and {len(left) - 3} more" if len(left) > 3 else "")
    steps = len(run.root.steps)
    return skipped(NAME, f"{shown}: what is trained there is not judged; more than --steps {steps} may reach it")
