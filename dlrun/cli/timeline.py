"""``dlrun timeline``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dlrun.cli.paths import NewFile

if TYPE_CHECKING:
    from dlrun.timeline.rings import Track


@click.command()
@click.argument("source", metavar="FILE", type=click.Path(exists=True, path_type=Path))
@click.option("--out", type=NewFile(), help="Write the trace here, for ui.perfetto.dev.")
@click.option("--steps", metavar="A:B", help="Only from step A up to step B.")
def command(source: Path, out: Path | None, steps: str | None) -> None:
    """Say what the ranks did: who waited, for whom, how long.

    FILE is the trace that `dlrun launch --timeline FILE` wrote, or the run directory of such a run: there the records
    are also when nobody was left to write the trace.
    """
    show(source, out, steps)


def show(source: Path, out: Path | None, steps: str | None) -> None:
    """Print the summary of a trace or of a run directory; write the trace where `out` is given."""
    from dlrun.errors import DlrunError
    from dlrun.timeline.rings import between
    from dlrun.timeline.summary import summary
    from dlrun.timeline.trace import to_chrome

    tracks = _tracks(source)
    if steps:
        first, last = window(steps)
        there = sorted(set().union(*(track.steps() for track in tracks)))
        tracks = [between(track, first, last) for track in tracks]
        if there and not any(track.steps() for track in tracks):
            raise DlrunError(
                f"--steps {steps}: no such step was recorded", f"{source} holds steps {there[0]} to {there[-1]}"
            )
    if out:
        out.write_text(json.dumps(to_chrome(tracks)) + "\n")
    click.echo(summary(tracks))


def _tracks(source: Path) -> list[Track]:
    from dlrun.errors import DlrunError
    from dlrun.timeline.rings import read_all
    from dlrun.timeline.trace import from_chrome

    if source.is_dir():
        return read_all(source)
    try:
        value = json.loads(source.read_text())
    except ValueError:
        raise DlrunError(f"{source} is no trace of dlrun launch --timeline") from None
    return from_chrome(value, str(source))


def window(text: str) -> tuple[int, int]:
    """'100:120' -> (100, 120)."""
    first, colon, last = text.partition(":")
    if not colon or not first.isdigit() or not last.isdigit() or int(first) >= int(last):
        raise click.BadParameter(f"'{text}' is no window of steps; write 100:120")
    return int(first), int(last)
