"""``dlrun config``."""

from __future__ import annotations

import os
import shutil
import sys
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from dlrun.launch.survey import Survey

_ASKED = ("as", "per-node", "gpus", "account", "queue")  # options of dlrun launch that the answers set


@click.command()
@click.option(
    "--check", is_flag=True, help="Write nothing; say whether FILE, or the files that are used here, are right."
)
@click.option("--user", is_flag=True, help="Write ~/.config/dlrun/dlrun.yaml, which holds wherever you start jobs.")
@click.option("-y", "--yes", is_flag=True, help="Ask nothing: what was found here is right.")
@click.option("--overwrite", is_flag=True, help="Write a file that is there anew; the old one is kept as FILE~.")
@click.argument("file", required=False, type=click.Path(dir_okay=False, path_type=Path))
def command(check: bool, user: bool, yes: bool, overwrite: bool, file: Path | None) -> None:
    """Ask what this site has, and write it to dlrun.yaml.

    What was found here is offered at each question: Return takes it. FILE is ./dlrun.yaml unless said, which holds for
    jobs that are started in this folder.

    \b
      dlrun config                 asks, and writes ./dlrun.yaml
      dlrun config --user          the same for all your projects
      dlrun config --check         says what is wrong in the files that hold here
    """
    from dlrun.launch.config import user_file

    if file and user:
        raise click.UsageError("--user and FILE are both given: give one of them")
    if check:
        _check([file] if file else [user_file(os.environ)] if user else [])
        return
    path = user_file(os.environ) if user else file or Path("dlrun.yaml")
    _write(path, yes, overwrite)


def _write(path: Path, yes: bool, overwrite: bool) -> None:
    """Ask, and write the answers; options of an old file that are not asked for stay."""
    from dlrun.errors import DlrunError
    from dlrun.launch import look_here
    from dlrun.launch.config import written
    from dlrun.launch.survey import survey

    before: dict[str, Any] = {}
    if path.exists():
        if not overwrite:
            hint = f"--check says whether it is right; --overwrite asks anew, and keeps the old one as {path}~"
            raise DlrunError(f"{path} is there already", hint)
        before = _named(_read(path))
    found = survey(look_here())
    answers = _as_options(found if yes else _ask(found, before))
    kept = {name: value for name, value in before.items() if name not in _ASKED}
    options = {**answers, **kept}
    if path.exists():
        path.replace(f"{path}~")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(written(options), encoding="utf-8")
    for name, value in options.items():
        click.echo(f"  {name}: {value}" if name != "env" else f"  env: {', '.join(value)}")
    if "as" in answers:
        click.echo(f"dlrun: wrote {path}; a batch script: dlrun launch -n 8 --job job.sh train_dist.py", err=True)
    else:
        click.echo(f"dlrun: wrote {path}; dlrun launch uses it", err=True)


def _ask(found: Survey, before: dict[str, Any]) -> Survey:
    """Ask, each time with what the old file says, or what was found."""
    from dlrun.launch.survey import SCHEDULERS, Survey

    choices = ["none", *sorted(SCHEDULERS)]
    offered = before.get("as", found.scheduler)
    scheduler = _prompt("Batch system", offered if offered in choices else "none", click.Choice(choices))
    gpus = _prompt("GPUs on each node", before.get("gpus", 0) * before.get("per-node", 1) or found.gpus, _COUNT)
    per_node = _prompt(
        "Ranks on each node (one for each GPU)" if gpus else "Ranks on each node (0: as it comes)",
        gpus or before.get("per-node", 0 if scheduler == "none" else found.per_node),
        _COUNT,
    )
    if scheduler == "none":
        return Survey(scheduler, gpus, per_node)
    account = _prompt("Account to charge (- for none)", before.get("account", found.account) or "-", str)
    queue = _prompt("Queue or partition (- for the default)", before.get("queue", found.queue) or "-", str)
    return Survey(scheduler, gpus, per_node, account.strip("-"), queue.strip("-"))


_COUNT = click.IntRange(0, 4096)


def _prompt(text: str, default: Any, kind: Any) -> Any:
    from dlrun.errors import DlrunError

    try:
        return click.prompt(text, default=default, type=kind, err=True)
    except click.Abort:
        if sys.stdin.isatty():
            raise
        click.echo(err=True)
        raise DlrunError("nobody is there to answer, and nothing was written", "--yes takes what was found") from None


def _as_options(site: Survey) -> dict[str, Any]:
    """Return the options of dlrun launch that say what the site has."""
    options: dict[str, Any] = {}
    if site.scheduler != "none":
        options["as"] = site.scheduler
    if site.per_node and (site.scheduler != "none" or site.gpus):
        options["per-node"] = site.per_node
    if site.gpus and site.per_node and site.scheduler != "none":  # on one machine dlrun sees them by itself
        options["gpus"] = max(1, site.gpus // site.per_node)
    options |= {name: text for name, text in (("account", site.account), ("queue", site.queue)) if text}
    return options


def _read(path: Path) -> dict[str, Any]:
    """Return the options of the file, by the names of parameters; raises DlrunError for what is wrong in it."""
    from dlrun.cli.defaults import kinds
    from dlrun.cli.launch import command as launch
    from dlrun.launch.config import defaults

    return defaults(path, kinds(launch))


def _named(found: dict[str, Any]) -> dict[str, Any]:
    """Return options by the names that the file uses: ``per-node`` and ``as`` of ``per_node`` and ``as_``."""
    return {name.rstrip("_").replace("_", "-"): value for name, value in found.items()}


def _check(named: list[Path]) -> None:
    """Say of each file whether dlrun launch would take it; raises DlrunError for the first that is wrong."""
    from dlrun.errors import DlrunError
    from dlrun.launch.config import files, user_file

    paths = named or files(os.environ, Path())
    if not paths:
        where = f"./dlrun.yaml, {user_file(os.environ)}"
        raise DlrunError(f"there is no dlrun.yaml (looked for {where})", "dlrun config writes one")
    for path in paths:
        if not path.is_file():
            raise DlrunError(f"there is no file {path}", f"dlrun config {path} writes it")
        options = _checked(path)
        words = ", ".join(f"{name} {value}" for name, value in options.items() if name != "env")
        variables = ", ".join(options.get("env", ()))
        told = "; ".join(filter(None, (words, f"env {variables}" if variables else "")))
        click.echo(f"{path}: right: {told or 'it sets nothing'}")


def _checked(path: Path) -> dict[str, Any]:
    """Return the options that the file sets; raises DlrunError for what dlrun launch would refuse in it."""
    from dlrun.cli.launch import command as launch
    from dlrun.cli.launch import plan_of
    from dlrun.errors import DlrunError
    from dlrun.launch.backends import BACKENDS
    from dlrun.launch.job import SUBMIT

    found = _read(path)
    try:
        context = click.Command.make_context(launch, "launch", ["train.py"], default_map=found)
    except click.UsageError as error:
        raise DlrunError(f"{path}: {error.format_message()}", "dlrun launch --help says what it takes") from None
    of_the_command = signature(launch.callback).parameters if launch.callback else {}
    try:
        plan = plan_of(**{name: value for name, value in context.params.items() if name not in of_the_command})
    except DlrunError as error:
        raise DlrunError(f"{path}: {error.message}", error.hint) from None
    options = _named(found)
    known = {"as": ("", *SUBMIT), "backend": ("auto", *BACKENDS)}
    for name, names in known.items():
        if options.get(name, names[0]) not in names:
            raise DlrunError(f"{path}: {name} {options[name]} is not known", f"known are {', '.join(names[1:])}")
    if plan.mpiexec and not shutil.which(plan.mpiexec):
        raise DlrunError(f"{path}: mpiexec {plan.mpiexec} is no program that is here")
    return options
