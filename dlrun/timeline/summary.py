"""What a person wants to know of a timeline: how much of a step is waiting, for whom, and what costs most."""

from __future__ import annotations

import re
import statistics
from collections.abc import Sequence

from dlrun.bench.table import aligned, seconds_as_text
from dlrun.timeline.rings import EXCHANGES, Event, Track
from dlrun.timeline.together import slowest, split
from dlrun.timeline.trace import background, with_gaps

WAITING = ("wait", "barrier")
COMPUTING = ("forward", "backward", "forward/backward", "step")
_DIGEST = re.compile(r" \([0-9a-f]{16}\)$")  # by which ranks compare a list of gradients that is too long to spell
MOST_STEPS = 24  # for which the slowest rank is listed step by step


def own_seconds(events: Sequence[Event], span: tuple[float, float]) -> dict[tuple[str, str], float]:
    """(kind, name) -> seconds within the span that are spent in it, and not in what lies inside it."""
    low, high = span
    found: dict[tuple[str, str], float] = {}
    inside: list[Event] = []

    def charge(event: Event, seconds: float) -> None:
        key = (event.kind, event.name)
        found[key] = found.get(key, 0.0) + seconds

    for event in sorted(events, key=lambda e: (e.begin, -e.end)):
        while inside and inside[-1].end <= event.begin:
            inside.pop()
        seconds = min(event.end, high) - max(event.begin, low)
        if seconds > 0:
            charge(event, seconds)
            if inside:
                charge(inside[-1], -min(seconds, max(0.0, min(inside[-1].end, high) - max(event.begin, low))))
            inside.append(event)
    return found


def span_of(track: Track) -> tuple[float, float]:
    """From the beginning of the first whole step to the end of the last; the whole track where there are none."""
    steps = track.steps().values()
    if steps:
        return min(begin for begin, _ in steps), max(end for _, end in steps)
    return track.events[0].begin if track.events else 0.0, max((e.end for e in track.events), default=0.0)


def shares(track: Track) -> dict[str, float]:
    """Kind -> share of the time in steps. `track` is one of `split`, in which waiting is told from reducing."""
    low, high = span_of(track)
    whole = high - low
    found: dict[str, float] = {}
    for (kind, _), seconds in own_seconds(with_gaps(track), (low, high)).items():
        found[kind] = found.get(kind, 0.0) + (seconds / whole if whole else 0.0)
    return found


def overlap(track: Track) -> float | None:
    """The share of the reductions in the background during which the script did not wait; None where there are none."""
    flights = background(track)
    flying = sum(flight.seconds for flight in flights)
    blocked = [e for e in track.events if e.kind == "allreduce" or (e.kind == "wait" and e.ticket)]
    hit = sum(max(0.0, min(f.end, b.end) - max(f.begin, b.begin)) for f in flights for b in blocked if b.end > f.begin)
    return 1 - hit / flying if flying else None


def costs(tracks: Sequence[Track], most: int = 3) -> list[tuple[str, float]]:
    """The largest costs: what, and its mean seconds per rank and step (per rank, where there are no steps)."""
    found: dict[str, float] = {}
    for track in tracks:
        parts = len(tracks) * max(1, len(track.steps()))
        for (kind, name), seconds in own_seconds(with_gaps(track), span_of(track)).items():
            named = kind in ("wait", "reduce", "allreduce", "broadcast") and name
            title = f"{kind} {_DIGEST.sub('', name)}" if named else kind
            found[title] = found.get(title, 0.0) + seconds / parts
    return sorted(found.items(), key=lambda item: -item[1])[:most]


def summary(tracks: Sequence[Track]) -> str:
    """The whole story in a few lines and one table."""
    tracks = split(tracks)
    whole = tracks[0].steps()
    late = {step: who for step, who in slowest(tracks).items() if step in whole}
    lines = [_steps(tracks), _table(tracks, late)]
    if late and len(late) <= MOST_STEPS:
        each = ", ".join(f"{step}: {rank}" for step, (rank, _) in sorted(late.items()))
        lines.append(f"slowest rank per step: {each}")
    per = "per rank and step" if whole else "per rank"
    named = ", ".join(f"{seconds_as_text(seconds)} {name}" for name, seconds in costs(tracks))
    lines.append(f"largest costs {per}: {named}")
    if beginnings := _beginnings(tracks):
        lines.append(f"before the first step: {beginnings}")
    lost = sum(track.lost for track in tracks)
    if lost:
        lines.append(f"the oldest {lost} records gave way to newer ones")
    return "\n".join(line for line in lines if line)


def _steps(tracks: Sequence[Track]) -> str:
    """How many steps there are, which, and how long they took."""
    steps = tracks[0].steps()
    if not steps:
        return "no whole step was recorded"
    times = [end - begin for begin, end in steps.values()]
    which = f"steps {min(steps)} to {max(steps)}" if len(steps) > 1 else f"step {min(steps)}"
    return f"{which}: median {seconds_as_text(statistics.median(times))}, longest {seconds_as_text(max(times))}"


def _table(tracks: Sequence[Track], late: dict[int, tuple[int, float]]) -> str:
    rows = []
    for track in tracks:
        spent, hidden = shares(track), overlap(track)
        waiting = sum(spent.get(kind, 0.0) for kind in WAITING)
        reducing = sum(spent.get(kind, 0.0) for kind in ("reduce", "allreduce", "broadcast", "issue", "pack", "unpack"))
        computing = sum(spent.get(kind, 0.0) for kind in COMPUTING)
        moved = sum(event.nbytes for event in track.events if event.kind in EXCHANGES)
        behind = [seconds for rank, seconds in late.values() if rank == track.rank]
        by = f" by {seconds_as_text(statistics.median(behind))}" if behind else ""
        rows.append(
            (
                f"rank {track.rank}",
                f"{100 * waiting:.1f} %",
                f"{100 * reducing:.1f} %",
                f"{100 * computing:.1f} %",
                "-" if hidden is None else f"{100 * hidden:.0f} %",
                f"{len(behind)} steps{by}",
                f"{moved / 2**20:.1f} MB",
            )
        )
    return aligned(("", "waiting", "averaging", "computing", "overlap", "came last", "averaged"), rows)


def _beginnings(tracks: Sequence[Track]) -> str:
    """How long the ranks took to start, import and join, by the slowest."""
    slowest_of: dict[str, float] = {}
    for kind in ("start", "import", "init"):
        for track in tracks:
            seconds = sum(e.seconds for e in track.events if e.kind == kind)
            slowest_of[kind] = max(slowest_of.get(kind, 0.0), seconds)
    return ", ".join(f"{kind} {seconds_as_text(seconds)}" for kind, seconds in slowest_of.items() if seconds)
