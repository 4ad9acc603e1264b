"""``dlrun port``."""

from __future__ import annotations

import click


@click.command()
def command() -> None:
    """Not built yet."""
