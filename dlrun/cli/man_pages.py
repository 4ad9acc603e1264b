"""``python -m dlrun.cli.man_pages FOLDER``: write a man page for each verb, as wheels bring them to ``share/man``."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import click

from dlrun import __version__
from dlrun.cli import main as dlrun


def write(folder: Path) -> list[Path]:
    """Write ``dlrun.1`` and a ``dlrun-VERB.1`` for each verb into ``folder``; return the files.

    Raises:
        ImportError: click-man, which writes a page from what a verb's ``--help`` says, is not installed.
    """
    from click_man.core import generate_man_page

    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for context in [*_contexts(click.Context(dlrun, info_name="dlrun"))]:
        written.append(folder / f"{context.command_path.replace(' ', '-')}.1")
        written[-1].write_text(generate_man_page(context, __version__))
    return written


def _contexts(context: click.Context) -> Iterator[click.Context]:
    """Yield the contexts of a command and its subcommands, whose summary is their whole first sentence."""
    command = context.command
    command.short_help = command.get_short_help_str(limit=200)
    yield context
    if not isinstance(command, click.Group):
        return
    for name in command.list_commands(context):
        verb = command.get_command(context, name)
        assert verb is not None
        command.add_command(verb, name)  # a verb is imported when it is asked for: the page lists all
        yield from _contexts(click.Context(verb, info_name=name, parent=context))


if __name__ == "__main__":
    print(*write(Path(sys.argv[1])), sep="\n")
