"""``dlrun timeline``."""

from __future__ import annotations

import json
from pathlib import Path

import click


@click.command()
@click.argument("run_dir", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--out", type=click.Path(path_type=Path), help="Write the trace here, for ui.perfetto.dev.")
@click.option("--steps", metavar="A:B", help="Only from step A up to step B.")
def command(run_dir: Path, out: Path | None, steps: str | None) -> None:
    """Say what the ranks of a run recorded under `dlrun launch --timeline` did: who waited, for whom, how long."""
    show(run_dir, out, steps)


def show(run_dir: Path, out: Path | None, steps: str | None) -> None:
    """Print the summary of a run's timeline; write its trace where `out` is given."""
    from dlrun.timeline.rings import between, read_all
    from dlrun.timeline.summary import summary
    from dlrun.timeline.trace import to_chrome

    tracks = read_all(run_dir)
    if steps:
        first, last = window(steps)
        tracks = [between(track, first, last) for track in tracks]
    if out:
        out.write_text(json.dumps(to_chrome(tracks)) + "\n")
    click.echo(summary(tracks))


def window(text: str) -> tuple[int, int]:
    """'100:120' -> (100, 120)."""
    first, colon, last = text.partition(":")
    if not colon or not first.isdigit() or not last.isdigit() or int(first) >= int(last):
        raise click.BadParameter(f"'{text}' is no window of steps; write 100:120")
    return int(first), int(last)
