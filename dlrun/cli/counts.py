"""Options that are several numbers of ranks."""

from __future__ import annotations

import click


def counts(context: click.Context, parameter: click.Parameter, text: str | None) -> tuple[int, ...] | None:
    """Return the numbers in ``1,2,4``, rising, each once; it is a usage error where one is none, or below 1."""
    if text is None:
        return None
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and int(part) for part in parts):
        raise click.BadParameter(f"'{text}' is no list of numbers; write 1,2,4")
    return tuple(sorted({int(part) for part in parts}))
