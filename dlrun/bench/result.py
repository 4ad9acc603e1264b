"""What a bench found: one value, as JSON and as a table."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from dlrun.bench.cases import Case
from dlrun.bench.table import aligned, seconds_as_text, significant
from dlrun.errors import DlrunError

FORMAT = "dlrun bench 1"
LIMIT = "memcpy"
LINK = "link"  # the limit between hosts


def percentile(values: Sequence[float], percent: float) -> float:
    """The value below which `percent` of the values lie, linear between neighbours."""
    ordered = sorted(values)
    place = (len(ordered) - 1) * percent / 100
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


@dataclass(frozen=True)
class Cell:
    """One way of reducing one case on so many ranks: its samples in seconds, and how many elements came out wrong."""

    case: str
    ranks: int
    nbytes: int
    way: str
    seconds: tuple[float, ...]
    wrong: int

    @property
    def median(self) -> float:
        """Seconds."""
        return statistics.median(self.seconds)

    @property
    def best(self) -> float:
        """Seconds of the fastest sample: on a busy machine the one that was least disturbed."""
        return min(self.seconds)

    def time(self, by: str) -> float:
        """Seconds by 'median' or by 'best'."""
        return self.best if by == "best" else self.median

    @property
    def p95(self) -> float:
        """Seconds; 95 % of the samples were no slower."""
        return percentile(self.seconds, 95)

    @property
    def bus_bandwidth(self) -> float:
        """Bytes per second that each rank must move in and out at least: 2 (n-1)/n of the data (as nccl-tests has it).

        For the memcpy, which moves all of the data once, it is the plain rate.
        """
        share = 1.0 if self.way == LIMIT else 2 * (self.ranks - 1) / self.ranks
        return share * self.nbytes / self.median

    @property
    def is_peer(self) -> bool:
        """Whether it is neither dl_comm nor the limit."""
        return not self.way.startswith("dl_comm") and self.way not in (LIMIT, LINK)


@dataclass(frozen=True)
class Bench:
    """All cells of one command, with what was measured on which machine."""

    dtype: str
    machine: dict[str, Any]
    absent: dict[str, str] = field(default_factory=dict)
    cells: tuple[Cell, ...] = ()

    def beside(self, cell: Cell) -> list[Cell]:
        """The cells of the same case and ranks, itself among them: they were timed alternately."""
        return [c for c in self.cells if (c.case, c.ranks) == (cell.case, cell.ranks)]

    def best_peer(self, cell: Cell, by: str = "median") -> Cell | None:
        """The fastest peer of the same case and ranks; None without one."""
        return min((c for c in self.beside(cell) if c.is_peer), key=lambda c: c.time(by), default=None)

    def limit(self, cell: Cell) -> Cell | None:
        """The link's limit of the same case and ranks, else the memcpy; None where neither was measured."""
        limits = {c.way: c for c in self.beside(cell)}
        return limits.get(LINK) or limits.get(LIMIT)

    def wrong(self) -> list[Cell]:
        """The cells whose numbers were not the exact answer."""
        return [c for c in self.cells if c.wrong]


def cell_of(event: dict[str, Any], ranks: int, cases: dict[str, Case], width: int) -> Cell:
    """The cell that the program on the ranks reported."""
    nbytes = cases[event["case"]].elements * width
    return Cell(event["case"], ranks, nbytes, event["way"], tuple(event["seconds"]), event["wrong"])


def to_json(bench: Bench) -> dict[str, Any]:
    """The whole value, samples included, with its medians (seconds) and bandwidths (bytes per second)."""
    cells = [{**asdict(c), "median": c.median, "p95": c.p95, "bus_bandwidth": c.bus_bandwidth} for c in bench.cells]
    return {"format": FORMAT, "dtype": bench.dtype, "machine": bench.machine, "absent": bench.absent, "cells": cells}


def read(path: Path) -> Bench:
    """Read the file that `dlrun bench --out` wrote; raises DlrunError where it is none."""
    try:
        value = json.loads(path.read_text())
    except ValueError:
        value = None
    return from_json(value, str(path))


def from_json(value: Any, source: str) -> Bench:
    """Read what `to_json` wrote; `source` names the file in the error."""
    if not isinstance(value, dict) or value.get("format") != FORMAT:
        raise DlrunError(f"{source} holds no results of dlrun bench", f"its format is not '{FORMAT}'")
    names = ("case", "ranks", "nbytes", "way", "wrong")
    cells = tuple(Cell(**{n: c[n] for n in names}, seconds=tuple(c["seconds"])) for c in value["cells"])
    return Bench(value["dtype"], value["machine"], value["absent"], cells)


HEAD = ("case", "way", "best", "median", "p95", "bus GB/s", "vs best peer", "vs limit", "numbers")


def row(bench: Bench, cell: Cell, by: str) -> tuple[str, ...]:
    """One line of the table. Above 1 x the best peer is faster than it; 1 x is the limit, above is slower."""
    peer, limit = bench.best_peer(cell, by), bench.limit(cell)
    bound = cell.way in (LIMIT, LINK)
    to_peer = "" if peer is None or bound else f"{significant(peer.time(by) / cell.time(by))} x"
    to_limit = "" if limit is None else f"{significant(cell.time(by) / limit.time(by))} x"
    numbers = "" if bound else "exact" if not cell.wrong else f"{cell.wrong} WRONG"
    times = (seconds_as_text(cell.best), seconds_as_text(cell.median), seconds_as_text(cell.p95))
    return (cell.case, cell.way, *times, significant(cell.bus_bandwidth / 1e9), to_peer, to_limit, numbers)


def summary(bench: Bench, by: str = "median") -> str:
    """One line per case: dl_comm against the best peer and against the limit."""
    rows = []
    firsts = {(c.ranks, c.case): c for c in reversed(bench.cells)}
    for first in reversed(firsts.values()):
        peer, limit = bench.best_peer(first, by), bench.limit(first)
        line = [f"{first.ranks}", first.case, f"{seconds_as_text(peer.time(by))} {peer.way}" if peer else ""]
        for way in ("dl_comm", "dl_comm arena"):
            ours = next((c for c in bench.beside(first) if c.way == way), None)
            line.append(seconds_as_text(ours.time(by)) if ours else "")
            line.append(f"{significant(peer.time(by) / ours.time(by))} x" if ours and peer else "")
            line.append(f"{significant(ours.time(by) / limit.time(by))} x" if ours and limit else "")
        rows.append(line)
    head = ("ranks", "case", "best peer", "private", "faster", "limit", "arena", "faster", "limit")
    return aligned(head, rows, left=3)
