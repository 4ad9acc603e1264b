"""This run beside an earlier one."""

from __future__ import annotations

from dlrun.bench.result import LIMIT, Bench, Cell, percentile
from dlrun.bench.table import aligned, seconds_as_text, significant
from dlrun.errors import DlrunError


def change(old: Cell, new: Cell) -> str:
    """'faster' or 'slower' when the middle halves of the samples do not even touch, else 'same'."""
    if percentile(new.seconds, 75) < percentile(old.seconds, 25):
        return "faster"
    if percentile(new.seconds, 25) > percentile(old.seconds, 75):
        return "slower"
    return "same"


def same_type(old: Bench, dtype: str) -> None:
    """Raise where the earlier run measured another element type."""
    if old.dtype != dtype:
        raise DlrunError(f"the earlier run measured {old.dtype}, this one {dtype}", "compare runs of one type")


def comparison(old: Bench, new: Bench) -> str:
    """A table of the cells that both runs hold.

    The clock of a shared machine drifts between runs, so each median is also given as a multiple of the memcpy that
    was timed beside it: the two multiples are the fairer pair.
    """
    same_type(old, new.dtype)
    before = {(c.case, c.ranks, c.way): c for c in old.cells}
    rows = []
    for cell in new.cells:
        past = before.get((cell.case, cell.ranks, cell.way))
        if past is None:
            continue
        multiples = []
        for bench, one in ((old, past), (new, cell)):
            limit = bench.limit(one)
            multiples.append(f"{significant(one.median / limit.median)} x" if limit and one.way != LIMIT else "")
        ratio = f"{significant(past.median / cell.median)} x"
        times = (seconds_as_text(past.median), seconds_as_text(cell.median))
        rows.append((str(cell.ranks), cell.case, cell.way, *times, ratio, *multiples, change(past, cell)))
    if not rows:
        raise DlrunError("the two runs have no case in common", "give both the same -n, --sizes and --models")
    head = ("ranks", "case", "way", "before", "now", "before/now", "memcpy before", "memcpy now", "verdict")
    differs = [k for k in ("cpu", "mpi", "cores", "path") if old.machine.get(k) != new.machine.get(k)]
    note = "".join(f"\nnote: {k} was {old.machine.get(k)}, is {new.machine.get(k)}" for k in differs)
    return aligned(head, rows, left=3) + note
