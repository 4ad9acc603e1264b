"""Read the rings that dl_comm left, of ranks that ended well and of ranks that were killed."""

from __future__ import annotations

import json
import struct
from bisect import bisect
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from dlrun.errors import DlrunError

FORMAT = "dl_comm timeline 2"
HEAD = 4096
RECORD = struct.Struct("<IIQQQQ")
EXCHANGES = ("allreduce", "issue")  # what begins an exchange of gradients or metrics
MARK = "mark"


@dataclass(frozen=True)
class Event:
    """Something a rank did from `begin` to `end`, seconds on rank 0's clock.

    `ticket` is shared by the issue of a bucket, its reduction in the background and the wait for it; of a mark, the
    border between two steps, it is the number of the step that ended.
    """

    kind: str
    name: str
    begin: float
    end: float
    nbytes: int = 0
    ticket: int = 0

    @property
    def seconds(self) -> float:
        """How long it took."""
        return self.end - self.begin


@dataclass(frozen=True)
class Track:
    """The events of one rank in order of their beginnings; `lost` older ones gave way."""

    rank: int
    host: str
    pid: int
    events: tuple[Event, ...]
    lost: int = 0

    def steps(self) -> dict[int, tuple[float, float]]:
        """Number -> when the step began and ended; the first has no known beginning and is left out."""
        marks = {event.ticket: event.begin for event in self.events if event.kind == MARK}
        return {number: (marks[number - 1], end) for number, end in marks.items() if number - 1 in marks}


def ahead(clock: Sequence[Sequence[int]], time: int) -> float:
    """By how many ns the clock is ahead of rank 0's at `time`: linear between its readings, constant beyond them."""
    if not clock:
        return 0.0
    place = bisect([at for at, _ in clock], time)
    if place in (0, len(clock)):
        return float(clock[min(place, len(clock) - 1)][1])
    (a, before), (b, after) = clock[place - 1], clock[place]
    return before + (after - before) * (time - a) / (b - a)


def read(path: Path) -> Track:
    """One rank's ring."""
    raw = path.read_bytes()
    try:
        head = json.loads(raw[: HEAD - 8])
        assert head["format"] == FORMAT
    except (ValueError, AssertionError, KeyError, TypeError):
        raise DlrunError(f"{path} is no timeline of dl_comm") from None
    names = {}
    side = path.with_suffix(".names")
    for line in side.read_text().splitlines(keepends=True) if side.exists() else []:
        if line.endswith("\n"):  # a rank that was killed may have left half of one
            key, name = json.loads(line)
            names[key] = name
    (count,) = struct.unpack_from("<Q", raw, HEAD - 8)
    slots, clock = head["slots"], head["clock"]
    events = []
    for index in range(max(0, count - slots), count):
        kind, key, ticket, begin, end, nbytes = RECORD.unpack_from(raw, HEAD + index % slots * RECORD.size)
        times = ((begin - ahead(clock, begin)) / 1e9, (end - ahead(clock, end)) / 1e9)
        events.append(Event(head["kinds"][kind], names.get(key, head["kinds"][kind]), *times, nbytes, ticket))
    ordered = tuple(sorted(events, key=lambda event: (event.begin, -event.end)))
    return Track(head["rank"], head["host"], head["pid"], ordered, max(0, count - slots))


def read_all(folder: Path) -> list[Track]:
    """The tracks of all ranks of a run, by rank; times count from the earliest event of all."""
    tracks = sorted((read(path) for path in folder.glob("timeline-*.ring")), key=lambda track: track.rank)
    if not any(track.events for track in tracks):
        hint = "record one: dlrun launch --timeline trace.json ...; the script must import dl_comm"
        raise DlrunError(f"{folder} holds no timeline", hint)
    zero = min(event.begin for track in tracks for event in track.events)
    return [replace(track, events=tuple(_earlier(event, zero) for event in track.events)) for track in tracks]


def _earlier(event: Event, by: float) -> Event:
    return replace(event, begin=event.begin - by, end=event.end - by)


def between(track: Track, first: int, last: int) -> Track:
    """The track from the beginning of step `first` to that of step `last`; steps count from 0."""
    marks = {event.ticket: event.begin for event in track.events if event.kind == MARK}
    low = marks.get(first - 1, float("-inf") if first == 0 else float("inf"))
    high = marks.get(last - 1, float("inf"))
    return replace(track, events=tuple(e for e in track.events if low <= e.begin and e.end <= high))
