"""What a person wants to know of a timeline: how much of a step is waiting, for whom, and what costs most."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from itertools import pairwise

from dlrun.bench.table import aligned, seconds_as_text
from dlrun.timeline.rings import EXCHANGES, Track, marks
from dlrun.timeline.trace import OWN, flights, with_gaps

WAITING = ("allreduce", "wait", "barrier", "broadcast")


def step_seconds(tracks: Sequence[Track]) -> list[float]:
    """Per step: from the first rank's first exchange to the next one, on rank 0."""
    begins = marks(tracks[0])
    return [after - before for before, after in pairwise(begins)]


def shares(track: Track) -> dict[str, float]:
    """Seconds per kind between the first and the last exchange of the track, computing included."""
    begins = marks(track)
    if len(begins) < 2:
        return {}
    found: dict[str, float] = {}
    for event in with_gaps(track):
        inside = min(event.end, begins[-1]) - max(event.begin, begins[0])
        if inside > 0:
            found[event.kind] = found.get(event.kind, 0.0) + inside
    return found


def lateness(tracks: Sequence[Track]) -> dict[int, tuple[int, float]]:
    """Rank -> (in how many steps it came last to the first exchange, seconds behind the first rank on average)."""
    begins = [marks(track) for track in tracks]
    late: dict[int, list[float]] = {track.rank: [] for track in tracks}
    for arrivals in zip(*begins, strict=False):
        last = max(range(len(arrivals)), key=lambda i: arrivals[i])
        late[tracks[last].rank].append(arrivals[last] - min(arrivals))
    return {rank: (len(times), statistics.fmean(times) if times else 0.0) for rank, times in late.items()}


def overlap(track: Track) -> float | None:
    """The share of the time in flight in which the script did not wait; None where nothing ran in the background."""
    pairs = flights(track)
    flying = sum(wait.end - start.begin for start, wait in pairs)
    return 1 - sum(wait.seconds for _, wait in pairs) / flying if flying else None


def costs(tracks: Sequence[Track], most: int = 3) -> list[tuple[str, float]]:
    """The largest costs over all ranks: what, and its mean seconds per rank."""
    found: dict[str, float] = {}
    for track in tracks:
        for event in with_gaps(track):
            name = event.name if event.kind in OWN else event.kind
            found[name] = found.get(name, 0.0) + event.seconds / len(tracks)
    return sorted(found.items(), key=lambda item: -item[1])[:most]


def summary(tracks: Sequence[Track]) -> str:
    """The whole story in a few lines and one table."""
    steps = step_seconds(tracks)
    lines = []
    if steps:
        middle, worst = statistics.median(steps), max(steps)
        lines.append(f"{len(steps)} steps, median {seconds_as_text(middle)}, longest {seconds_as_text(worst)}")
    late, rows = lateness(tracks), []
    for track in tracks:
        spent = shares(track)
        whole = sum(spent.values())
        waiting = sum(spent.get(kind, 0.0) for kind in WAITING)
        hidden = overlap(track)
        moved = sum(event.nbytes for event in track.events if event.kind in EXCHANGES)
        times, by = late[track.rank]
        rows.append((
            f"rank {track.rank}", f"{100 * waiting / whole:.1f} %" if whole else "-",
            f"{100 * spent.get('compute', 0.0) / whole:.1f} %" if whole else "-",
            f"{100 * hidden:.0f} %" if hidden is not None else "-",
            f"{times} steps" + (f" by {seconds_as_text(by)}" if times else ""), f"{moved / 2**20:.1f} MB",
        ))  # fmt: skip
    lines.append(aligned(("", "waiting", "computing", "overlap", "came last", "reduced"), rows))
    named = ", ".join(f"{name} {seconds_as_text(seconds)}" for name, seconds in costs(tracks))
    lines.append(f"largest costs per rank: {named}")
    lost = sum(track.lost for track in tracks)
    if lost:
        lines.append(f"the oldest {lost} records gave way to newer ones")
    return "\n".join(lines)
