"""The picture: time over size for every way, and bus bandwidth below it; gradient sets as bars."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dlrun.bench.cases import MODELS, bytes_as_text
from dlrun.bench.result import LIMIT, Bench
from dlrun.errors import DlrunError

# Colours that stay apart for the colour-blind (Okabe and Ito), one per way.
COLOURS = {
    "dl_comm": "#0072B2",
    "dl_comm arena": "#56B4E9",
    "MPI": "#D55E00",
    "MPI packed": "#E69F00",
    "gloo": "#009E73",
    "horovod": "#CC79A7",
    "oneCCL": "#F0E442",
    LIMIT: "#000000",
}


def pyplot() -> Any:
    """matplotlib.pyplot, drawing into files; a DlrunError that says what to install where it is missing."""
    try:
        import matplotlib
    except ImportError:
        raise DlrunError("no plot: matplotlib is not installed", "pip install 'dlrun[plot]'") from None
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    return plt


def save(figure: Any, path: Path) -> list[Path]:
    """Write the figure as SVG and as PNG beside it; the paths written."""
    written = [path.with_suffix(".svg"), path.with_suffix(".png")]
    for one in written:
        figure.savefig(one, dpi=150, bbox_inches="tight")
    return written


def draw(bench: Bench, path: Path) -> list[Path]:
    """Write `path` as SVG and PNG: a column of panels for each number of ranks."""
    plt = pyplot()
    counts = list(dict.fromkeys(c.ranks for c in bench.cells))
    sets = [m for m in MODELS if any(c.case == m for c in bench.cells)]
    arrays = any(c.case not in MODELS for c in bench.cells)
    kinds = [*(["time", "rate"] if arrays else []), *(["sets"] if sets else [])]
    size = (7.5 * len(counts), 3.6 * len(kinds))
    figure, panels = plt.subplots(len(kinds), len(counts), figsize=size, squeeze=False, layout="constrained")
    for column, ranks in enumerate(counts):
        for line, kind in enumerate(kinds):
            panel = panels[line][column]
            if kind == "sets":
                _sets(panel, bench, ranks, sets)
            else:
                _lines(panel, bench, ranks, kind)
            if line == 0:
                panel.set_title(f"allreduce, {ranks} ranks, {bench.dtype}")
    shown = [way for way in COLOURS if any(c.way == way for c in bench.cells)]
    lines = [plt.Line2D([], [], color=COLOURS[w], linestyle=_stroke(w), label=w, linewidth=2) for w in shown]
    figure.legend(handles=lines, loc="outside lower center", ncols=len(lines), frameon=False)
    written = save(figure, path)
    plt.close(figure)
    return written


def _stroke(way: str) -> str:
    return ":" if way == LIMIT else "-"


def _ways(bench: Bench, ranks: int) -> list[str]:
    return [w for w in COLOURS if any(c.way == w and c.ranks == ranks for c in bench.cells)]


def _lines(panel: Any, bench: Bench, ranks: int, kind: str) -> None:
    """Median time in microseconds with a band up to the 95th percentile, or bus bandwidth, over the size in bytes."""
    for way in _ways(bench, ranks):
        cells = [c for c in bench.cells if c.way == way and c.ranks == ranks and c.case not in MODELS]
        if not cells:
            continue
        sizes = [c.nbytes for c in cells]
        style = {"color": COLOURS[way], "linestyle": _stroke(way), "linewidth": 1.6}
        if kind == "time":
            panel.plot(sizes, [c.median * 1e6 for c in cells], **style)
            low, high = [c.median * 1e6 for c in cells], [c.p95 * 1e6 for c in cells]
            panel.fill_between(sizes, low, high, color=COLOURS[way], alpha=0.12, linewidth=0)
        else:
            panel.plot(sizes, [c.bus_bandwidth / 1e9 for c in cells], **style)
    panel.set_xscale("log", base=2)
    panel.set_yscale("log")
    panel.set_ylabel("median to p95, us" if kind == "time" else "bus bandwidth, GB/s")
    panel.xaxis.set_major_formatter(lambda value, _: bytes_as_text(value))
    panel.grid(alpha=0.3, linewidth=0.5)
    panel.spines[["top", "right"]].set_visible(False)


def _sets(panel: Any, bench: Bench, ranks: int, sets: list[str]) -> None:
    """One group of bars per gradient set: times as multiples of the memcpy of the same bytes."""
    ways = [w for w in _ways(bench, ranks) if w != LIMIT]
    for place, model in enumerate(sets):
        for index, way in enumerate(ways):
            cell = next((c for c in bench.cells if (c.case, c.ranks, c.way) == (model, ranks, way)), None)
            limit = cell and bench.limit(cell)
            if cell is None or limit is None:
                continue
            at = place + (index - (len(ways) - 1) / 2) * 0.8 / len(ways)
            panel.bar(at, cell.median / limit.median, 0.75 / len(ways), color=COLOURS[way])
    panel.axhline(1, color="black", linestyle=":", linewidth=1)
    panel.set_yscale("log")
    panel.set_xticks(range(len(sets)), sets)
    panel.set_ylabel("time / memcpy of the same bytes")
    panel.grid(axis="y", alpha=0.3, linewidth=0.5)
    panel.spines[["top", "right"]].set_visible(False)
