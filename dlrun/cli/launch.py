"""``dlrun launch``."""

from __future__ import annotations

import shlex
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dlrun.cli.defaults import WithDefaults, from_files
from dlrun.cli.paths import NewFile
from dlrun.cli.values import shown, variable, words

if TYPE_CHECKING:
    from dlrun.launch.job import Job
    from dlrun.launch.plan import LaunchPlan
    from dlrun.launch.result import Result


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
    help="The same, and they run on a GPU at once, by NVIDIA's multi-process service, and not in turns.",
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
@click.option("--env", multiple=True, metavar="NAME=VALUE", help="Set a variable on every rank.")
@click.option("--show", default="0", show_default=True, metavar="RANKS", help="Whose output is shown: 0,7 or all.")
@click.option("--log-dir", default="", metavar="FOLDER", help="Where the logs go; dlrun-runs/<time> unless said.")
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
    help="Tell of a standstill only, or end the job, too.",
)
@click.option(
    "--max-restarts", type=click.IntRange(0), default=0, help="When a rank fails start again, up to so many times."
)
@click.option("--resume", default="", metavar="ARGS", help="Add these when starting again, as '--resume last.pt'.")
@click.option(
    "--silence",
    type=int,
    default=20,
    show_default=True,
    help="Seconds after which a node that does not answer is gone.",
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
@click.argument("script")
@click.argument("args", nargs=-1, type=click.UNPROCESSED)
def command(check: bool, dry_run: bool, explain: bool, as_: str, job: Path | None, time_: str, account: str,
            queue: str, image: str, volume: str, max_restarts: int, resume: str, timeline: Path | None,
            timeline_steps: str | None, **options: Any) -> None:  # fmt: skip
    """Run a script on many ranks, under the launcher that is here.

    Rank 0's output is shown as it comes; every rank's is in the run directory. A rank that fails ends the job, and
    its exit code (128 + signal) is dlrun's.

    \b
      dlrun launch -n 2 train_dist.py --epochs 3
      dlrun launch -n 64 --dry-run train_dist.py
      dlrun launch -n 64 --ppn 8 --as slurm --job train.sh train_dist.py
    """
    from dlrun.launch import launch, launch_again

    if as_ and options["backend"] == "auto" and not job:
        options["backend"] = _backend(as_)
    told, origins = from_files(click.get_current_context(), options["env"])
    options["env"] = (*options["env"], *_recording(timeline, timeline_steps))
    plan = _plan(**options, origins=origins)
    again = words("--resume", resume)
    if job:
        from dlrun.launch.job import Job

        _write_job(plan, job, Job(as_ or "slurm", time_, account, queue, image, volume))
    elif dry_run or explain or as_:
        _print(plan, told, explain or bool(as_), elsewhere=bool(as_))
    else:

        def note(text: str) -> None:
            click.echo(f"dlrun: {text}", err=True)

        if told:
            note(told)
        if check:
            from dlrun.launch.check import check as average

            note(average(plan))
        result = launch_again(plan, max_restarts, again, note) if max_restarts > 0 else launch(plan, None, note)
        _report(result)
        if timeline:
            _show_timeline(result, timeline)
        sys.exit(result.returncode)


def _plan(script: str, args: tuple[str, ...], hosts: str, hostfile: str, env: tuple[str, ...], show: str,
          log_dir: str, native: str, **options: Any) -> LaunchPlan:  # fmt: skip
    """Return the plan that the options spell."""
    from dlrun.errors import DlrunError
    from dlrun.launch import LaunchPlan
    from dlrun.launch.hosts import hostfile as read
    from dlrun.launch.hosts import hosts as parse
    from dlrun.launch.plan import program

    if hosts and hostfile:
        raise DlrunError("--hosts and --hostfile are both given", "give one of them")
    return LaunchPlan(
        program(script, *args, module=options["module"]),
        hosts=read(hostfile) if hostfile else parse(hosts),
        env=tuple(variable(text) for text in env),
        show=shown(show),
        run_dir=log_dir,
        native=words("--native", native),
        **options,
    )


def _backend(system: str) -> str:
    """Return the launcher that a batch system comes with."""
    from dlrun.errors import DlrunError

    backends = {"slurm": "srun", "pbs": "pals", "alps": "aprun", "cobalt": "aprun", "lsf": "jsrun", "flux": "flux"}
    if system == "kubernetes":
        raise DlrunError("--as kubernetes: there is no command to show, a job is a file", "write it: --job FILE")
    if system not in backends:
        raise DlrunError(f"--as {system}: no batch system of this name", f"known are {', '.join(backends)}")
    return backends[system]


def _print(plan: LaunchPlan, told: str, why: bool, elsewhere: bool) -> None:
    """Print the command that would be run; ``why`` adds the reasons, ``elsewhere`` is a system that is not this one."""
    from dlrun.launch import look_here, prepare

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


def _write_job(plan: LaunchPlan, file: Path, job: Job) -> None:
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


def _recording(timeline: Path | None, steps: str | None) -> tuple[str, ...]:
    """Return the variables that make every rank record."""
    from dlrun.cli.timeline import window

    if steps and not timeline:
        raise click.UsageError("--timeline-steps needs --timeline FILE")
    if not timeline:
        return ()
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
