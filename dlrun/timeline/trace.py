"""One Chrome trace of all ranks, which Perfetto and chrome://tracing open, and which reads back into tracks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dlrun.errors import DlrunError
from dlrun.timeline.rings import EXCHANGES, MARK, Event, Track
from dlrun.timeline.together import split

# Rows of a rank: what the script did, what was reduced behind its back, its steps; each of as many lanes as it needs.
ROWS = ("script", "background", "steps")
LANES = 16


def background(track: Track) -> list[Event]:
    """The reductions that ran beside the script: those that have a ticket."""
    return [event for event in track.events if event.kind == "reduce" and event.ticket]


def script(track: Track) -> list[Event]:
    """What the script's own threads did."""
    return [e for e in track.events if e.kind != MARK and not (e.kind == "reduce" and e.ticket)]


def with_gaps(track: Track) -> list[Event]:
    """What the script did, and what lies between: 'set-up' before the first step, then 'forward' and 'backward'.

    Where backward was not recorded of its own a gap is 'forward/backward'; a gap that leads to no backward, as between
    epochs, is 'script'. Before the first of the steps that were asked for, or that the ring still holds, lies nothing.
    """
    events = script(track)
    apart = any(event.kind == "backward" for event in events)
    borders = [(event.begin, event.ticket) for event in track.events if event.kind == MARK]
    unseen = borders[0][0] if borders and (track.lost or borders[0][1] > 0) else float("-inf")
    computing = [e.begin for e in events if e.kind == "backward" or (e.kind in EXCHANGES and not apart)]
    first = min(computing, default=float("inf")) if unseen == float("-inf") else unseen
    found: list[Event] = []
    reached = None
    for event in events:
        if reached is not None and event.begin > max(reached, unseen):
            found.append(Event(_kind_of_gap(event, first, apart), "", max(reached, unseen), event.begin))
        found.append(event)
        reached = max(reached if reached is not None else event.end, event.end)
    return found


def _kind_of_gap(after: Event, first: float, apart: bool) -> str:
    if after.begin <= first:
        return "set-up"
    if apart:
        return "forward" if after.kind == "backward" else "script"
    return "forward/backward"


def lanes(events: Sequence[Event]) -> list[tuple[int, Event]]:
    """(lane, event): in each lane events follow each other or lie one within the other, as a trace must have them."""
    open_: list[list[float]] = []
    found = []
    for event in sorted(events, key=lambda e: (e.begin, -e.end)):
        for lane, ends in enumerate([*open_, []]):
            while ends and ends[-1] <= event.begin:
                ends.pop()
            if not ends or event.end <= ends[-1] or lane == LANES - 1:
                if lane == len(open_):
                    open_.append(ends)
                ends.append(event.end)
                found.append((lane, event))
                break
    return found


def to_chrome(tracks: Sequence[Track]) -> dict[str, Any]:
    """The trace as the JSON value that its readers want. Times in microseconds."""
    events: list[dict[str, Any]] = []
    for track in split(tracks):
        pid = track.rank
        about = f"rank {track.rank} on {track.host}, pid {track.pid}"
        facts = {"name": about, "host": track.host, "pid": track.pid, "lost": track.lost}
        events.append({"ph": "M", "name": "process_name", "pid": pid, "tid": 0, "args": facts})
        events.append({"ph": "M", "name": "process_sort_index", "pid": pid, "tid": 0, "args": {"sort_index": pid}})
        steps = [Event("period", f"step {n}", *times, ticket=n) for n, times in track.steps().items()]
        for row, of_row in enumerate((with_gaps(track), background(track), steps)):
            placed = lanes(of_row)
            for lane in sorted({lane for lane, _ in placed}):
                tid, name = row * LANES + lane, ROWS[row] + (f" {lane + 1}" if lane else "")
                events.append({"ph": "M", "name": "thread_name", "pid": pid, "tid": tid, "args": {"name": name}})
                order = {"sort_index": (1, 2, 0)[row] * LANES + lane}
                events.append({"ph": "M", "name": "thread_sort_index", "pid": pid, "tid": tid, "args": order})
            events += [_complete(event, pid, row * LANES + lane) for lane, event in placed]
        for event in track.events:
            if event.kind == MARK:
                events.append(
                    {
                        "ph": "i",
                        "s": "t",
                        "name": f"step {event.ticket} ended",
                        "cat": MARK,
                        "pid": pid,
                        "tid": 0,
                        "ts": _us(event.begin),
                        "args": {"ticket": event.ticket},
                    }
                )
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def _us(seconds: float) -> float:
    return round(seconds * 1e6, 3)


def _complete(event: Event, pid: int, tid: int) -> dict[str, Any]:
    title = event.name if event.kind == "period" else f"{event.kind} {event.name}".strip()
    title = event.kind if event.name == event.kind else title
    begin = _us(event.begin)
    args = {"name": event.name, "bytes": event.nbytes, "ticket": event.ticket}
    times = {"ts": begin, "dur": round(_us(event.end) - begin, 3)}
    return {"ph": "X", "name": title, "cat": event.kind, **times, "pid": pid, "tid": tid, "args": args}


# What `to_chrome` adds to what was recorded.
_DERIVED = ("period", "set-up", "forward", "forward/backward", "script")


def from_chrome(value: Any, source: str) -> list[Track]:
    """The tracks that `to_chrome` wrote; `source` names the file in the error."""
    found: dict[int, list[Event]] = {}
    about: dict[int, dict[str, Any]] = {}
    try:
        for e in value["traceEvents"]:
            if e["name"] == "process_name":
                about[e["pid"]] = e["args"]
            args, begin = e["args"], e.get("ts", 0.0) / 1e6
            if e["ph"] == "X" and e["cat"] not in _DERIVED and not _is_part(e):
                event = Event(e["cat"], args["name"], begin, begin + e["dur"] / 1e6, args["bytes"], args["ticket"])
                found.setdefault(e["pid"], []).append(event)
            elif e["ph"] == "i":
                found.setdefault(e["pid"], []).append(Event(MARK, "step", begin, begin, 0, args["ticket"]))
        if not about:
            raise KeyError("process_name")
        return [
            Track(
                rank,
                facts["host"],
                facts["pid"],
                tuple(sorted(found.get(rank, []), key=lambda e: (e.begin, -e.end))),
                facts["lost"],
            )
            for rank, facts in sorted(about.items())
        ]
    except (KeyError, TypeError):
        raise DlrunError(f"{source} is no trace of dlrun launch --timeline") from None


def _is_part(event: dict[str, Any]) -> bool:
    """Whether this is a piece of an exchange that `split` put there."""
    return event["cat"] in ("wait", "reduce") and not event["args"]["ticket"]
