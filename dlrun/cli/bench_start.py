"""``dlrun bench start``."""

from __future__ import annotations

import json

import click


@click.command()
@click.option("-n", "--ranks", type=click.IntRange(2), default=2, show_default=True, help="So many ranks.")
@click.option("--runs", type=click.IntRange(1), default=15, show_default=True, help="So many starts each way.")
@click.option("--mpiexec", default="", help="Use this launcher program.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
def start(ranks: int, runs: int, mpiexec: str, as_json: bool) -> None:
    """Time what dlrun launch adds to a start.

    The launcher alone and dlrun launch start ranks that print a line, interleaved.
    """
    from dlrun.bench.start import measure, table
    from dlrun.progress import Progress

    with Progress(runs) as progress:
        starts = measure(ranks, mpiexec, runs, lambda number: progress.at(number, f"start {number + 1} of {runs}"))
    if as_json:
        ways = {"bare": starts.bare._asdict(), "dlrun": starts.dlrun._asdict()}
        click.echo(json.dumps(starts._asdict() | ways))
    else:
        click.echo(table(starts))
