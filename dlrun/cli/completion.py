"""``dlrun completion``."""

from __future__ import annotations

import click


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def command(shell: str) -> None:
    """Print what makes the shell complete dlrun's words.

    \b
      eval "$(dlrun completion bash)"                                      in ~/.bashrc
      eval "$(dlrun completion zsh)"                                       in ~/.zshrc
      dlrun completion fish > ~/.config/fish/completions/dlrun.fish
    """
    from click.shell_completion import get_completion_class

    from dlrun.cli import main

    completion = get_completion_class(shell)
    assert completion
    prints = completion(main, {}, "dlrun", "_DLRUN_COMPLETE")
    click.echo(prints.source_template % prints.source_vars())
