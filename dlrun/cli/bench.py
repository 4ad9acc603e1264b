"""``dlrun bench``."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dlrun.cli.bench_start import start
from dlrun.cli.paths import NewFile
from dlrun.cli.values import counts, finite

if TYPE_CHECKING:
    from dlrun.bench.cases import Case
    from dlrun.bench.lab import Slow
    from dlrun.bench.result import Bench
    from dlrun.launch import LaunchPlan
    from dlrun.progress import Progress


@click.group()
def command() -> None:
    """Time how gradients are averaged beside peers, and a start."""


command.add_command(start)


@command.command()
@click.option(
    "-n",
    "ranks",
    callback=counts,
    metavar="N,...",
    help="Numbers of ranks; 2, and twice as many as cores, unless said.",
)
@click.option("--sizes", default="4:256MB", show_default=True, help="Arrays of these sizes: 4,64KB or 4:256MB or none.")
@click.option("--models", default="cnn,resnet50,gpt2", show_default=True, help="Gradient sets, or none.")
@click.option("--dtype", default="float32", show_default=True, help="Element type: float32, bfloat16, float16, ...")
@click.option(
    "--device",
    type=click.Choice(["cpu", "cuda"]),
    default="cpu",
    show_default=True,
    help="Where the arrays lie; on cuda the memcpy is out to pinned memory and back.",
)
@click.option(
    "--seconds",
    default=1.0,
    show_default=True,
    type=click.FloatRange(0, min_open=True),
    callback=finite,
    help="Time for each case, all ways together.",
)
@click.option("--hosts", default="", metavar="A,B", help="On these hosts, as in dlrun launch.")
@click.option(
    "--lab", default="", metavar="2x1", help="On made-up hosts of this machine, 2 of 1 rank each (root, MPICH, TCP)."
)
@click.option("--delay", default=0.0, type=click.FloatRange(0), help="Of the lab's links, one way, in ms.")
@click.option(
    "--rate", default=0.0, type=click.FloatRange(0), help="Of the lab's links, in MB/s; 0: what the machine does."
)
@click.option("--ways", default="", help="Only these, as dl_comm,MPI; all that can run here unless said.")
@click.option(
    "--by",
    type=click.Choice(["median", "best"]),
    default="median",
    show_default=True,
    help="What ratios compare: the medians, or the best samples (less disturbed by a busy machine).",
)
@click.option("--backend", default="auto", show_default=True, help="Launcher, as in dlrun launch.")
@click.option("--mpiexec", default="", help="Use this launcher program, and the MPI library beside it.")
@click.option("--out", type=NewFile(), help="Write the results here as JSON, and a plot beside it.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of tables.")
@click.option(
    "--compare",
    type=click.Path(exists=True, path_type=Path),
    metavar="FILE",
    help="Set them against the results of an earlier run.",
)
def allreduce(
    ranks: tuple[int, ...] | None,
    sizes: str,
    models: str,
    dtype: str,
    device: str,
    seconds: float,
    hosts: str,
    lab: str,
    delay: float,
    rate: float,
    ways: str,
    by: str,
    backend: str,
    mpiexec: str,
    out: Path | None,
    as_json: bool,
    compare: Path | None,
) -> None:
    """Time dl_comm and its peers alternately, and check every result.

    Peers are the MPI library, gloo, Horovod and oneCCL, where they are installed; the limit is memcpy, and between
    hosts as many bytes as the links must carry, over plain sockets, both ways at once.

    \b
      dlrun bench allreduce                               everything, a few minutes
      dlrun bench allreduce -n 2 --sizes 64KB:64MB        some sizes
      dlrun bench allreduce --hosts n1,n2 -n 8            between hosts
      dlrun bench allreduce --lab 4x2 --delay 1 --rate 1000   between 4 made-up hosts of 2 ranks each
      dlrun bench allreduce --out now.json --compare then.json
    """
    from dlrun.bench.compare import comparison, same_type
    from dlrun.bench.lab import layout_from_text
    from dlrun.bench.result import read, to_json
    from dlrun.bench.run import joined, usable_cores
    from dlrun.errors import DlrunError, StoppedError
    from dlrun.launch import LaunchPlan
    from dlrun.launch.hosts import hosts as parse
    from dlrun.progress import Progress

    earlier = read(compare) if compare else None
    if earlier:
        same_type(earlier, dtype)
    chosen = _chosen(sizes, models, dtype)
    if lab and (hosts or ranks):
        raise click.UsageError("--lab makes up hosts and their ranks: leave out --hosts and -n")
    if not lab and (delay or rate):
        raise click.UsageError("--delay and --rate are of the links of a --lab")
    made_up = _lab(lab, delay, rate)
    numbers = ranks or sorted({2, 2 * usable_cores()})
    if made_up:
        numbers = (made_up[0] * layout_from_text(lab)[1],)
    plan = LaunchPlan((), backend=backend, mpiexec=mpiexec, hosts=parse(hosts))
    names = [way.strip() for way in ways.split(",") if way.strip()]
    with Progress(len(chosen) * len(numbers)) as progress:
        run = _Run(chosen, dtype, seconds, names, plan, device, progress, "" if as_json else by, made_up)
        parts, cut = run.all(numbers)
    bench = joined(parts)
    if not bench.cells and cut:
        raise StoppedError("the first case", cut)
    if not bench.cells:
        raise DlrunError("nothing was measured", "\n  ".join(f"{way}: {why}" for way, why in bench.absent.items()))
    if as_json:
        click.echo(json.dumps(to_json(bench)))
    else:
        _told(bench, parts, by)
        if earlier:
            click.echo("\n" + comparison(earlier, bench))
    if cut:
        click.echo("interrupted: these are the cases that were done", err=True)
    if out:
        _write(bench, out)
    _check(bench)


def _lab(text: str, delay: float, rate: float) -> tuple[int, Slow | None] | None:
    """Return the number of made-up hosts, and what their links are like; None where none were asked for."""
    from dlrun.bench.lab import Slow, layout_from_text

    if not text:
        return None
    fast = 1e5  # MB/s: as good as no limit
    return layout_from_text(text)[0], Slow(delay / 1e3, (rate or fast) * 1e6) if delay or rate else None


def _told(bench: Bench, parts: Sequence[Bench], by: str) -> None:
    """Say what stands behind the rows: the summary, the path that arrays on GPUs took, what was not measured."""
    from dlrun.bench.result import summary

    click.echo("\n" + summary(bench, by) + "\n")
    for part in parts:
        if path := part.machine.get("path"):
            click.echo(f"{part.cells[0].ranks} ranks: arrays on GPUs are reduced by {path}")
        if wire := part.machine.get("wire"):
            click.echo(f"{part.cells[0].ranks} ranks: fastest between the nodes was DL_COMM_WIRE={wire}")
    for way, why in bench.absent.items():
        click.echo(f"not measured: {way} ({why})")


def _check(bench: Bench) -> None:
    """Raise DlrunError where a result was wrong."""
    from dlrun.errors import DlrunError

    if bench.wrong():
        first = bench.wrong()[0]
        message = f"{len(bench.wrong())} of {len(bench.cells)} cells hold wrong numbers, the first {first.way}"
        message += f" on {first.ranks} ranks at {first.case}: {first.wrong} elements"
        raise DlrunError(message, "no time of a wrong result means anything")


def _chosen(sizes: str, models: str, dtype: str) -> list[Case]:
    """Return what is to be measured; raises DlrunError where that is nothing."""
    from dlrun.bench.cases import cases, sizes_from_text
    from dlrun.errors import DlrunError

    chosen = cases(
        [] if sizes == "none" else [s for s in sizes_from_text(sizes) if _fits(s, dtype)],
        [] if models == "none" else models.split(","),
        dtype,
    )
    if not chosen:
        raise DlrunError("nothing is left to measure", "give --sizes or --models something")
    return chosen


def _fits(size: int, dtype: str) -> bool:
    from dlrun.bench.cases import WIDTHS

    return size >= WIDTHS.get(dtype, 1)


@dataclass(frozen=True)
class _Run:
    """The measurement of some cases; of a table with ratios ``by`` something, rows are printed as they are done."""

    chosen: list[Case]
    dtype: str
    seconds: float
    ways: list[str]
    plan: LaunchPlan
    device: str
    progress: Progress
    by: str
    lab: tuple[int, Slow | None] | None = None

    def all(self, numbers: Sequence[int]) -> tuple[list[Bench], int]:
        """Return what was measured on each number of ranks, and the signal that cut it short; 0: none did."""
        from dlrun.bench.run import CutShortError

        parts: list[Bench] = []
        try:
            for index, n in enumerate(numbers):
                parts.append(self._on(n, index * len(self.chosen), first=not index))
        except CutShortError as error:
            return [*parts, *([error.bench] if error.bench.cells or not parts else [])], error.number
        return parts, 0

    def _on(self, n: int, before: int, first: bool) -> Bench:
        from dlrun.bench.live import LiveTable
        from dlrun.bench.run import measure

        def show(text: str) -> None:
            self.progress.clear()
            click.echo(text)

        table = LiveTable(self.chosen, n, self.dtype, self.by, show) if self.by else None

        def listen(event: dict[str, Any]) -> None:
            if event["event"] == "start" and table and not first:
                show("")
            if table:
                table.take(event)
            if event["event"] == "case":
                self.progress.at(before + event["index"], f"{n} ranks: {event['name']}")

        self.progress.at(before, f"{n} ranks: starting")
        bench = measure(
            self.chosen,
            n,
            self.dtype,
            self.seconds,
            self.ways,
            plan=self.plan,
            on_event=listen,
            device=self.device,
            lab=self.lab,
        )
        if table:
            table.case_ends()
        return bench


def _write(bench: Bench, out: Path) -> None:
    from dlrun.bench.plot import draw
    from dlrun.bench.result import to_json
    from dlrun.errors import DlrunError

    out.write_text(json.dumps(to_json(bench), indent=1) + "\n")
    written = [out]
    try:
        written += draw(bench, out)
    except DlrunError as error:
        error.show()
    click.echo("wrote " + ", ".join(str(path) for path in written), err=True)
