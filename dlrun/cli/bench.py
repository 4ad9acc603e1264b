"""``dlrun bench``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dlrun.cli.paths import NewFile
from dlrun.cli.values import counts, finite

if TYPE_CHECKING:
    from dlrun.bench.cases import Case
    from dlrun.bench.result import Bench
    from dlrun.launch import LaunchPlan
    from dlrun.progress import Progress


@click.group()
def command() -> None:
    """Time how gradients are averaged, beside peers and the limit."""


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
    ranks: tuple[int, ...] | None, sizes: str, models: str, dtype: str, device: str, seconds: float, ways: str,
    by: str, backend: str, mpiexec: str, out: Path | None, as_json: bool, compare: Path | None,
) -> None:  # fmt: skip
    """Time dl_comm and its peers in turns, and check every result.

    Peers are the MPI library, gloo, Horovod and oneCCL, where they are installed; the limit is memcpy.

    \b
      dlrun bench allreduce                               everything, a few minutes
      dlrun bench allreduce -n 2 --sizes 64KB:64MB        some sizes
      dlrun bench allreduce --out now.json --compare then.json
    """
    from dlrun.bench.cases import cases, sizes_from_text
    from dlrun.bench.compare import comparison, same_type
    from dlrun.bench.result import read, summary, tables, to_json
    from dlrun.bench.run import joined, usable_cores
    from dlrun.errors import DlrunError
    from dlrun.launch import LaunchPlan
    from dlrun.progress import Progress

    earlier = read(compare) if compare else None
    if earlier:
        same_type(earlier, dtype)
    chosen = cases(
        [] if sizes == "none" else [s for s in sizes_from_text(sizes) if _fits(s, dtype)],
        [] if models == "none" else models.split(","),
        dtype,
    )
    if not chosen:
        raise DlrunError("nothing is left to measure", "give --sizes or --models something")
    numbers = ranks or sorted({2, 2 * usable_cores()})
    plan = LaunchPlan((), backend=backend, mpiexec=mpiexec)
    names = [way.strip() for way in ways.split(",") if way.strip()]
    with Progress(len(chosen) * len(numbers)) as progress:
        parts = [_measure(chosen, n, dtype, seconds, names, plan, progress, i, device) for i, n in enumerate(numbers)]
    bench = joined(parts)
    if not bench.cells:
        raise DlrunError("nothing was measured", "\n  ".join(f"{way}: {why}" for way, why in bench.absent.items()))
    if as_json:
        click.echo(json.dumps(to_json(bench)))
    else:
        click.echo(tables(bench, by) + "\n\n" + summary(bench, by) + "\n")
        for part in parts:
            if path := part.machine.get("path"):
                click.echo(f"{part.cells[0].ranks} ranks: arrays on GPUs are reduced by {path}")
        for way, why in bench.absent.items():
            click.echo(f"not measured: {way} ({why})")
        if earlier:
            click.echo("\n" + comparison(earlier, bench))
    if out:
        _write(bench, out)
    if bench.wrong():
        first = bench.wrong()[0]
        message = f"{len(bench.wrong())} of {len(bench.cells)} cells hold wrong numbers, the first {first.way}"
        message += f" on {first.ranks} ranks at {first.case}: {first.wrong} elements"
        raise DlrunError(message, "no time of a wrong result means anything")


def _fits(size: int, dtype: str) -> bool:
    from dlrun.bench.cases import WIDTHS

    return size >= WIDTHS.get(dtype, 1)


def _measure(
    chosen: list[Case], n: int, dtype: str, seconds: float, ways: list[str], plan: LaunchPlan,
    progress: Progress, part: int, device: str,
) -> Bench:  # fmt: skip
    from dlrun.bench.run import measure

    before = part * len(chosen)

    def show(event: dict[str, Any]) -> None:
        if event["event"] == "case":
            progress.at(before + event["index"], f"{n} ranks: {event['name']}")

    progress.at(before, f"{n} ranks: starting")
    return measure(chosen, n, dtype, seconds, ways, plan=plan, on_event=show, device=device)


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
