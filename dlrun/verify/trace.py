"""What runs did: one ``Trace`` per rank, read from its journal; one ``Run`` per launch."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import takewhile
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Event:
    """One thing that a script did: its kind, the line (``train.py:12``) that did it, seconds since start, facts."""

    kind: str
    at: str
    clock: float
    facts: dict[str, Any]

    def __getitem__(self, name: str) -> Any:
        return self.facts[name]


WAITED = re.compile(r"Rank \d+ (has )?waited a total of ")  # what dl_comm prints where it is asked to


@dataclass(frozen=True)
class Step:
    """One optimizer step.

    ``number`` counts from 1 over all optimizers of the script. ``grads`` (as used) and ``params`` (as left behind) hold
    one tensor note per parameter: hash, L2 norm, sample; None for a parameter without gradient. ``before`` are the
    events since the step before.
    """

    number: int
    optimizer: int
    at: str
    lr: tuple[float, ...]
    grads: tuple[dict[str, Any] | None, ...]
    params: tuple[dict[str, Any], ...]
    states: dict[str, str]
    drew: tuple[str, ...]
    before: tuple[Event, ...]

    def count(self, kind: str) -> int:
        """Return how many events of a kind came since the step before."""
        return sum(event.kind == kind for event in self.before)


@dataclass(frozen=True)
class Epoch:
    """One pass over a DataLoader: ``batches`` delivered, then ``rest``, which a cut run did not read any more.

    Batches are lists of sample numbers in data set ``data``; None where samples have no number. ``loops``: a ``for`` of
    the script's goes through it. ``dataset``: as its workers name it. ``made``: the steps made before.
    """

    loader: int
    data: int
    size: int | None
    at: str
    trains: bool
    complete: bool
    batches: tuple[list[int] | None, ...]
    rest: tuple[list[int] | None, ...]
    hashes: tuple[str, ...]
    loops: bool = False
    dataset: int = 0
    made: int = 0

    @property
    def samples(self) -> list[int] | None:
        """All sample numbers in reading order, the ones not read any more included."""
        every = [*self.batches, *self.rest]
        if not every or any(batch is None for batch in every):
            return None
        return [i for batch in every for i in batch or ()]


@dataclass(frozen=True)
class Trace:
    """What one rank of one run did, in order."""

    rank: int
    events: tuple[Event, ...]

    def all(self, *kinds: str) -> Iterator[Event]:
        """Yield the events of these kinds."""
        return (event for event in self.events if event.kind in kinds)

    def in_passes(self, *kinds: str) -> Iterator[tuple[Event, tuple[int, int]]]:
        """Yield the events of these kinds, each with how many passes through data have begun and steps been made.

        A share of what is evaluated may have a batch more than another. So what is done in each batch is told in the
        pass that it belongs to: the next one begins alike on all ranks.
        """
        passes = steps = 0
        for event in self.events:
            passes, steps = passes + (event.kind == "epoch"), steps + (event.kind == "step")
            if event.kind in kinds:
                yield event, (passes, steps)

    def first(self, kind: str) -> Event | None:
        """Return the first event of a kind, None where there is none."""
        return next(self.all(kind), None)

    def last(self, kind: str) -> Event | None:
        """Return the last event of a kind, None where there is none."""
        return next((event for event in reversed(self.events) if event.kind == kind), None)

    @cached_property
    def steps(self) -> tuple[Step, ...]:
        """The optimizer steps."""
        steps, since = [], 0
        for i, event in enumerate(self.events):
            if event.kind == "step":
                facts = {name: event[name] for name in ("optimizer", "states")}
                for name in ("lr", "grads", "params", "drew"):
                    facts[name] = tuple(event[name])
                steps.append(Step(number=event["step"], at=event.at, before=self.events[since:i], **facts))
                since = i + 1
        return tuple(steps)

    @cached_property
    def epochs(self) -> tuple[Epoch, ...]:
        """The passes over DataLoaders."""
        return tuple(self._epoch(event) for event in self.all("epoch"))

    def _epoch(self, begun: Event) -> Epoch:
        mine = [e for e in self.all("batch", "cut", "over", "trains") if e["epoch"] == begun["epoch"]]
        before = takewhile(lambda event: event is not begun, self.events)
        return Epoch(
            loader=begun["loader"],
            data=begun["data"],
            size=begun["size"],
            at=begun.at,
            trains=any(e.kind == "trains" for e in mine),
            complete=any(e.kind == "over" or (e.kind == "cut" and not e.facts.get("endless")) for e in mine),
            batches=tuple(e["indices"] for e in mine if e.kind == "batch"),
            rest=tuple(batch for e in mine if e.kind == "cut" for batch in e["rest"]),
            hashes=tuple(e["hash"] for e in mine if e.kind == "batch"),
            loops=begun.facts.get("loops", False),
            dataset=begun.facts.get("dataset", 0),
            made=sum(event.kind == "step" for event in before),
        )

    @cached_property
    def names(self) -> dict[int, list[str]]:
        """The parameter names of each optimizer, those that joined it later last."""
        return self._of_optimizers("names")

    @cached_property
    def starts(self) -> dict[int, list[dict[str, Any]]]:
        """The notes of each optimizer's parameters before its first step with them."""
        return self._of_optimizers("params")

    def _of_optimizers(self, fact: str) -> dict[int, list[Any]]:
        found: dict[int, list[Any]] = {}
        for event in self.all("optimizer", "joined"):
            found[event["optimizer"]] = found.get(event["optimizer"], []) + list(event[fact])
        return found

    @property
    def printed(self) -> list[Event]:
        """The lines written to standard output, without dl_comm's own: how long a rank has waited."""
        return [event for event in self.all("print") if not WAITED.match(event["text"])]

    def returns(self, function: str) -> Iterator[Event]:
        """Yield what calls of one of dl_comm's functions gave back."""
        return (event for event in self.all("return") if event["fn"] == function)

    @property
    def waiting(self) -> Event | None:
        """The call of dl_comm that this rank never came back from, None if there is none."""
        calls = [event for event in self.events if event.kind in ("call", "return")]
        return calls[-1] if calls and calls[-1].kind == "call" else None

    @property
    def ended(self) -> bool:
        """Whether the script came to its end, or was stopped after its steps."""
        return self.first("end") is not None


@dataclass(frozen=True)
class Run:
    """One launch: what each rank did, and how it ended.

    ``hung``: the ranks waited for each other until the run was ended from outside. ``texts``: the text files that rank
    0 wrote, by their way from the working folder; ``written``: all such files.
    """

    name: str
    traces: tuple[Trace, ...]
    code: int = 0
    hung: bool = False
    log: str = ""
    texts: Mapping[str, str] = field(default_factory=dict)
    written: Mapping[str, Path] = field(default_factory=dict)

    @property
    def root(self) -> Trace:
        """Rank 0."""
        return self.traces[0]

    @property
    def error(self) -> tuple[int, Event] | None:
        """The first rank that failed and its error event, None if none did."""
        failed = [(e.clock, trace.rank, e) for trace in self.traces for e in trace.all("error")]
        return min(failed, key=lambda x: x[:2])[1:] if failed else None

    @property
    def whole(self) -> bool:
        """Whether every rank came to its end."""
        return not self.hung and self.code == 0 and all(trace.ended for trace in self.traces)


def read_trace(file: Path, rank: int) -> Trace:
    """Return the trace in a journal; a line that a killed rank left half-written is dropped; no file: no events."""
    events = []
    for line in file.read_text(encoding="utf-8").splitlines() if file.exists() else ():
        try:
            raw = json.loads(line)
        except json.JSONDecodeError:
            break
        events.append(Event(raw.pop("kind"), raw.pop("at"), raw.pop("clock"), raw))
    return Trace(rank, tuple(events))
