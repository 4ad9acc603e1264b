"""The runs of one scaling study, and what follows from them."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from dlrun.scale.reading import Reading

WEAK, STRONG = "weak", "strong"
FORMAT = "dlrun scale 1"


@dataclass(frozen=True)
class Run:
    """One run of the script: weak (its own batch on every rank) or strong (a share of it), on so many ranks.

    `seconds` is the wall time of the whole job, start and end included; `files` the folder of what it wrote, or "".
    """

    mode: str
    ranks: int
    repeat: int
    seconds: float
    reading: Reading
    files: str = ""


@dataclass(frozen=True)
class Row:
    """One number of ranks in one mode: the rate over all ranks, and what it means."""

    mode: str
    ranks: int
    mean: float
    deviation: float
    samples: int
    speedup: float
    efficiency: float
    accuracy: float | None
    to_target: float | None
    seconds: float


@dataclass(frozen=True)
class Study:
    """All runs of a script on a machine: `cores` of all its nodes together, `threads` that every rank computed with."""

    script: str
    cores: int
    threads: str
    runs: tuple[Run, ...]

    @property
    def unit(self) -> str:
        """What the rates count."""
        return self.runs[0].reading.unit if self.runs else "samples/s"

    def of(self, mode: str, ranks: int) -> list[Run]:
        """The runs of a mode on so many ranks."""
        return [r for r in self.runs if (r.mode, r.ranks) == (mode, ranks)]

    def counts(self, mode: str) -> list[int]:
        """The numbers of ranks that have runs in a mode, rising."""
        return sorted({r.ranks for r in self.runs if r.mode == mode})

    def modes(self) -> list[str]:
        """The modes that have runs."""
        return [mode for mode in (WEAK, STRONG) if self.counts(mode)]

    def rates(self, mode: str, ranks: int) -> list[float]:
        """Every settled rate of every repeat."""
        return [rate for run in self.of(mode, ranks) for rate in run.reading.settled_rates]


def best_accuracy(runs: Sequence[Run]) -> float | None:
    """The highest accuracy of these runs."""
    return max((p.accuracy for run in runs for p in run.reading.points), default=None)


def common_target(study: Study) -> float | None:
    """The highest accuracy that every run reached: the fairest target where none was named."""
    bests = [best_accuracy([run]) for run in study.runs]
    found = [best for best in bests if best is not None]
    return min(found) if found and len(found) == len(bests) else None


def time_to(runs: Sequence[Run], target: float | None) -> float | None:
    """Median seconds until the accuracy was at least `target`; None where a run never got there."""
    if target is None or not runs:
        return None
    times = [next((p.seconds for p in run.reading.points if p.accuracy >= target), None) for run in runs]
    known = [t for t in times if t is not None]
    return statistics.median(known) if len(known) == len(times) else None


def rows(study: Study, target: float | None) -> list[Row]:
    """One row per mode and number of ranks. Speed-up and efficiency are against the fewest ranks of that mode.

    Efficiency is the rate over (ranks / fewest ranks) times the rate on the fewest ranks: 1 is ideal in both modes.
    """
    found = []
    for mode in study.modes():
        counts = study.counts(mode)
        base = statistics.fmean(study.rates(mode, counts[0]))
        for ranks in counts:
            rates, runs = study.rates(mode, ranks), study.of(mode, ranks)
            mean = statistics.fmean(rates)
            deviation = statistics.stdev(rates) if len(rates) > 1 else 0.0
            efficiency = mean / base * counts[0] / ranks
            seconds = statistics.median(run.seconds for run in runs)
            found.append(
                Row(
                    mode,
                    ranks,
                    mean,
                    deviation,
                    len(rates),
                    mean / base,
                    efficiency,
                    best_accuracy(runs),
                    time_to(runs, target),
                    seconds,
                )
            )
    return found


def to_json(study: Study, target: float | None) -> dict[str, Any]:
    """Runs with every reading, and the rows."""
    table = [asdict(row) for row in rows(study, target)]
    return {"format": FORMAT, **asdict(study), "target": target, "rows": table}
