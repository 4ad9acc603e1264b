"""The one error that users see, and what it says of a script that is not there."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import IO, Any

import click


class DlrunError(click.ClickException):
    """What is so, with the numbers (``message``), and what to do about it (``hint``).

    Raised anywhere in dlrun; click shows it and ends with exit code 1. Usage errors (a wrong option) are
    click's own and end with 2.
    """

    exit_code = 1

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint

    def show(self, file: IO[Any] | None = None) -> None:
        """Print ``dlrun: message`` and the hint, indented, below it."""
        out = file or sys.stderr
        click.echo(f"dlrun: {self.message}", file=out)
        if self.hint:
            click.echo(f"  {self.hint}", file=out)


class StoppedError(DlrunError):
    """Somebody interrupted it before there was anything to show."""

    exit_code = 130


def no_script(path: Path) -> DlrunError:
    """Return the error for a script that is not there, with the one of nearly its name that is."""
    import difflib

    if path.exists():
        return DlrunError(f"{path} is no file", "every rank reads the script for itself: write it to one")
    if path.is_symlink():
        return DlrunError(f"{path} is a link to {path.readlink()}, and nothing is there", "mend the link")
    folder = path.parent
    names = sorted(p.stem for p in folder.glob("*.py")) if folder.is_dir() else []
    close = difflib.get_close_matches(path.stem, names, n=1)
    hint = f"did you mean {folder / close[0]}.py?" if close else f"looked in {folder.absolute()}"
    return DlrunError(f"there is no script {path}", hint)
