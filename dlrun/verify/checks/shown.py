"""Are the numbers that rank 0 prints those of all ranks, or of its own samples alone?"""

from __future__ import annotations

from dlrun.verify.checks.output import same_line, shown
from dlrun.verify.trace import Event, Run
from dlrun.verify.verdict import Check, skipped

NAME = "numbers shown"


def numbers_shown(run: Run) -> Check | None:
    """Name the lines whose numbers are one rank's own; None where there are none. The training is right either way."""
    root, *others = (list(trace.all("shown")) for trace in run.traces)
    found: dict[str, tuple[str, str]] = {}
    for theirs in others:
        for a, b in zip(root, theirs, strict=False):
            if a.at == b.at and not same_line(a["text"], a["text"], b["text"]):
                found.setdefault(a.at, (_said(a), _said(b)))
    if not found or not run.whole:
        return None
    (mine, other), lines = next(iter(found.values())), list(found)
    more = f" and {len(lines) - 3} more" if len(lines) > 3 else ""
    said = f"rank 0's own at {', '.join(lines[:3])}{more}: {mine!r}, where another rank has {other!r}"
    return skipped(NAME, f"{said}; dl.average() of what they are made of shows those of all")


def _said(event: Event) -> str:
    return shown(event["text"]).strip()[:70]
