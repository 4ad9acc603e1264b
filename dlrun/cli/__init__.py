"""The verbs. Each lives in a module of its own here: options -> values -> the verb's function.

Importing this package loads click and nothing else of weight; a verb's module imports what it needs inside its
command, so that ``dlrun --help`` is instant and ``dlrun port`` works on a login node without MPI.
"""

from __future__ import annotations

import errno
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import click

from dlrun import __version__
from dlrun.errors import DlrunError, SignalledError, ended_by, number_of

# In the order in which a user meets them; `dlrun --help` lists them so.
VERBS = (
    "demo",
    "port",
    "verify",
    "launch",
    "logs",
    "bench",
    "tune",
    "scale",
    "estimate",
    "timeline",
    "doctor",
    "config",
    "completion",
)


_FULL = (errno.ENOSPC, errno.EDQUOT)  # errors of writing, which name no file


class _Verbs(click.Group):
    """A group whose commands are the modules of ``VERBS``, each holding a command named ``command``.

    What the system refuses about a file of the user's is an error like any other: a line, and no traceback. So is
    Ctrl-C, where the verb does not answer it itself.
    """

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in VERBS:
            return None
        command = import_module(f"dlrun.cli.{cmd_name}").command
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name.endswith(".py"):
            ctx.fail(f"{name} is no command; dlrun port {name} ports a script, dlrun launch -n 2 {name} starts one.")
        if name not in VERBS and not name.startswith("-"):
            import difflib

            near = difflib.get_close_matches(name, VERBS, n=1)
            ctx.fail(f"There is no command '{name}'{f'; did you mean {near[0]}?' if near else '.'}")
        return super().resolve_command(ctx, args)

    def main(self, *args: Any, **extra: Any) -> Any:
        try:
            return super().main(*args, **extra)
        except OSError as error:  # also of --help and --version, which no verb shows
            if error.filename is None and error.errno not in _FULL:
                raise
            place = f"{error.filename}: " if error.filename is not None else ""
            DlrunError(f"{place}{error.strerror}").show()
            if error.errno in _FULL:  # Python writes what is left at its end, and would fail again
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.__stdout__.fileno() if sys.__stdout__ else 1)
            sys.exit(1)

    def invoke(self, ctx: click.Context) -> Any:
        _check_folder()
        try:
            with _ended_like_ctrl_c():
                return super().invoke(ctx)
        except click.NoSuchOption as error:
            if error.ctx and any(isinstance(p, click.Argument) and p.nargs < 0 for p in error.ctx.command.params):
                after = "--" if error.ctx.allow_interspersed_args else "it"
                why = f"{error.message} The script's own options come after {after}."
                raise click.NoSuchOption(error.option_name, why, error.possibilities, error.ctx) from None
            raise
        except KeyboardInterrupt as end:
            number = number_of(end)
            click.echo(f"\ndlrun: {ended_by(number)}", err=True)
            raise click.exceptions.Exit(128 + number) from None
        except (click.ClickException, click.exceptions.Exit, click.Abort, OSError):
            raise
        except Exception as error:
            import traceback

            traceback.print_exception(error, limit=-6)  # the innermost calls
            raise DlrunError(
                f"a fault of dlrun {__version__} itself, not of what you gave it: {type(error).__name__}",
                "Please report it, with the lines above and what you typed.",
            ) from None


@contextmanager
def _ended_like_ctrl_c() -> Iterator[None]:
    """Have what batch systems send raise a KeyboardInterrupt with its number: what a verb has begun it ends.

    A hang-up that ``nohup`` has it ignore stays ignored. A launch has handlers of its own while it runs.
    """

    def interrupt(number: int, _: object) -> None:
        raise SignalledError(number)

    taken = [signal.SIGTERM, signal.SIGHUP] if threading.current_thread() is threading.main_thread() else []
    before = {number: signal.getsignal(number) for number in taken}
    for number, handler in before.items():
        if handler == signal.SIG_DFL:
            signal.signal(number, interrupt)
    try:
        yield
    finally:
        for number, handler in before.items():
            if handler == signal.SIG_DFL:
                signal.signal(number, handler)


def _check_folder() -> None:
    """Raise DlrunError where the folder that dlrun was started in has been removed since the shell went there."""
    try:
        os.getcwd()  # noqa: PTH109
    except FileNotFoundError:
        raise DlrunError("the folder that this shell is in is gone", "go to one that is there: cd ..") from None


@click.group(cls=_Verbs, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="dlrun")
def main() -> None:
    """Take a serial training script to a thousand ranks.

    \b
      dlrun port train.py                  writes train_dist.py beside it
      dlrun launch -n 2 train_dist.py      trains it on 2 ranks
    """
