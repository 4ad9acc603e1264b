"""The one error that users see, and what it says of a script that is not there."""

from __future__ import annotations

import signal
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


class SignalledError(KeyboardInterrupt):
    """The signal ``number`` ends what runs, as Ctrl-C does."""

    def __init__(self, number: int = signal.SIGINT) -> None:
        super().__init__()
        self.number = number


class StoppedError(DlrunError):
    """A signal ended it, usually Ctrl-C, before there was anything to show: before ``what`` was done."""

    def __init__(self, what: str, number: int = signal.SIGINT) -> None:
        super().__init__(f"{ended_by(number)} before {what} was done")
        self.exit_code = 128 + number  # type: ignore[misc]


def ended_by(number: int) -> str:
    """Return what is told of a signal that ended something."""
    return "interrupted" if number == signal.SIGINT else f"ended by {signal.Signals(number).name}"


def number_of(end: KeyboardInterrupt) -> int:
    """Return the number of the signal behind it: that of Ctrl-C, where it does not say."""
    return end.number if isinstance(end, SignalledError) else signal.SIGINT


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
