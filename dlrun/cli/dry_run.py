"""What ``dlrun launch`` prints or writes in place of a start: the command, its reasons, a batch script."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from dlrun.launch.job import Job
    from dlrun.launch.plan import LaunchPlan


def backend_of(system: str) -> str:
    """Return the launcher that a batch system comes with."""
    from dlrun.errors import DlrunError

    backends = {"slurm": "srun", "pbs": "pals", "alps": "aprun", "cobalt": "aprun", "lsf": "jsrun", "flux": "flux"}
    if system == "kubernetes":
        raise DlrunError("--as kubernetes: there is no command to show, a job is a file", "write it: --job FILE")
    if system not in backends:
        raise DlrunError(f"--as {system}: no batch system of this name", f"known are {', '.join(backends)}")
    return backends[system]


def print_command(plan: LaunchPlan, told: str, why: bool, elsewhere: bool) -> None:
    """Print the command that would be run; ``why`` adds the reasons, ``elsewhere`` is a system that is not this one."""
    from dlrun.launch import look_here, prepare

    _check_not_run(plan.mpiexec)
    if told:
        click.echo(f"dlrun: {told}", err=True)
    settled, line = prepare(plan)
    assert settled.launcher
    found = f"{settled.launcher.backend} {settled.launcher.version}".strip()
    reason = f": {settled.launcher.why}" if settled.launcher.why and not settled.missing else ""
    click.echo(f"dlrun: {found}{reason}", err=True)
    for note in settled.notes:
        if not (elsewhere and note == settled.missing):
            click.echo(f"dlrun: {note}", err=True)
    if settled.missing and not elsewhere:
        click.echo(f"  {settled.hint}", err=True)
    click.echo(str(line))
    if why:
        from dlrun.launch.explain import explain

        click.echo("\n" + explain(settled, line, look_here()))


def _check_not_run(mpiexec: str) -> None:
    """Raise DlrunError where what is only to be printed would run a program that came with this folder."""
    from dlrun.errors import DlrunError

    if click.get_current_context().get_parameter_source("mpiexec") != click.core.ParameterSource.DEFAULT_MAP:
        return
    if "/" in mpiexec and Path(mpiexec).resolve().is_relative_to(Path.cwd()):
        why = f"--mpiexec {mpiexec} comes from dlrun.yaml, and only running it tells what it is"
        raise DlrunError(why, "if you trust it, say it yourself: --mpiexec " + mpiexec)


def write_job(plan: LaunchPlan, file: Path, job: Job) -> None:
    """Write a batch script that runs this very launch."""
    from dlrun.errors import DlrunError
    from dlrun.launch.job import SUBMIT, script

    if file.exists() and file.resolve() == Path(plan.program[0]).resolve():
        raise DlrunError(f"--job {file} is the script that the job is to run", "name another file for the batch script")
    text = script(plan, job, [*_said(click.get_current_context()), *plan.program])
    file.write_text(text, encoding="utf-8", errors="surrogateescape")  # the words' very bytes, in any locale
    click.echo(f"dlrun: wrote {file}; submit it: {SUBMIT[job.system]} {shlex.quote(str(file))}", err=True)


def _said(context: click.Context) -> list[str]:
    """Return the options of this command line as words, without those that are about the batch script itself."""
    about = ("job", "as_", "time_", "account", "queue", "image", "volume", "dry_run", "explain")
    said = []
    for option in context.command.params:
        name = option.name or ""
        source = context.get_parameter_source(name)
        if not isinstance(option, click.Option) or name in about or source != click.core.ParameterSource.COMMANDLINE:
            continue
        value = context.params[name]
        if option.is_flag:
            said.append(option.opts[0] if value else option.secondary_opts[0])
        else:
            said += [w for each in (value if option.multiple else [value]) for w in (option.opts[0], str(each))]
    return said
