"""Options of a command that ``dlrun.yaml`` may set, and words of IBM's ddlrun among them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click


class WithDefaults(click.Command):
    """A command whose options take their defaults from ``dlrun.yaml``, where there is one."""

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        """Parse ``args``, with the defaults that the files hold."""
        from dlrun.launch.config import defaults, env_file, files

        found: dict[str, Any] = {}
        for path in files(os.environ, Path()):
            here = defaults(path, kinds(self))
            env = {text.partition("=")[0]: text for text in (*found.get("env", ()), *here.get("env", ()))}
            found |= {**here, "env": list(env.values())}
        ours = self._from_ddlrun(self._from_others(args))
        context = super().make_context(info_name, ours, parent, default_map=found, **extra)
        said = context.get_parameter_source("env") == click.core.ParameterSource.COMMANDLINE
        given = context.params.get("env", ()) if said else ()
        file = context.params.get("env_file")
        context.params["env"] = (*found.get("env", ()), *(env_file(file) if file else ()), *given)
        return context

    def _from_others(self, args: list[str]) -> list[str]:
        """Return ``args`` with the options of other launchers in dlrun's words."""
        from dlrun.launch import look_here
        from dlrun.launch.other_launchers import translate

        options = [p for p in self.params if isinstance(p, click.Option) and not p.is_flag]
        valued = {name for option in options for name in (*option.opts, *option.secondary_opts)}
        here = look_here()
        words, notes = translate(args, valued, here.gpus, here.cores)
        for note in notes:
            click.echo(f"dlrun: {note}", err=True)
        return words

    def _from_ddlrun(self, args: list[str]) -> list[str]:
        """Return ``args`` with what follows ``--ddlrun`` in dlrun's words; a script's own --ddlrun stays."""
        at = args.index("--ddlrun") if "--ddlrun" in args else -1
        if at < 0:
            return args
        before = self.make_parser(click.Context(self)).parse_args(args[:at])[0]
        if isinstance(before.get("script"), str):
            return args
        from dlrun.launch import look_here
        from dlrun.launch.ddlrun import translate

        words, notes = translate(args[at + 1 :], look_here().gpus)
        for note in notes:
            click.echo(f"dlrun: {note}", err=True)
        return [*args[:at], *words]


def kinds(command: click.Command) -> dict[str, str]:
    """Return what each option of the command takes, in the words of ``dlrun.launch.config``."""
    return {p.name: _kind(p) for p in command.params if isinstance(p, click.Option) and p.name}


def _kind(option: click.Option) -> str:
    if option.multiple:
        return "variables"
    if option.is_flag:
        return "yes or no"
    if isinstance(option.type, click.Choice):
        return " or ".join(option.type.choices)
    return {"integer": "count", "float": "seconds"}.get(option.type.name, "text")


def from_files(context: click.Context, env: tuple[str, ...]) -> tuple[str, tuple[tuple[str, str], ...]]:
    """Return the line that says what comes from ``dlrun.yaml``, and which variables of ``env`` do."""
    found = context.default_map or {}
    own = {text.partition("=")[0] for text in env[len(found.get("env", ())) :]}
    variables = [text for text in found.get("env", ()) if text.partition("=")[0] not in own]
    words = [f"--env {text}" for text in variables]
    for name, value in found.items():
        if name != "env" and context.get_parameter_source(name) == click.core.ParameterSource.DEFAULT_MAP:
            words.append(f"--{name.rstrip('_').replace('_', '-')} {value}")
    told = f"from dlrun.yaml: {', '.join(words)}" if words else ""
    return told, tuple((text.partition("=")[0], "dlrun.yaml") for text in variables)
