"""Do ranks evaluate, save, choose what to keep, and change their training, after as many samples as serially?

What comes every k steps comes every k/n steps of n ranks, each of which takes n times the samples.
"""

from __future__ import annotations

import re
from pathlib import Path

from dlrun.verify.trace import Event, Run, Trace
from dlrun.verify.tracer.changes import CHANGE
from dlrun.verify.verdict import Check, failed

NAME = "cadence"
DIGITS = re.compile(r"\d+")
UNDIVIDED = re.compile(r"\w+\.steps\(([^()]*)\)")  # what the serial script has in place of dl.steps(k)
LEAST = 2  # evaluations of the serial script, so that they come again and again


def cadence(serial: Run, run: Run, fewer: int) -> Check | None:
    """Return a check that failed because evaluations come after as many steps as in the serial script; None of none.

    ``fewer``: of its steps one of the ranks stands for so many. The runs are not cut within an epoch, or both to as
    many batches of each rank.
    """
    if fewer == 1 or _epochs_are_as_long(serial, run):
        return None
    serially, mine = (_after(each.root) for each in (serial, run))
    for what, before in serially.items():
        now = mine.get(what, {})
        steps, every = list(now), list(before) == list(range(1, len(before) + 1))
        if len(before) < LEAST or every or not steps:
            continue
        if steps[-1] >= 2 * fewer and steps == list(before)[: len(steps)]:
            last = now[steps[-1]]
            finding = (
                f"{what or '`' + last['what'] + '`'} comes after {', '.join(map(str, steps[:3]))} steps of "
                f"{len(run.traces)} ranks, as of the serial script: {fewer} times the samples lie between"
            )
            todo = "let it come as often: if step % dl.steps(k) == 0"
            return failed(NAME, finding, todo, "too-seldom", where=last.at)
    return None


def _epochs_are_as_long(serial: Run, run: Run) -> bool:
    """Whether an epoch has as many batches on each rank: it is not shared, which is told, and nothing comes seldom."""
    first = [next((e for e in each.root.epochs if e.trains and e.complete), None) for each in (serial, run)]
    sizes = [len(epoch.batches) + len(epoch.rest) for epoch in first if epoch]
    return len(sizes) == 2 and sizes[0] == sizes[1]


def _after(trace: Trace) -> dict[str, dict[int, Event]]:
    """Return the first events after a number of steps, by that number: evaluations, choices, and files by their name.

    What comes before the first step is left aside.
    """
    training = {event["epoch"] for event in trace.all("trains")}
    found: dict[str, dict[int, Event]] = {}
    made = 0
    for event in trace.events:
        made += event.kind == "step" and event["optimizer"] == 0
        if made and (what := _what(event, training)) is not None:
            found.setdefault(what, {}).setdefault(made, event)
    return found


def _what(event: Event, training: set[int]) -> str | None:
    if event.kind == "epoch" and event["epoch"] not in training:
        return "what is evaluated"
    if event.kind == "file" and event["how"] == "write":
        return f"what is written into {DIGITS.sub('#', Path(event['path']).name)}"
    if event.kind == CHANGE and event.facts.get("taken"):
        condition = UNDIVIDED.sub(r"\1", event["what"])
        return f"what is done `if {condition}`"
    return "" if event.kind == "choice" else None
