"""``dlrun demo``."""

from __future__ import annotations

import click


@click.command()
def command() -> None:
    """Port and train the handwritten-digits example, and show every step."""
