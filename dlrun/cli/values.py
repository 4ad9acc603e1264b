"""What people write after options: numbers of ranks, variables, words, ranks."""

from __future__ import annotations

import math
import re
import shlex

import click


def counts(context: click.Context, parameter: click.Parameter, text: str | None) -> tuple[int, ...] | None:
    """Return the numbers in ``1,2,4``, rising, each once; it is a usage error where one is none, or below 1."""
    if text is None:
        return None
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and int(part) for part in parts):
        raise click.BadParameter(f"'{text}' is no list of numbers; write 1,2,4")
    return tuple(sorted({int(part) for part in parts}))


def finite(context: click.Context, parameter: click.Parameter, value: float | None) -> float | None:
    """Return the number; it is a usage error where it is inf or nan, which no range of click's refuses."""
    if value is not None and not math.isfinite(value):
        raise click.BadParameter(f"{value} is no number to reckon with.")
    return value


def pattern(context: click.Context, parameter: click.Parameter, text: str | None) -> str | None:
    """Return the regular expression; it is a usage error where it is none, or has no group to hold the number."""
    try:
        groups = re.compile(text or "()").groups
    except re.error as error:
        raise click.BadParameter(f"'{text}' is no regular expression: {error}") from error
    if not groups:
        raise click.BadParameter(f"'{text}' has no group for the number; write '{text} ([0-9.]+)'")
    return text


def variable(text: str) -> tuple[str, str]:
    """Return the name and the value of ``NAME=VALUE``."""
    from dlrun.errors import DlrunError

    name, equals, value = text.partition("=")
    if not name or not equals:
        raise DlrunError(f"--env {text} has no value", "write --env NAME=VALUE")
    return name, value


def words(option: str, text: str) -> tuple[str, ...]:
    """Return the words of ``text``, as a shell would split it."""
    from dlrun.errors import DlrunError

    try:
        return tuple(shlex.split(text))
    except ValueError as error:
        raise DlrunError(f"{option} {text}: {error}", "quotes in it come in pairs, as in a shell") from error


def shown(text: str) -> tuple[int, ...] | None:
    """Return the ranks of ``0,7``; None for ``all``."""
    from dlrun.errors import DlrunError

    if text == "all":
        return None
    if not all(part.strip().isdigit() for part in text.split(",")):
        raise DlrunError(f"--show {text}: these are no ranks", "write --show 0,7 or --show all")
    return tuple(int(part) for part in text.split(","))
