"""The table of a bench as it grows: the rows of a case appear as soon as all its ways have been timed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from dlrun.bench.cases import WIDTHS, Case
from dlrun.bench.result import HEAD, Bench, Cell, cell_of, row
from dlrun.bench.table import Columns

_TIME, _RATIO = len("99.9 ms"), len("1.05 x") + 2


class LiveTable:
    """Takes what the ranks report, and hands the lines of a table to `show`, one or several at a time."""

    def __init__(self, cases: Sequence[Case], ranks: int, dtype: str, by: str, show: Callable[[str], None]) -> None:
        self.cases, self.ranks, self.dtype, self.by, self.show = {c.name: c for c in cases}, ranks, dtype, by, show
        self.columns: Columns | None = None
        self.cells: list[Cell] = []

    def take(self, event: dict[str, Any]) -> None:
        """Take one event of the program on the ranks."""
        if event["event"] == "start" and event["ways"]:
            least = (max(map(len, self.cases)), max(map(len, event["ways"])), *(_TIME,) * 3, 9, _RATIO, _RATIO, 0)
            self.columns = Columns(HEAD, [max(len(h), w) for h, w in zip(HEAD, least, strict=True)], left=2)
            self.show(f"{self.ranks} ranks, {self.dtype}, ratios by {self.by}\n{self.columns.head}")
        elif event["event"] == "case":
            self.case_ends()
        elif event["event"] == "cell":
            self.cells.append(cell_of(event, self.ranks, self.cases, WIDTHS[self.dtype]))

    def case_ends(self) -> None:
        """Show the rows of the case that is complete."""
        bench = Bench(self.dtype, {}, {}, tuple(self.cells))
        for index, cell in enumerate(self.cells):
            case, *rest = row(bench, cell, self.by)
            assert self.columns
            self.show(self.columns.line(("" if index else case, *rest)))
        self.cells.clear()
