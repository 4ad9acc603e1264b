"""``dlrun launch``."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dlrun.cli.defaults import WithDefaults, from_files
from dlrun.cli.dry_run import backend_of, print_command, write_job
from dlrun.cli.paths import NewFile
from dlrun.cli.values import shown, variable, words

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from dlrun.launch.plan import Host, LaunchPlan
    from dlrun.launch.result import Result


_DAY_S = 86400


def a_file(context: click.Context, parameter: click.Parameter, text: str) -> list[CompletionItem]:
    """Have the shell complete ``text`` to the name of a file."""
    from click.shell_completion import CompletionItem

    return [CompletionItem(text, type="file")]


@click.command(cls=WithDefaults, context_settings={"allow_interspersed_args": False})
@click.option("-n", "--ranks", type=int, help="How many ranks; else what the hosts take, or a batch job's number.")
@click.option("--per-node", "--ppn", type=int, help="Ranks on each node.")
@click.option("--hosts", default="", metavar="HOSTS", help="Run on these: n1,n2 or n1:4,n2:2 (ranks on each).")
@click.option("--hostfile", default="", metavar="FILE", help="The same, one on each line: n1, n1:4, n1 slots=4.")
@click.option("--cores", type=int, help="Cores for each rank; an equal share of the node unless said.")
@click.option("--gpus", type=int, help="GPUs for each rank; one unless said.")
@click.option("--share-gpus", is_flag=True, envvar="DLRUN_SHARE_GPUS", help="Start more ranks than there are GPUs.")
@click.option(
    "--mps",
    is_flag=True,
    help="The same, and they run on a GPU at once, by NVIDIA's multi-process service, and not in time slices.",
)
@click.option("--bind/--no-bind", default=True, help="Give each rank cores of its own (the default), or bind none.")
@click.option(
    "--backend",
    "--launcher",
    default="auto",
    metavar="NAME",
    show_default=True,
    help="Launcher: mpich, openmpi, srun, aprun, pals, intel, jsrun, flux, spectrum; or the one here.",
)
@click.option("--mpiexec", default="", metavar="PROGRAM", help="Use this launcher program.")
@click.option("--native", default="", metavar="WORDS", help="More words for the launcher itself, as '--mpi=pmix'.")
@click.option(
    "--env",
    multiple=True,
    metavar="NAME=VALUE",
    help="Set a variable on every rank. PYTHONHASHSEED is 0 where nothing sets it: sets have one order on all ranks.",
)
@click.option(
    "--env-file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Set the variables of its NAME=VALUE lines; --env comes before them.",
)
@click.option("--show", default="0", show_default=True, metavar="RANKS", help="Whose output is shown: 0,7 or all.")
@click.option("--tee", type=NewFile(), metavar="FILE", help="Write what is shown to FILE, too.")
@click.option("--log-dir", default="", metavar="FOLDER", help="Each run has a folder here; in dlrun-runs unless said.")
@click.option("--tuned/--no-tuned", default=True, help="Use the settings that dlrun tune found, where they fit.")
@click.option("--timeline", type=NewFile(), metavar="FILE", help="Record what every rank does; the trace goes to FILE.")
@click.option("--timeline-steps", metavar="A:B", help="Record only from step A up to step B.")
@click.option("--start-timeout", type=float, help="Seconds in which all ranks must have started; 120, more for many.")
@click.option("--save-time", type=float, default=60.0, show_default=True, help="Seconds to save in, when told to stop.")
@click.option(
    "--stall-timeout", type=float, default=240.0, show_default=True, help="Seconds without progress until that is told."
)
@click.option(
    "--on-stall",
    type=click.Choice(["report", "abort"]),
    default="report",
    show_default=True,
    help="Tell of a stall only, or end the job, too.",
)
@click.option(
    "--max-restarts", type=click.IntRange(0), default=0, help="When a rank fails start again, up to so many times."
)
@click.option(
    "--min-ranks",
    type=click.IntRange(1),
    help="With --max-restarts: when a host is lost, go on with what the others take, so many or more (-n 4:8).",
)
@click.option("--resume", default="", metavar="ARGS", help="Add these when starting again, as '--resume last.pt'.")
@click.option(
    "--silence",
    type=int,
    default=20,
    show_default=True,
    help="Seconds after which a node that does not answer is gone.",
)
@click.option(
    "--debug",
    type=click.IntRange(0),
    metavar="RANK",
    help="breakpoint() and pdb work on this rank: it has the terminal, the others wait, no time limit ends them.",
)
@click.option("--torchrun", is_flag=True, help="Set what torchrun sets, for a script of torch.distributed.")
@click.option("--check", is_flag=True, help="First average known numbers over these very ranks, and compare.")
@click.option("--dry-run", is_flag=True, help="Print the command that would be run, and run nothing.")
@click.option("--explain", is_flag=True, help="Like --dry-run, with a reason for each word and where each rank runs.")
@click.option(
    "--as", "as_", default="", metavar="SYSTEM", help="Like --explain, as if on slurm, pbs, alps, cobalt, lsf or flux."
)
@click.option("--job", type=NewFile(), metavar="FILE", help="Write a batch script instead; --as kubernetes and others.")
@click.option("--time", "time_", default="1:00:00", show_default=True, metavar="H:MM:SS", help="For --job: how long.")
@click.option("--account", default="", help="For --job: whom to charge.")
@click.option("--queue", default="", help="For --job: the queue or partition.")
@click.option("--image", default="", help="For --job --as kubernetes: the container, with dlrun, an MPI and sshd.")
@click.option("--volume", default="", help="For --job --as kubernetes: the claim on a volume that all pods can write.")
@click.option("--ddlrun", is_flag=True, expose_value=False, help="What follows are the options of IBM's ddlrun.")
@click.option("-m", "--module", is_flag=True, help="SCRIPT names a module, as in python -m.")
@click.argument("script", shell_complete=a_file)
@click.argument("args", nargs=-1, type=click.UNPROCESSED)
def command(
    check: bool,
    dry_run: bool,
    explain: bool,
    as_: str,
    job: Path | None,
    time_: str,
    account: str,
    queue: str,
    image: str,
    volume: str,
    max_restarts: int,
    resume: str,
    min_ranks: int | None,
    timeline: Path | None,
    timeline_steps: str | None,
    **options: Any,
) -> None:
    """Run a script on many ranks, under the launcher that is here.

    Rank 0's output is shown as it comes; every rank's is in the run directory. A rank that fails ends the job, and
    its exit code (128 + signal) is dlrun's.

    \b
      dlrun launch -n 2 train_dist.py --epochs 3
      dlrun launch -n 64 --dry-run train_dist.py
      dlrun launch -n 64 --ppn 8 --as slurm --job train.sh train_dist.py
    """
    from dlrun.launch import new_run_dir

    context = click.get_current_context()
    told, origins = from_files(context, options["env"])
    if not job and context.get_parameter_source("as_") == click.core.ParameterSource.DEFAULT_MAP:
        as_ = ""  # the site's batch system, for --job
    if as_ and options["backend"] == "auto" and not job:
        options["backend"] = backend_of(as_)
    options["env"] = (*options["env"], *_recording(timeline, timeline_steps))
    plan = plan_of(**options, origins=origins)
    again = words("--resume", resume)
    if job:
        from dlrun.launch.job import Job

        write_job(plan, job, Job(as_ or "slurm", time_, account, queue, image, volume))
    elif dry_run or explain or as_:
        print_command(plan, told, explain or bool(as_), elsewhere=bool(as_))
    else:
        if told:
            _note(told)
        plan = plan._replace(run_dir=new_run_dir(plan))
        if check:
            from dlrun.launch.check import check as average

            _note(average(plan))
        named = partial(_hosts, options["hosts"], options["hostfile"])
        result = _run(plan, max_restarts, again, min_ranks, named)
        _report(result)
        if timeline:
            _show_timeline(result, timeline)
        sys.exit(result.returncode)


def _run(
    plan: LaunchPlan,
    restarts: int,
    again: tuple[str, ...],
    least: int | None,
    hosts: Callable[[], tuple[Host, ...]],
) -> Result:
    """Run the plan, and again where it fails, so often."""
    from dlrun.launch import launch, launch_again

    if plan.tee:
        Path(plan.tee).write_bytes(b"")
    if least and not restarts:
        _note(f"--min-ranks {least} counts with --max-restarts alone: this job is not started again")
    if restarts:
        return launch_again(plan, restarts, again, _note, least, hosts)
    return launch(plan, None, _note)


def _note(text: str) -> None:
    click.echo(f"dlrun: {text}", err=True)


def plan_of(
    script: str,
    args: tuple[str, ...],
    hosts: str,
    hostfile: str,
    env: tuple[str, ...],
    show: str,
    log_dir: str,
    native: str,
    debug: int | None,
    tee: Path | None,
    env_file: Path | None,  # its variables are among ``env``
    **options: Any,
) -> LaunchPlan:
    """Return the plan that the options spell."""
    from dlrun.errors import DlrunError
    from dlrun.launch import LaunchPlan
    from dlrun.launch.plan import program

    if debug is not None:
        options["stall_timeout"] = float("inf")
        env = (f"DL_COMM_TIMEOUT_S={_DAY_S}", *env)
    if hosts and hostfile:
        raise DlrunError("--hosts and --hostfile are both given", "give one of them")
    return LaunchPlan(
        program(script, *args, module=options["module"]),
        hosts=_hosts(hosts, hostfile),
        env=tuple(variable(text) for text in env),
        show=shown(show) if debug is None else (debug,),
        log_dir=log_dir or "dlrun-runs",
        tee=str(tee) if tee else "",
        native=words("--native", native),
        input=0 if debug is None else debug,
        **options,
    )


def _hosts(hosts: str, hostfile: str) -> tuple[Host, ...]:
    """Return the hosts that are named, in the file as it is now."""
    if not hosts and not hostfile:
        return ()
    from dlrun.launch.hosts import hostfile as read
    from dlrun.launch.hosts import hosts as parse

    return read(hostfile) if hostfile else parse(hosts)


def _recording(timeline: Path | None, steps: str | None) -> tuple[str, ...]:
    """Return the variables that make every rank record."""
    if steps and not timeline:
        raise click.UsageError("--timeline-steps needs --timeline FILE")
    if not timeline:
        return ()
    from dlrun.cli.timeline import window

    first, last = window(steps) if steps else (0, 0)
    return ("DL_COMM_TIMELINE=run", *([f"DL_COMM_TIMELINE_STEPS={first}:{last}"] if steps else []))


def _show_timeline(result: Result, file: Path) -> None:
    from dlrun.cli.timeline import show
    from dlrun.errors import DlrunError

    try:
        show(result.run_dir, file, None)
    except DlrunError as error:
        error.show()
    else:
        click.echo(f"dlrun: wrote {file}; ui.perfetto.dev opens it", err=True)


def _report(result: Result) -> None:
    """Say in one line how the job ended, where that was not simply well; then where to look."""
    failure = result.failure
    if failure:
        click.echo(f"dlrun: {failure}", err=True)
        count = failure.others
        others = f"; the other {count} were stopped" if count > 1 else "; the other was stopped" if count else ""
        click.echo(f"  exit code {failure.code}{others}; log: {result.run_dir}/rank-{failure.rank}.log", err=True)
        if failure.hint:
            click.echo(f"  {failure.hint}", err=True)
        for line in failure.tail:
            click.echo(f"  | {line}", err=True)
    elif result.interrupted and result.returncode > 128:
        name = signal.Signals(result.returncode - 128).name
        click.echo(f"dlrun: {name} ended the job (exit code {result.returncode}); logs: {result.run_dir}", err=True)
    elif result.serial:
        click.echo("dlrun: the ranks never talked to each other: these were copies of a serial script", err=True)
        click.echo("  make it a data-parallel one first: dlrun port", err=True)
