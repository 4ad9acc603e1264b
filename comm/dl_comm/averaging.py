"""The means of gradients over ranks, team by team: blocking, or pipelined by one step, as ``config_team`` set it."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dl_comm import _core, device
from dl_comm.arrays import bare, described, fresh
from dl_comm.errors import CommError
from dl_comm.schedule import Phases, lagging_share

unwatched = _core.allreduce  # timelines, probes and the like put others in its place, to be told of every call


@dataclass
class Flight:
    """A reduction that has been started; it holds the arrays until it is done."""

    arrays: list[Any]
    ticket: int | None
    on_gpu: list[device.Flight] = field(default_factory=list)

    @property
    def flies(self) -> bool:
        """Whether it has not been waited for."""
        return self.ticket is not None or bool(self.on_gpu)

    def land(self) -> list[Any]:
        """Wait for the means, once, and return them."""
        if self.ticket is not None:
            ticket, self.ticket = self.ticket, None
            _core.wait(ticket)
        for flight in self.on_gpu:
            flight.land()
        self.on_gpu = []
        return self.arrays


@dataclass
class Averaging:
    """What one team has done so far, and how it goes on."""

    team: int
    phases: Phases = field(default_factory=Phases)
    verbosity: int = 0
    perf_freq: int = 0
    calls: int = 0
    waited: float = 0.0  # seconds, in total
    previous: Flight | None = None
    at_once: bool = True  # whether calls block and report nothing, so that the core may do all of them

    def configure(self, phases: Phases, verbosity: int, perf_freq: int) -> None:
        """Go on as ``config_team`` says."""
        self.phases, self.verbosity, self.perf_freq = phases, verbosity, perf_freq
        self.at_once = self.previous is None and perf_freq <= 0 and not self.lags()

    def mean(self, arrays: Sequence[Any]) -> list[Any]:
        """Return the means of new arrays, or of those of the call before; see :mod:`dl_comm.schedule`."""
        share = lagging_share(self.phases, self.calls)
        begun = time.perf_counter()
        flight = self._start(arrays, share)
        before, self.previous = self.previous or flight, flight if share > 0 else None
        try:
            result = _mixed(before, flight, share)
        except BaseException:  # what goes on is kept, as its arrays are written to; what has failed is no mean
            self.previous = flight if flight.flies else None
            raise
        self.note(time.perf_counter() - begun)
        return result

    def note(self, seconds: float) -> None:
        """Count a call that waited so long, and report as configured."""
        self.waited += seconds
        self._report()
        self.calls += 1

    def lags(self) -> bool:
        """Whether any call may return the mean of the one before."""
        return not (0 <= self.phases.max_steps <= self.phases.ksteps)

    def settle(self) -> None:
        """Wait for what is still under way: nothing may be when the ranks leave."""
        if self.previous is not None:
            self.previous.land()

    def _start(self, arrays: Sequence[Any], share: float) -> Flight:
        own = [fresh(array) for array in arrays]
        late = f" [{share:.0%} of the call before]" if share > 0 else ""  # ranks configured differently do not agree
        there = [array for array in own if device.is_on_gpu(array)]
        here = [array for array in own if not device.is_on_gpu(array)] if there else own
        buffers, labels = [bare(array) for array in here], [described(array) + late for array in here]
        ticket = None
        if share > 0 and (here or not there):
            ticket = _core.start(buffers, "mean", self.team, labels)
        elif here or not there:
            _core.allreduce(buffers, "mean", self.team, labels)
        return Flight(own, ticket, device.take_off(there, self.team, [described(array) + late for array in there]))

    def _report(self) -> None:
        if self.perf_freq > 0 and self.calls % self.perf_freq == 0 and speaks(self.verbosity):
            print(
                f"Rank {_core.rank()} has waited a total of {self.waited:f} seconds for communication to complete "
                f"so far on team {self.team} (calls = {self.calls})",
                flush=True,
            )


def _mixed(before: Flight, flight: Flight, share: float) -> list[Any]:
    """Return the means of ``flight``, of which ``share`` are to be those of the one ``before``."""
    if share == 1:
        return [fresh(array) for array in before.land()]
    if share == 0:
        if before is not flight:
            before.land()
        return flight.land()
    pairs = zip(before.land(), flight.land(), strict=True)
    return [_blend(fresh(own), old, share) for old, own in pairs]


def _blend(own: Any, old: Any, share: float) -> Any:
    if own.shape != old.shape:
        raise CommError(
            f"an array of shape {tuple(own.shape)} follows one of shape {tuple(old.shape)}",
            "pipelined calls on one team pass arrays of the same shapes in every step",
        )
    own[...] = (1 - share) * own + share * old
    return own


def speaks(verbosity: int) -> bool:
    """Whether this rank prints at this verbosity: 0 nobody, 1 rank 0, 2 every rank."""
    return verbosity > 1 or (verbosity == 1 and _core.rank() == 0)


teams: dict[int, Averaging] = {}
pipelines: list[Mapping[Any, Averaging]] = []  # those of faces, whose time waited is noted in ``teams``


def of(team: int) -> Averaging:
    """Return the state of a team, a blocking one at first."""
    return teams.get(team) or teams.setdefault(team, Averaging(team))


def report_at_end() -> None:
    """Settle all teams, and print the total that finalize prints."""
    for one in [*teams.values(), *(one for those in pipelines for one in those.values())]:
        one.settle()
    if teams and speaks(max(one.verbosity for one in teams.values())):
        total = sum(one.waited for one in teams.values())
        print(
            f"Rank {_core.rank()} waited a total of {total:f} seconds for communication to complete "
            "summed across all thread teams",
            flush=True,
        )
