"""The figures of a scaling study."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dlrun.bench.plot import pyplot
from dlrun.scale.predict import fit
from dlrun.scale.result import STRONG, WEAK, Row, Study, rows

COLOURS = {"weak": "#0072B2", "strong": "#D55E00"}
SHADES = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
TITLES = {
    "throughput": "Rate",
    "efficiency": "Efficiency",
    "time-to-accuracy": "Time to accuracy",
    "accuracy": "Accuracy over time",
    "loss": "Loss over time",
}


def throughput(panel: Any, study: Study, table: list[Row]) -> None:
    """Rate over ranks with its standard deviation, the ideal and the model."""
    for mode in study.modes():
        chosen = [row for row in table if row.mode == mode]
        counts, colour = [row.ranks for row in chosen], COLOURS[mode]
        panel.errorbar(
            counts,
            [row.mean for row in chosen],
            [row.deviation for row in chosen],
            fmt="o",
            color=colour,
            capsize=3,
            label=f"{mode}, measured",
        )
        if len(counts) > 2:  # two points fix it
            model = fit(mode, {row.ranks: row.mean for row in chosen}, study.cores)
            panel.plot(counts, [model.rate(n) for n in counts], "--", color=colour, linewidth=1, label=f"{mode}, model")
    first = table[0]
    counts = sorted({row.ranks for row in table})
    panel.plot(counts, [first.mean * n / first.ranks for n in counts], ":", color="black", linewidth=1, label="ideal")
    panel.set_ylabel(f"{study.unit}, all ranks")
    panel.set_ylim(bottom=0)


def efficiency(panel: Any, study: Study, table: list[Row]) -> None:
    """Share of the ideal rate over ranks."""
    for mode in study.modes():
        chosen = [row for row in table if row.mode == mode]
        shares = [100 * row.efficiency for row in chosen]
        panel.plot([row.ranks for row in chosen], shares, "o-", color=COLOURS[mode], label=mode)
    panel.axhline(100, color="black", linestyle=":", linewidth=1)
    panel.set_ylabel("efficiency, %")
    panel.set_ylim(0, max(110, *(105 * row.efficiency for row in table)))


def time_to_accuracy(panel: Any, study: Study, table: list[Row], target: float) -> None:
    """Seconds until the target accuracy over ranks."""
    for mode in study.modes():
        chosen = [row for row in table if row.mode == mode and row.to_target is not None]
        panel.plot([r.ranks for r in chosen], [r.to_target for r in chosen], "o-", color=COLOURS[mode], label=mode)
    panel.set_ylabel(f"seconds to accuracy {target:.4g}")
    panel.set_ylim(0, 1.1 * max(r.to_target for r in table if r.to_target is not None))


def curves(panel: Any, study: Study, of: str) -> None:
    """Accuracy or loss over seconds, a line per number of ranks, dashed for strong runs; the first repeat of each."""
    counts = sorted({run.ranks for run in study.runs})
    for mode in study.modes():
        for ranks in study.counts(mode):
            if (mode, ranks) == (STRONG, 1) and study.counts(WEAK)[:1] == [1]:
                continue  # the same run as the weak one
            points = [p for p in study.of(mode, ranks)[0].reading.points if getattr(p, of) is not None]
            style = "-" if mode == "weak" else "--"
            colour, label = SHADES[counts.index(ranks) % len(SHADES)], f"{ranks} rank{'s' * (ranks > 1)}, {mode}"
            panel.plot(
                [p.seconds for p in points],
                [getattr(p, of) for p in points],
                style,
                marker=".",
                markersize=4,
                color=colour,
                label=label,
            )
    panel.set_xlabel("seconds after the first line of the script")
    panel.set_ylabel(of)
    if of == "loss":
        panel.set_yscale("log", subs=[2, 5])
        for axis in (panel.yaxis.set_major_formatter, panel.yaxis.set_minor_formatter):
            axis(lambda value, _: f"{value:g}")


def figures(study: Study, target: float | None) -> dict[str, Any]:
    """Name -> matplotlib figure; those whose numbers the script did not print are left out."""
    plt, table = pyplot(), rows(study, target)
    points = [p for run in study.runs for p in run.reading.points]
    wanted: dict[str, Callable[[Any], None]] = {
        "throughput": lambda panel: throughput(panel, study, table),
        "efficiency": lambda panel: efficiency(panel, study, table),
    }
    if target is not None and any(row.to_target is not None for row in table):
        wanted["time-to-accuracy"] = lambda panel: time_to_accuracy(panel, study, table, target)
    if points:
        wanted["accuracy"] = lambda panel: curves(panel, study, "accuracy")
    if any(p.loss is not None for p in points):
        wanted["loss"] = lambda panel: curves(panel, study, "loss")
    made = {}
    for name, draw in wanted.items():
        figure, panel = plt.subplots(figsize=(5.6, 3.6), layout="constrained")
        draw(panel)
        panel.set_title(TITLES[name], fontsize=11)
        if name not in ("accuracy", "loss"):
            counts = sorted({row.ranks for row in table})
            panel.set_xscale("log", base=2)
            panel.set_xticks(counts, [str(n) for n in counts])
            panel.minorticks_off()
            panel.set_xlabel("ranks")
        panel.grid(alpha=0.3, linewidth=0.5)
        panel.spines[["top", "right"]].set_visible(False)
        panel.legend(frameon=False, fontsize=8)
        made[name] = figure
        plt.close(figure)
    return made


def save_all(made: dict[str, Any], folder: Path) -> list[Path]:
    """Each figure as PDF and PNG in the folder."""
    written = []
    for name, figure in made.items():
        for ending in ("pdf", "png"):
            path = folder / f"{name}.{ending}"
            figure.savefig(path, dpi=150)
            written.append(path)
    return written


def as_svg(figure: Any) -> str:
    """The figure as an <svg> element, for a page."""
    text = io.StringIO()
    figure.savefig(text, format="svg", metadata={"Date": None, "Creator": None})
    svg = text.getvalue()
    return svg[svg.index("<svg") :]
