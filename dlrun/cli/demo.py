"""``dlrun demo``."""

from __future__ import annotations

from pathlib import Path

import click

from dlrun.cli.paths import NewFolder


@click.command()
@click.option("-n", "--ranks", default=2, show_default=True, type=click.IntRange(1), help="Ranks to train on.")
@click.option("--epochs", default=200, show_default=True, type=click.IntRange(1), help="Passes over the data.")
@click.option(
    "--data",
    metavar="FOLDER",
    type=click.Path(exists=True, file_okay=False),
    help="Folder of MNIST IDX files, instead of the digits that scikit-learn carries.",
)
@click.option(
    "--dir",
    "folder",
    default="dlrun-demo",
    show_default=True,
    type=NewFolder(),
    help="Where to put the script, its port and the logs.",
)
def command(ranks: int, epochs: int, data: str | None, folder: Path) -> None:
    """Train handwritten digits serially, port, train on 2 ranks.

    A table compares the two trainings in the end.
    """
    from dlrun.demo import run_demo

    run_demo(folder, ranks, epochs, data)
