"""``dlrun launch``."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from dlrun.launch.plan import Host
    from dlrun.launch.process import Result


@click.command(context_settings={"allow_interspersed_args": False, "ignore_unknown_options": False})
@click.option("-n", "--ranks", type=int, help="How many ranks; inside a batch job the job's own number.")
@click.option("--per-node", "--ppn", type=int, help="Ranks on each node.")
@click.option("--hosts", help="Run on these hosts: n1,n2 or n1:4,n2:2 (ranks on each).")
@click.option("--cores", type=int, help="Cores for each rank; an equal share of the node unless said.")
@click.option("--gpus", type=int, help="GPUs for each rank; one unless said.")
@click.option("--bind/--no-bind", default=True, help="Give each rank cores of its own (the default), or none.")
@click.option("--backend", default="auto", help="auto, mpich, openmpi, srun, aprun, pals, intel, jsrun, flux.")
@click.option("--mpiexec", default="", help="Use this launcher program.")
@click.option("--env", multiple=True, metavar="NAME=VALUE", help="Set a variable on every rank.")
@click.option("--show", default="0", help="The ranks whose output is shown, as 0,7 or all.")
@click.option("--tuned/--no-tuned", default=True, help="Use what dlrun tune found for such a job (the default).")
@click.option("--log-dir", default="", help="Where the ranks' logs go; dlrun-runs/<time> unless said.")
@click.option("--dry-run", is_flag=True, help="Print the command that would be run, and run nothing.")
@click.option("-m", "--module", is_flag=True, help="SCRIPT names a module, as in python -m.")
@click.argument("script")
@click.argument("args", nargs=-1, type=click.UNPROCESSED)
def command(script: str, args: tuple[str, ...], dry_run: bool, hosts: str | None, env: tuple[str, ...], show: str,
            log_dir: str, **options: object) -> None:  # fmt: skip
    """Run SCRIPT on many ranks, under whatever launcher is here.

    Rank 0's output is shown as it comes; every rank's is in the run directory. A rank that fails ends the job, and
    its exit code (128 + signal) is dlrun's.

    \b
      dlrun launch -n 2 train_dist.py --epochs 3
      dlrun launch -n 64 --dry-run train_dist.py
    """
    from dlrun.launch import LaunchPlan, launch, prepare

    plan = LaunchPlan(
        (script, *args),
        hosts=_hosts(hosts),
        env=tuple(_variable(text) for text in env),
        show=_ranks(show, options["ranks"]),
        run_dir=log_dir,
        **options,  # type: ignore[arg-type]
    )
    if dry_run:
        settled, line = prepare(plan)
        assert settled.launcher
        found = f"{settled.launcher.backend} {settled.launcher.version}".strip()
        why = f": {settled.launcher.why}" if settled.launcher.why else ""
        click.echo(f"dlrun: {found}{why}", err=True)
        for note in settled.notes:
            click.echo(f"dlrun: {note}", err=True)
        if not settled.launcher.why:
            click.echo(f"  {settled.hint}", err=True)
        click.echo(str(line))
        return
    for note in prepare(plan)[0].notes:
        if note.startswith("tuned "):
            click.echo(f"dlrun: {note}", err=True)
    result = launch(plan)
    _report(result)
    sys.exit(result.returncode)


def _report(result: Result) -> None:
    """Say in one line how the job ended, where that was not simply well; then where to look."""
    failure = result.failure
    if failure:
        click.echo(f"dlrun: {failure}", err=True)
        others = f"; the other {failure.others} were stopped" if failure.others else ""
        click.echo(f"  exit code {failure.code}{others}; log: {result.run_dir}/rank-{failure.rank}.log", err=True)
        for line in failure.tail:
            click.echo(f"  | {line}", err=True)
    elif result.serial:
        click.echo("dlrun: the ranks never talked to each other: these were copies of a serial script", err=True)
        click.echo("  make it a data-parallel one first: dlrun port", err=True)


def _hosts(text: str | None) -> tuple[Host, ...]:
    from dlrun.errors import DlrunError
    from dlrun.launch import Host

    hosts = []
    for entry in text.split(",") if text else []:
        name, _, slots = entry.partition(":")
        if not name or (slots and not slots.isdigit()):
            raise DlrunError(f"--hosts {text}: {entry!r} is no host", "write n1,n2 or n1:4,n2:2")
        hosts.append(Host(name, int(slots) if slots else None))
    return tuple(hosts)


def _variable(text: str) -> tuple[str, str]:
    from dlrun.errors import DlrunError

    name, equals, value = text.partition("=")
    if not name or not equals:
        raise DlrunError(f"--env {text} has no value", "write --env NAME=VALUE")
    return name, value


def _ranks(text: str, ranks: object) -> tuple[int, ...]:
    from dlrun.errors import DlrunError

    if text == "all":
        return tuple(range(ranks)) if isinstance(ranks, int) else (0,)
    if not all(part.strip().isdigit() for part in text.split(",")):
        raise DlrunError(f"--show {text}: these are no ranks", "write --show 0,7 or --show all")
    return tuple(int(part) for part in text.split(","))
