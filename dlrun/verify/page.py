"""A verification as one HTML page: the checks with the lines they name, and where the runs diverge, step by step."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from dlrun.render import render
from dlrun.verify.checks import data, ranks, repeat, whole
from dlrun.verify.checks.same import ALONE
from dlrun.verify.filing import facts, losses
from dlrun.verify.job import Job
from dlrun.verify.trace import Run, Step, Trace
from dlrun.verify.verdict import Check, Verdict, share_of_move

_AROUND = 2  # lines of code shown above and below the one that a check names
_NEAR = 2e-3  # a share of the movement that is called rounding
_FIRST = 4  # sample numbers shown of a batch
# Serial runs with longer epochs take the place of those that ended in an error: the last ones here.
LONGER = {"later": "serial", "later-again": "again", "uncut": "serial", "uncut-again": "again"}


@dataclass(frozen=True)
class Cell:
    """One field of a grid: its text, what it is (``same`` bits, ``near``, ``far``, or neither) and how red, 0 to 1."""

    text: str
    kind: str = ""
    depth: float = 0.0


@dataclass(frozen=True)
class Row:
    """A name and its fields, one for each optimizer step."""

    name: str
    cells: tuple[Cell, ...]


@dataclass(frozen=True)
class Grid:
    """Rows over optimizer steps; ``parts`` are the same in detail, shown unfolded where ``open``."""

    title: str
    head: tuple[str, ...]
    rows: tuple[Row, ...]
    note: str = ""
    parts: tuple[Grid, ...] = ()
    open: bool = False


@dataclass(frozen=True)
class Pair:
    """Ranks that should hold what ``one`` holds; ``checks``: the checks that say whether they do."""

    name: str
    one: Trace
    others: Sequence[Trace]
    checks: tuple[str, ...]

    def shares(self) -> Iterator[tuple[Step, list[float]]]:
        """Yield each step, and for each parameter how far apart it is, as a share of how far it has moved."""
        start = {event["optimizer"]: event["params"] for event in self.one.all("optimizer")}
        for step, *others in zip(self.one.steps, *(trace.steps for trace in self.others), strict=False):
            columns = zip(step.params, start[step.optimizer], *(other.params for other in others), strict=False)
            yield step, [max(_share(p, begun, q) for q in same) for p, begun, *same in columns]


def page(job: Job, verdict: Verdict, runs: Mapping[str, Run]) -> str:
    """Return the page; it needs nothing from outside. ``runs``: those that were made, by their names."""
    runs = {**runs, **{name: runs[longer] for longer, name in LONGER.items() if longer in runs}}
    told = {check.where: check for check in reversed(verdict.checks)}  # the first check that names a line shows it
    checks = [_card(check, job, told[check.where] is check) for check in verdict.checks]
    judged = any(check.name == whole.NAME and check.status != "n/a" for check in verdict.checks)
    if judged and "whole" not in runs and "sharded" in runs:  # which keeps the global batch itself
        runs = {**runs, "whole": runs["sharded"]}
    pairs = list(_pairs(job, runs))
    grids = [_apart(pairs, verdict), _rates(runs), _reads(runs)] if pairs else []
    words = f", with {' '.join(job.args)}" if job.args else ""
    lead = f"Up to {job.steps} optimizer steps of {job.serial} and {job.port} on 1 and {job.ranks} ranks{words}."
    return render(
        "verify/report.html.j2",
        port=job.port.name,
        proved=verdict.proved,
        word=verdict.word,
        facts=facts(job),
        figure=losses(runs),
        lead=lead,
        checks=checks,
        grids=[grid for grid in grids if grid and grid.rows],
    )


def _card(check: Check, job: Job, shows: bool) -> dict[str, Any]:
    """Return a check, and, where it ``shows`` them, the lines around the one that it names."""
    kind = "skipped" if check.status == "n/a" else check.status
    return {
        "kind": kind,
        "name": check.name,
        "finding": check.finding,
        "todo": check.todo,
        "where": check.where,
        "lines": _lines(check.where, job) if shows else [],
    }


def _lines(where: str, job: Job) -> list[dict[str, Any]]:
    """Return the lines of code around a place such as ``train.py:12``; none where it is in no file of the port's."""
    name, _, number = where.rpartition(":")
    if not (name and number.isdigit()):
        return []
    beside = (script.parent / way / name for script in (job.port, job.serial) for way in (".", "*", "*/*"))
    found = [file for way in beside for file in sorted(Path(way.anchor or ".").glob(str(way.relative_to(way.anchor))))]
    if not found:
        return []
    text, here = found[0].read_text(encoding="utf-8", errors="replace").splitlines(), int(number)
    return [
        {"number": i, "text": text[i - 1], "here": i == here}
        for i in range(max(1, here - _AROUND), min(len(text), here + _AROUND) + 1)
    ]


def _pairs(job: Job, runs: Mapping[str, Run]) -> Iterator[Pair]:
    """Yield what was compared with what, in the order of the checks."""
    serial = runs.get("serial")
    if serial is None:
        return
    repeated, shared = f"{job.ranks} ranks that repeat the serial run", f"{job.ranks} ranks that share the data"
    still = runs.get("quiet", serial)
    for name, one, run, checks in (
        ("the serial script, once more", serial, runs.get("again"), (repeat.NAME,)),
        ("the port on 1 rank", serial, runs.get("identity"), ("identity",)),
        (repeated, serial, runs.get(ALONE, runs.get("replicate")), ("replicate",)),
        (f"{job.ranks} ranks with the serial global batch", still, runs.get("sums", runs.get("whole")), (whole.NAME,)),
    ):
        if run is not None:
            yield Pair(name, one.root, run.traces, checks)
    if "sharded" in runs and len(runs["sharded"].traces) > 1:
        sharded = runs["sharded"]
        yield Pair(f"{shared}, from rank 0 to the others", sharded.root, sharded.traces[1:], (ranks.EQUAL,))


def _apart(pairs: list[Pair], verdict: Verdict) -> Grid:
    """Return how far each run's parameters are from those that they should be."""
    failed = {check.name for check in verdict.checks if check.status == "failed" and check.parameter}
    rows, parts = [], []
    for pair in pairs:
        steps = list(pair.shares())
        rows.append(Row(pair.name, tuple(_cell(max(shares, default=0.0)) for _, shares in steps)))
        if any(share for _, shares in steps for share in shares):
            parts.append(_parameters(pair, steps, bool(failed & set(pair.checks))))
    note = (
        "The parameter that is furthest off after each optimizer step, as a share of how far it has moved since the "
        "start. 0: the same bits; up to 0.2 %: rounding."
    )
    return Grid("How far apart", _head(rows), tuple(rows), note, tuple(parts))


def _parameters(pair: Pair, steps: list[tuple[Step, list[float]]], unfolded: bool) -> Grid:
    """Return a pair's row in detail: one row for each parameter of each optimizer."""
    several = len(pair.one.names) > 1
    rows = []
    for optimizer, names in pair.one.names.items():
        for i, name in enumerate(names):
            cells = [
                _cell(shares[i]) if step.optimizer == optimizer and i < len(shares) else Cell("")
                for step, shares in steps
            ]
            rows.append(Row(f"optimizer {optimizer}: {name}" if several else name, tuple(cells)))
    return Grid(f"{pair.name}: each parameter", _head(rows), tuple(rows), open=unfolded)


def _rates(runs: Mapping[str, Run]) -> Grid | None:
    """Return the learning rates of the serial script and of the port."""
    if "sharded" not in runs:
        return None
    rows = [
        Row(name, tuple(Cell(", ".join(f"{rate:.6g}" for rate in step.lr)) for step in runs[run].root.steps))
        for name, run in (("the serial script", "serial"), ("the port", "sharded"))
    ]
    return Grid("Learning rates", _head(rows), tuple(rows), "Of each step's optimizer, all its parameter groups.")


def _reads(runs: Mapping[str, Run]) -> Grid | None:
    """Return which samples each rank takes for each step, where loaders give them and samples have numbers."""
    serial, sharded = runs.get("serial"), runs.get("sharded")
    if serial is None or sharded is None or data.cut_later(sharded):
        return None
    epochs = [data.training(trace) for trace in (serial.root, *sharded.traces)]
    sizes = {epoch.size for each in epochs for epoch in each}
    if not all(epochs) or len(sizes) > 1 or any(epoch.samples is None for each in epochs for epoch in each):
        return None  # numbers of other data sets are other samples
    read = [_batches(trace) for trace in sharded.traces]
    rows = [Row("the serial script", tuple(_batch(ids, set()) for _, ids in _batches(serial.root)))]
    for rank, mine in enumerate(read):
        others = [batch for other, batches in enumerate(read) if other != rank for batch in batches]
        taken = {epoch: set(chain.from_iterable(ids for at, ids in others if at == epoch)) for epoch, _ in mine}
        rows.append(Row(f"rank {rank}", tuple(_batch(ids, taken[epoch]) for epoch, ids in mine)))
    note = "How many samples each step reads, and the numbers of the first; red: another rank reads them, too."
    return Grid("Who reads what", _head(rows), tuple(rows), note)


def _batches(trace: Trace) -> list[tuple[int, list[int]]]:
    """Return, for each step, the epoch and the sample numbers of what was read for it."""
    epochs = {event["epoch"] for event in trace.all("trains")}
    read = [[e for e in step.before if e.kind == "batch" and e["epoch"] in epochs] for step in trace.steps]
    return [(events[-1]["epoch"] if events else 0, [i for e in events for i in e["indices"] or ()]) for events in read]


def _batch(ids: list[int], taken: set[int]) -> Cell:
    said = " ".join(map(str, ids[:_FIRST])) + (" …" if len(ids) > _FIRST else "")
    twice = sum(i in taken for i in ids) / (len(ids) or 1)
    return Cell(f"{len(ids)}: {said}" if ids else "-", "far" if twice else "", 0.2 + 0.6 * twice if twice else 0.0)


def _head(rows: list[Row]) -> tuple[str, ...]:
    return tuple(f"step {i}" for i in range(1, max((len(row.cells) for row in rows), default=0) + 1))


def _share(serial: dict[str, Any], start: dict[str, Any], other: dict[str, Any]) -> float:
    """Return 0 of the same bits, and a little more than 0 where none of the elements that were kept differs."""
    return 0.0 if serial["hash"] == other["hash"] else max(share_of_move(serial, other, start), 1e-9)


def _cell(share: float) -> Cell:
    if share == 0:
        return Cell("0", "same")
    text = f"{share:.0e}" if share < _NEAR else f"{share:.1%}" if share < 0.1 else f"{share:.0%}"
    text = "∞" if math.isinf(share) else text
    return Cell(text, "near" if share < _NEAR else "far", min(0.8, 0.25 + 0.2 * max(0.0, 3 + math.log10(share))))
