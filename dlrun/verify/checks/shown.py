"""Does rank 0 alone print, and are its numbers those of all ranks, or of its local samples alone?"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from dlrun.verify.checks.draws import beside_draws
from dlrun.verify.checks.output import NUMBER, close, same_line, shown
from dlrun.verify.trace import Event, Run, Trace
from dlrun.verify.verdict import Check, failed, skipped, unjudged

NAME = "numbers shown"


def numbers_shown(run: Run, steady: Sequence[Run] = ()) -> Check | None:
    """Name lines that every rank prints, or whose numbers are local to one rank; None where there are none.

    Words of its own that a rank shows are remarked on; numbers that are one rank's are wrong, unless the ranks show the
    same in ``steady`` runs, in which they draw the same random numbers behind an epoch: samples that a model generates.
    Where none are drawn, the parameters that stay in these runs made them the same.
    """
    loud = next((trace for trace in run.traces[1:] if trace.printed), None)
    if loud is not None:
        line = loud.printed[0]
        said = f"rank {loud.rank} prints, too, at {line.at}: {_said(line)!r}"
        once = "print = dl.print before it, or dl.rank0(f)(...) for an f that prints by itself, shows each line once"
        return skipped(NAME, f"{said}; {once}")
    if summed := _mean_that_is_summed(run):
        return summed
    root, *others = (_by_line(trace) for trace in run.traces)
    found: dict[str, tuple[Event, Event]] = {}
    for theirs in others:
        for a, b in (pair for at, lines in root.items() for pair in zip(lines, theirs.get(at, []), strict=False)):
            if not same_line(a["text"], a["text"], b["text"]):
                found.setdefault(a.at, (a, b))
    drawn = {at for each in steady for at in _alike(each) & beside_draws(each, "shown")} & found.keys()
    found = {at: pair for at, pair in found.items() if at not in drawn}
    if drawn and not found:
        return skipped(NAME, f"rank 0's at {', '.join(sorted(drawn))}: each rank draws random numbers of its own there")
    if not found or not run.whole:
        return None
    lines = sorted(found, key=lambda at: _words(found[at][0]) != _words(found[at][1]))  # numbers first
    mine, other = found[lines[0]]
    more = f" and {len(lines) - 3} more" if len(lines) > 3 else ""
    said = f"local to rank 0 at {', '.join(lines[:3])}{more}: {_said(mine)!r}, where another rank has {_said(other)!r}"
    if _words(mine) != _words(other):
        return skipped(NAME, f"{said}: each rank has words of its own, and one rank's are shown")
    todo = "dl.average() of a mean, dl.total() of a sum, shows those of all"
    return failed(NAME, said, todo, "shown-by-one-rank", where=lines[0])


def _by_line(trace: Trace) -> dict[str, list[Event]]:
    """Return what is shown, by the line that shows it: what one rank alone shows is no other one's turn."""
    found: dict[str, list[Event]] = {}
    for event in trace.all("shown"):
        found.setdefault(event.at, []).append(event)
    return found


def _alike(run: Run) -> set[str]:
    """Return the lines at which all ranks show the same."""
    root, *others = (_by_line(trace) for trace in run.traces)
    return {
        at
        for at, lines in root.items()
        if all(len(lines) == len(other.get(at, ())) for other in others)
        and all(same_line(a["text"], a["text"], b["text"]) for o in others for a, b in zip(lines, o[at], strict=True))
    }


def _mean_that_is_summed(run: Run) -> Check | None:
    """Name a line that shows dl.total() of what is no more than a single step's loss: of a mean; None of none."""
    losses, total, ended = list[float](), None, True
    for event in run.root.events:
        if event.kind == "backward":
            losses, total, ended = ([] if ended else losses), None, False
            losses += [event["loss"]] if event.facts.get("loss") is not None else []
        elif event.kind in ("cut", "over"):
            ended = True
        elif event.kind == "return" and event["fn"] == "total" and not event["evaluates"]:
            total = event if _is_mean(event["local"], losses) else None
        elif event.kind in ("print", "shown") and total is not None:
            numbers = NUMBER.findall(shown(event["text"]))
            if any("." in number and close(number, f"{total['sum']:.9g}") for number in numbers):
                finding = (
                    f"{event.at} shows dl.total() of {total.at}, {total['sum']:.4g}, of a number that is like one "
                )
                finding += f"step's loss on each rank, {total['local']:.4g}: where that is a mean, dl.average() shows "
                return unjudged(NAME, f"{finding}that of all ranks, and this is {len(run.traces)} times as much")
    return None


def _is_mean(number: float | None, losses: list[float]) -> bool:
    """Whether a number is no whole one and lies among losses, or is the last of them."""
    if number is None or not losses or float(number).is_integer():
        return False
    among = len(losses) > 1 and min(losses) <= number <= max(losses)
    return among or math.isclose(number, losses[-1], rel_tol=1e-5)


def _words(event: Event) -> str:
    return re.sub(r"\s+|[-+]?\d[\d.e+-]*|nan|inf", "", event["text"])


def _said(event: Event) -> str:
    return shown(event["text"]).strip()[:70]
