"""Does rank 0 alone print, and are its numbers those of all ranks, or of its own samples alone?"""

from __future__ import annotations

import re

from dlrun.verify.checks.output import same_line, shown
from dlrun.verify.trace import Event, Run
from dlrun.verify.verdict import Check, skipped

NAME = "numbers shown"


def numbers_shown(run: Run) -> Check | None:
    """Name lines that every rank prints, or whose numbers are one rank's own; None where there are none.

    The training is right either way.
    """
    loud = next((trace for trace in run.traces[1:] if trace.printed), None)
    if loud is not None:
        line = loud.printed[0]
        said = f"rank {loud.rank} prints, too, at {line.at}: {_said(line)!r}"
        once = "print = dl.print before it, or dl.rank0(f)(...) for an f that prints by itself, shows each line once"
        return skipped(NAME, f"{said}; {once}")
    root, *others = (list(trace.all("shown")) for trace in run.traces)
    found: dict[str, tuple[Event, Event]] = {}
    for theirs in others:
        for a, b in zip(root, theirs, strict=False):
            if a.at == b.at and not same_line(a["text"], a["text"], b["text"]):
                found.setdefault(a.at, (a, b))
    if not found or not run.whole:
        return None
    lines = sorted(found, key=lambda at: _words(found[at][0]) != _words(found[at][1]))  # numbers first
    mine, other = found[lines[0]]
    more = f" and {len(lines) - 3} more" if len(lines) > 3 else ""
    said = f"rank 0's own at {', '.join(lines[:3])}{more}: {_said(mine)!r}, where another rank has {_said(other)!r}"
    if _words(mine) != _words(other):
        return skipped(NAME, f"{said}: each rank has words of its own, and one rank's are shown")
    return skipped(NAME, f"{said}; dl.average() of a mean, dl.total() of a sum, shows those of all")


def _words(event: Event) -> str:
    return re.sub(r"\s+|[-+]?\d[\d.e+-]*|nan|inf", "", event["text"])


def _said(event: Event) -> str:
    return shown(event["text"]).strip()[:70]
