"""``dlrun verify``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from dlrun.cli.paths import NewFile, NewFolder
from dlrun.errors import DlrunError

if TYPE_CHECKING:
    from dlrun.verify import Check, Job
    from dlrun.verify.runs import Task
    from dlrun.verify.trace import Run

RUNS = 9  # that a verification makes, if all can be made


class NotJudgedError(DlrunError):
    """Nothing can be said of the port: the serial script fails by itself, say."""

    exit_code = 2


@click.command()
@click.argument("serial", metavar="TRAIN.PY", type=click.Path(path_type=Path))
@click.argument("port", metavar="TRAIN_DIST.PY", required=False, type=click.Path(path_type=Path))
@click.argument("args", nargs=-1)
@click.option("-n", "--ranks", default=2, show_default=True, help="How many ranks prove it.")
@click.option("--steps", default=6, show_default=True, help="Optimizer steps per run.")
@click.option("--seed", type=int, help="Seed what the script does not seed itself.")
@click.option("--stall", default=120.0, show_default=True, help="Seconds without progress that count as a hang.")
@click.option("--budget", default=60.0, show_default=True, help="Seconds for going on to the end of the script.")
@click.option("--json", "as_json", is_flag=True, help="Print the verdict as JSON.")
@click.option("--html", type=NewFile(), metavar="FILE", help="Write a page: the checks, and where the runs diverge.")
@click.option("--keep", type=NewFolder(), metavar="FOLDER", help="Keep the traces of the runs here.")
def command(
    serial: Path,
    port: Path | None,
    args: tuple[str, ...],
    ranks: int,
    steps: int,
    seed: int | None,
    stall: float,
    budget: float,
    as_json: bool,
    html: Path | None,
    keep: Path | None,
) -> None:
    """Prove that a port does what its serial script does.

    Runs both for a few optimizer steps: the port on 1 rank, on n ranks that repeat the serial run, and on n ranks that
    share the data. Neither script is changed, and files they write go to a scratch folder.
    For PyTorch, Keras (on TensorFlow) and TensorFlow, sessions and Estimators included.

    \b
      dlrun verify train.py train_dist.py
      dlrun verify train.py train_dist.py -n 4 -- --batch-size 32

    Exit code 0 means proved, 1 not proved, 2 that nothing was judged: the serial script fails by itself, say; 3 proved
    as far as it ran: what shows, saves or decides and was not reached is listed.
    """
    from dlrun.verify import Job

    if port is None:
        made = serial.with_name(f"{serial.stem}_dist.py")
        raise click.UsageError(f"which port? dlrun port {serial} writes one: dlrun verify {serial} {made}")
    raise SystemExit(prove(Job(serial, port, args, ranks, steps, seed, stall, budget), as_json, html, keep))


def prove(job: Job, as_json: bool = False, html: Path | None = None, keep: Path | None = None) -> int:
    """Verify, show the checks as they come (or all as JSON, and all on a page), and return the exit code.

    Raises ``NotJudgedError`` where nothing was judged.
    """
    import json
    import shutil
    import tempfile
    import threading

    from dlrun.progress import Progress
    from dlrun.verify import Verdict, verify
    from dlrun.verify.report import conclusion, line
    from dlrun.verify.runs import execute

    folder = keep or Path(tempfile.mkdtemp(prefix="dlrun-verify-"))
    progress, lock, begun, done = Progress(RUNS), threading.Lock(), 0, 0
    runs: dict[str, Run] = {}

    def act(task: Task) -> Run:
        nonlocal begun, done
        with lock:
            begun += 1
            if begun == 1 and not as_json:  # the job was not refused
                click.echo(f"{job.serial} and {job.port}: up to {job.steps} steps on 1 and {job.ranks} ranks\n")
            progress.at(min(done, RUNS - 1), f"run {task.name}")
        run = execute(task)
        with lock:
            done += 1
            runs[task.name] = run
        return run

    def say(check: Check) -> None:
        progress.clear()
        if not as_json:
            click.echo(line(check))

    try:
        verdict = verify(job, folder, say, act)
    except DlrunError as error:
        if as_json:
            click.echo(json.dumps({**Verdict(()).as_dict(), "error": error.message, "hint": error.hint}, indent=2))
        raise NotJudgedError(error.message, error.hint) from error
    finally:
        progress.clear()
        if keep is None:
            shutil.rmtree(folder, ignore_errors=True)
    if as_json:
        click.echo(json.dumps(verdict.as_dict(), indent=2))
    else:
        written = f"\nwrote {html}" if html else ""
        click.echo("\n" + conclusion(verdict, str(job.serial), str(job.port), job.ranks) + written)
    if html:
        from dlrun.verify.page import page

        html.write_text(page(job, verdict, runs), encoding="utf-8", errors="replace")
    return verdict.exit_code
