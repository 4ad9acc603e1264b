"""What the ranks did together: each exchange found on all of them, and in it who waited for whom."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from dlrun.timeline.rings import MARK, Event, Track

BLOCKING = ("allreduce", "broadcast", "barrier")
Key = tuple[int, str, str, int]  # step, kind, name, the how many-th such in the step


@dataclass(frozen=True)
class Meeting:
    """One blocking exchange: when each rank came, and in which step (-1: before the first border)."""

    step: int
    arrivals: dict[int, float]

    @property
    def last(self) -> int:
        """The rank that came last."""
        return max(self.arrivals, key=lambda rank: self.arrivals[rank])

    @property
    def complete(self) -> float:
        """When all were there."""
        return max(self.arrivals.values())


def numbered(track: Track) -> dict[Key, Event]:
    """The blocking exchanges of a track by what identifies them on every rank."""
    borders = sorted((event.begin, event.ticket) for event in track.events if event.kind == MARK)
    found: dict[Key, Event] = {}
    place, step = 0, -1 if not track.lost else -2
    counts: dict[tuple[str, str], int] = {}
    for event in track.events:
        while place < len(borders) and borders[place][0] <= event.begin:
            step, place, counts = borders[place][1] + 1, place + 1, {}
        if event.kind in BLOCKING:
            count = counts[event.kind, event.name] = counts.get((event.kind, event.name), 0) + 1
            found[step, event.kind, event.name, count] = event
    return found


def meetings(tracks: Sequence[Track]) -> dict[Key, Meeting]:
    """The exchanges that all ranks recorded, in order. What came before the first border counts if nothing was lost."""
    each = [numbered(track) for track in tracks]
    common = [key for key in each[0] if key[0] > -2 and all(key in one for one in each)] if each else []
    return {
        key: Meeting(key[0], {t.rank: one[key].begin for t, one in zip(tracks, each, strict=True)}) for key in common
    }


def split(tracks: Sequence[Track]) -> list[Track]:
    """The tracks with a 'wait' and a 'reduce' inside every exchange whose ranks are all known.

    A rank waits until the last one has come; what is left of the call is the exchange itself.
    """
    if len(tracks) < 2:
        return list(tracks)
    met = meetings(tracks)
    found = []
    for track in tracks:
        more: list[Event] = []
        for key, event in numbered(track).items():
            if key in met:
                there = min(max(met[key].complete, event.begin), event.end)
                if there > event.begin:
                    more.append(Event("wait", f"for rank {met[key].last}", event.begin, there))
                more.append(Event("reduce", event.name, there, event.end, event.nbytes))
        ordered = sorted([*track.events, *more], key=lambda e: (e.begin, -e.end, e.kind in ("wait", "reduce")))
        found.append(replace(track, events=tuple(ordered)))
    return found


def slowest(tracks: Sequence[Track]) -> dict[int, tuple[int, float]]:
    """Step -> (the rank that came last to its first exchange, seconds behind the first rank)."""
    found: dict[int, tuple[int, float]] = {}
    if len(tracks) < 2:
        return found
    for meeting in meetings(tracks).values():
        if meeting.step >= 0 and meeting.step not in found:
            found[meeting.step] = meeting.last, meeting.complete - min(meeting.arrivals.values())
    return found
