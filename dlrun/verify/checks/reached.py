"""Which parts of the training did the runs not reach? Nothing is said of those."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from typing import Any

from dlrun.verify.trace import Run
from dlrun.verify.tracer.changes import CHANGE
from dlrun.verify.tracer.conditions import REACHED, choosing, computed_seldom
from dlrun.verify.tracer.conditions import deciding as deciding_lines
from dlrun.verify.tracer.sinks import sinks
from dlrun.verify.tracer.sites import LOAD
from dlrun.verify.verdict import Check, skipped, unjudged

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
        said = [
            f"{_shown(trains)}: what is trained there is not judged; more than --steps {len(run.root.steps)} may "
            "reach it"
        ]
    if restores:
        said += [
            f"{_shown(restores)}: whether all ranks go on from what it reads is not judged; verify beside such a file"
        ]
    if trains:
        return unjudged(NAME, "; ".join(said))
    return skipped(NAME, "; ".join(said)) if said else None


def unshown(source: str, file: str, runs: Sequence[Run]) -> Check | None:
    """Name the lines of a script that show or save numbers, or decide, and that no run has come to; None of none.

    And of what is computed every so many iterations: a number that is made there is the one that it began with.
    """
    tree = ast.parse(source)
    come_to = {event["line"] for run in runs for event in run.root.all(REACHED)}
    shown = {event.at for run in runs for event in run.root.all("print")}
    missing = [
        (sink.first, sink.name)
        for sink in sinks(tree)
        if sink.first not in come_to and shown.isdisjoint(f"{file}:{i}" for i in range(sink.first, sink.last + 1))
    ]
    known = come_to | {line for line, _ in missing}
    missing += [
        (line, f"what comes if {test}"[:60]) for line, test in computed_seldom(tree).items() if line not in known
    ]
    asked = {event.at for run in runs for event in run.root.all("decision", "choice", CHANGE)}
    conditions = {n.lineno: ast.unparse(n.test) for n in ast.walk(tree) if isinstance(n, ast.If)}
    deciding = sorted((choosing(tree) | deciding_lines(tree)) & conditions.keys())
    missing += [(line, f"if {conditions[line]}"[:60]) for line in deciding if f"{file}:{line}" not in asked]
    if not missing:
        return None
    lines = [f"{name} at {file}:{line}" for line, name in sorted(missing)]
    finding = f"{_shown(lines)}: what is shown, saved or decided there is not judged"
    return unjudged(NAME, f"{finding}; more --steps, or a larger --budget, may come to it")


def folds_left(run: Run) -> Check | None:
    """Name a loop that trains another model in each iteration, as over folds, where it was left early; None of none."""
    ended = next((event for event in run.root.all("ended") if event.facts.get("renews")), None)
    if ended is None:
        return None
    turns = ended["turns"]
    loop = f"{turns} iteration{'s' * (turns != 1)} of the loop at {ended.at}, which trains a model in each"
    return unjudged(NAME, f"what comes after {loop}: a larger --budget may come to it")


def left(run: Run, more: Sequence[Run] = ()) -> tuple[list[str], list[str]]:
    """Return the calls that compute gradients and those that read a checkpoint, of those that no run has made."""
    lines: set[str] = set()
    for trace in (each.root for each in (run, *more)):
        lines |= {event.at for event in trace.all("backward", "derivative", "epoch", "restores")}
        lines |= {event.at for event in trace.returns(LOAD)}
    file = (run.root.first("sites") or {"file": ""})["file"]
    calls = [
        (site["call"], [f"{file}:{line}" for line in range(site["first"], site["last"] + 1)]) for site in _sites(run)
    ]
    names = [(name, at[0]) for name, at in calls if lines.isdisjoint(at)]
    trains, restores = (
        [f"{name}() at {at}" for name, at in names if (name == LOAD) is loads] for loads in (False, True)
    )
    return trains, restores


def _sites(run: Run) -> list[dict[str, Any]]:
    known = run.root.first("sites")
    return list(known["calls"]) if known is not None else []


def _shown(left: list[str]) -> str:
    return ", ".join(left[:3]) + (f" and {len(left) - 3} more" if len(left) > 3 else "")
