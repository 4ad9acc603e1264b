"""The verbs. Each lives in a module of its own here: options -> values -> the verb's function.

Importing this package loads click and nothing else of weight; a verb's module imports what it needs inside its
command, so that ``dlrun --help`` is instant and ``dlrun port`` works on a login node without MPI.
"""

from __future__ import annotations

from importlib import import_module

import click

from dlrun import __version__

# In the order in which a user meets them; `dlrun --help` lists them so.
VERBS = ("demo", "port", "verify", "launch", "logs", "bench", "tune", "scale", "timeline", "doctor")


class _Verbs(click.Group):
    """A group whose commands are the modules of ``VERBS``, each holding a command named ``command``."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in VERBS:
            return None
        command = import_module(f"dlrun.cli.{cmd_name}").command
        assert isinstance(command, click.Command)
        return command


@click.group(cls=_Verbs, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="dlrun")
def main() -> None:
    """Take a serial training script to a thousand ranks.

    \b
      dlrun port train.py                  writes train_dist.py beside it
      dlrun launch -n 2 train_dist.py      trains it on 2 ranks
    """
