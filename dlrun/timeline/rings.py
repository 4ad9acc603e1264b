"""Read the rings that dl_comm left, of ranks that ended well and of ranks that were killed."""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass
from pathlib import Path

from dlrun.errors import DlrunError

FORMAT = "dl_comm timeline 1"
HEAD = 4096
RECORD = struct.Struct("<IIQQQQ")
EXCHANGES = ("allreduce", "start")


@dataclass(frozen=True)
class Event:
    """Something a rank did from `begin` to `end`, seconds on rank 0's clock. A start and its wait share a ticket."""

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
    """The events of one rank in order; `lost` older ones gave way."""

    rank: int
    host: str
    pid: int
    events: tuple[Event, ...]
    lost: int = 0


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
    for line in side.read_text().splitlines() if side.exists() else []:
        key, name = json.loads(line)
        names[key] = name
    (count,) = struct.unpack_from("<Q", raw, HEAD - 8)
    slots, offset = head["slots"], head["offset"]
    events = []
    for index in range(max(0, count - slots), count):
        kind, key, ticket, begin, end, nbytes = RECORD.unpack_from(raw, HEAD + index % slots * RECORD.size)
        times = ((begin - offset) / 1e9, (end - offset) / 1e9)
        events.append(Event(head["kinds"][kind], names.get(key, head["kinds"][kind]), *times, nbytes, ticket))
    return Track(head["rank"], head["host"], head["pid"], tuple(events), max(0, count - slots))


def read_all(folder: Path) -> list[Track]:
    """The tracks of all ranks of a run, by rank; times count from the earliest event of all."""
    tracks = sorted((read(path) for path in folder.glob("timeline-*.ring")), key=lambda track: track.rank)
    if not any(track.events for track in tracks):
        hint = "record one: dlrun launch --timeline trace.json ...; the script must import dl_comm"
        raise DlrunError(f"{folder} holds no timeline", hint)
    zero = min(event.begin for track in tracks for event in track.events)
    return [
        Track(t.rank, t.host, t.pid, tuple(
            Event(e.kind, e.name, e.begin - zero, e.end - zero, e.nbytes, e.ticket) for e in t.events
        ), t.lost)
        for t in tracks
    ]  # fmt: skip


def marks(track: Track) -> list[float]:
    """When each step's first exchange began: the exchange that comes most often, the earliest of those that tie.

    The order of exchanges is the same in every step, so the return of one of them is the next step.
    """
    exchanges = [event for event in track.events if event.kind in EXCHANGES]
    counts: dict[tuple[str, int], int] = {}
    for event in exchanges:
        counts[event.name, event.nbytes] = counts.get((event.name, event.nbytes), 0) + 1
    if not counts:
        return []
    chosen = max(counts, key=lambda key: counts[key])
    return [event.begin for event in exchanges if (event.name, event.nbytes) == chosen]


def between(track: Track, first: int, last: int) -> Track:
    """The track from the beginning of step `first` to that of step `last`; steps count from 0."""
    begins = marks(track)
    low = begins[first] if first < len(begins) else float("inf")
    high = begins[last] if last < len(begins) else float("inf")
    events = tuple(event for event in track.events if low <= event.begin < high)
    return Track(track.rank, track.host, track.pid, events, track.lost)
