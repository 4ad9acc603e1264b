"""Do ranks evaluate, and choose what to keep, after as many samples as the serial script?

What comes every k steps comes every k/n steps of n ranks, each of which takes n times the samples.
"""

from __future__ import annotations

from dlrun.verify.trace import Event, Run, Trace
from dlrun.verify.verdict import Check, failed

NAME = "cadence"
LEAST = 2  # evaluations of the serial script, so that they come again and again


def cadence(serial: Run, run: Run, fewer: int) -> Check | None:
    """Return a check that failed because evaluations come after as many steps as in the serial script; None of none.

    ``fewer``: of its steps one of the ranks stands for so many. The runs are not cut within an epoch, or both to as
    many batches of each rank.
    """
    if fewer == 1 or _epochs_are_as_long(serial, run):
        return None
    for kind in ("epoch", "choice"):
        before, now = (_after(each.root, kind) for each in (serial, run))
        steps = list(now)
        if len(before) >= LEAST and steps and steps[-1] >= 2 * fewer and steps == list(before)[: len(steps)]:
            what = "what is evaluated" if kind == "epoch" else f"`{now[steps[-1]]['what']}`"
            finding = (
                f"{what} comes after {', '.join(map(str, steps[:3]))} steps of {len(run.traces)} ranks, as of the "
            )
            finding += f"serial script: {fewer} times the samples lie between"
            todo = "let it come as often: if step % dl.steps(k) == 0"
            return failed(NAME, finding, todo, "too-seldom", where=now[steps[-1]].at)
    return None


def _epochs_are_as_long(serial: Run, run: Run) -> bool:
    """Whether an epoch has as many batches on each rank: it is not shared, which is told, and nothing comes seldom."""
    first = [next((e for e in each.root.epochs if e.trains and e.complete), None) for each in (serial, run)]
    sizes = [len(epoch.batches) + len(epoch.rest) for epoch in first if epoch]
    return len(sizes) == 2 and sizes[0] == sizes[1]


def _after(trace: Trace, kind: str) -> dict[int, Event]:
    """Return the first events of a kind after a number of steps, by that number: of passes, those that train nothing.

    What comes before the first step is left aside.
    """
    training = {event["epoch"] for event in trace.all("trains")}
    found: dict[int, Event] = {}
    made = 0
    for event in trace.events:
        made += event.kind == "step" and event["optimizer"] == 0
        if event.kind == kind and made and not (kind == "epoch" and event["epoch"] in training):
            found.setdefault(made, event)
    return found
