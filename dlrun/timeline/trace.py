"""One Chrome trace of all ranks: complete events with whole pids and tids, names for both, a gap is computing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dlrun.timeline.rings import EXCHANGES, Event, Track

OWN = ("begin", "init", "set-up", "compute")  # what a rank does for itself, by kind
SCRIPT, FLIGHT = 0, 1  # rows of a rank: what the script did, and what was under way behind its back


def with_gaps(track: Track) -> list[Event]:
    """The script's events with what lies between them: set-up before the first exchange, computing after it."""
    events = sorted(track.events, key=lambda event: event.begin)
    first = next((event.begin for event in events if event.kind in EXCHANGES), float("inf"))
    found: list[Event] = []
    reached = None
    for event in events:
        if reached is not None and event.begin > reached:
            kind = "compute" if event.begin > first else "set-up"
            found.append(Event(kind, kind, reached, event.begin))
        found.append(event)
        reached = max(reached or event.end, event.end)
    return found


def flights(track: Track) -> list[tuple[Event, Event]]:
    """(start, its wait) of every reduction in the background."""
    waits = {event.ticket: event for event in track.events if event.kind == "wait"}
    return [(e, waits[e.ticket]) for e in track.events if e.kind == "start" and e.ticket in waits]


def to_chrome(tracks: Sequence[Track]) -> dict[str, Any]:
    """The trace as the JSON value that Perfetto and chrome://tracing read. Times in microseconds."""
    events: list[dict[str, Any]] = []
    for track in tracks:
        pid = track.rank
        about = f"rank {track.rank} on {track.host}, pid {track.pid}"
        events.append({"ph": "M", "name": "process_name", "pid": pid, "tid": 0, "args": {"name": about}})
        events.append({"ph": "M", "name": "process_sort_index", "pid": pid, "tid": 0, "args": {"sort_index": pid}})
        for tid, name in ((SCRIPT, "script"), (FLIGHT, "in the background")):
            events.append({"ph": "M", "name": "thread_name", "pid": pid, "tid": tid, "args": {"name": name}})
        for event in with_gaps(track):
            title = event.name if event.kind in OWN else f"{event.kind}: {event.name}"
            events.append(_complete(title, event.kind, event.begin, event.end, pid, SCRIPT, {"bytes": event.nbytes}))
        for start, wait in flights(track):
            args = {"bytes": start.nbytes, "waited_us": round(wait.seconds * 1e6, 3)}
            events.append(_complete(start.name, "flight", start.begin, wait.end, pid, FLIGHT, args))
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def _complete(
    name: str, category: str, begin: float, end: float, pid: int, tid: int, args: dict[str, Any]
) -> dict[str, Any]:
    times = {"ts": round(begin * 1e6, 3), "dur": round((end - begin) * 1e6, 3)}
    return {"ph": "X", "name": name, "cat": category, **times, "pid": pid, "tid": tid, "args": args}
