"""A scaling study for eyes: tables of text, and one HTML page that opens offline."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dlrun.bench.table import aligned, seconds_as_text, significant
from dlrun.errors import DlrunError
from dlrun.render import render
from dlrun.scale.predict import errors, fit
from dlrun.scale.result import Row, Study, rows


@dataclass(frozen=True)
class Table:
    """A title, a head, rows of text, and a sentence on how to read it."""

    title: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""

    def __str__(self) -> str:
        return f"{self.title}\n{aligned(self.head, self.rows)}" + (f"\n{self.note}" if self.note else "")


def _or_dash(value: float | None, pattern: str) -> str:
    return "-" if value is None else pattern.format(value)


def measured(study: Study, target: float | None) -> Table:
    """Rates and what follows from them."""
    lines = tuple(_line(row) for row in rows(study, target))
    to = "time to accuracy" if target is None else f"to {target:.4g}"
    head = ("mode", "ranks", study.unit, "deviation", "values", "speed-up", "efficiency", "best accuracy", to, "job")
    most = max((run.ranks for run in study.runs), default=0)
    note = f"every rank computed with OMP_NUM_THREADS={study.threads}"
    if any(len(study.counts(mode)) == 2 for mode in study.modes()):
        note += "; a model of more ranks takes a third number of them"
    crowd = f"; {most} ranks shared {study.cores} cores: their efficiency says nothing of more nodes"
    told = [i for i, name in enumerate(head) if name in head[:3] or any(line[i] != "-" for line in lines)]
    return Table(
        "Measured",
        tuple(head[i] for i in told),
        tuple(tuple(line[i] for i in told) for line in lines),
        note + (crowd if most > study.cores else ""),
    )


def _line(row: Row) -> tuple[str, ...]:
    return (
        row.mode,
        str(row.ranks),
        significant(row.mean),
        significant(row.deviation),
        str(row.samples),
        f"{row.speedup:.2f} x",
        f"{100 * row.efficiency:.0f} %",
        _or_dash(row.accuracy, "{:.4f}"),
        _or_dash(row.to_target, "{:.1f} s"),
        f"{row.seconds:.1f} s",
    )


def predicted(study: Study, ahead: int = 4) -> list[Table]:
    """Per mode with three numbers of ranks or more: the model on the measured points, and `ahead` doublings beyond.

    Two points fix the model, whatever they are.
    """
    tables = []
    for mode in study.modes():
        rates = {row.ranks: row.mean for row in rows(study, None) if row.mode == mode}
        if len(rates) < 3:
            continue
        model, missed = fit(mode, rates, study.cores), errors(mode, rates, study.cores)
        lines = [
            (
                str(n),
                significant(rate),
                significant(model.rate(n)),
                f"{100 * (model.rate(n) / rate - 1):+.1f} %",
                f"{100 * missed[n]:+.1f} %" if n in missed else "-",
            )
            for n, rate in rates.items()
        ]
        for n in (max(rates) * 2**i for i in range(1, ahead + 1)):
            lines.append((str(n), "-", significant(model.rate(n, shared=False)), "-", "-"))
        note = (
            f"per {study.unit.removesuffix('s/s')} and rank: {seconds_as_text(model.compute)} of computing, "
            f"{seconds_as_text(model.bandwidth)} of moving bytes, {seconds_as_text(model.latency)} for each doubling "
            "of the ranks; beyond the measured ones, every rank has a core of its own and the network is as fast as "
            "between those"
        )
        head = ("ranks", "measured", "model", "off", "off when left out of the fit")
        tables.append(Table(f"Model, {mode}", head, tuple(lines), note))
    return tables


def page(study: Study, target: float | None, svgs: dict[str, str], command: str) -> str:
    """The HTML page: figures inside, nothing fetched."""
    tables = [measured(study, target), *predicted(study)]
    return render("scale/report.html", script=study.script, command=command, tables=tables, svgs=svgs)


def write(study: Study, target: float | None, folder: Path, command: str) -> tuple[list[Path], str]:
    """Write the figures and the page into the folder; (the paths, what is missing in a line)."""
    from dlrun.scale.figures import as_svg, figures, save_all

    folder.mkdir(parents=True, exist_ok=True)
    made: dict[str, Any] = {}
    missing = ""
    try:
        made = figures(study, target)
    except DlrunError as error:
        missing = f"{error.message}: {error.hint}"
    html = folder / "report.html"
    pictures = {name: as_svg(figure) for name, figure in made.items()}
    html.write_text(page(study, target, pictures, command), encoding="utf-8", errors="replace")
    return [html, *save_all(made, folder)], missing
