"""Start a program on many ranks, under whatever launcher the site has, and behave the same under all of them.

``site`` looks around, ``resolve`` decides, ``backends`` speak the launchers' dialects, ``process`` acts::

    result = launch(LaunchPlan(("train_dist.py", "--epochs", "2"), ranks=2))
    result.returncode, result.run_dir, result.failure

What people complain of in launchers, and the test that keeps each complaint from being ours:
``tests/launch/test_complaints.py``.
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Callable
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from dlrun.errors import DlrunError
from dlrun.launch.commands import command, spec
from dlrun.launch.mps import served
from dlrun.launch.plan import Command, Host, LaunchPlan
from dlrun.launch.profile import with_profile
from dlrun.launch.resolve import resolve as _resolve
from dlrun.launch.site import Site, allocated, look
from dlrun.rank import saving

if TYPE_CHECKING:
    from dlrun.launch.result import Result

__all__ = ["Command", "Host", "LaunchPlan", "launch", "launch_again", "look_here", "prepare"]


# What a run leaves in its folder.
_OF_A_RUN = (
    "stop",
    "listens",
    "failure.json",
    "rank-*.failure.json",
    "ranks.json",
    "launcher.log",
    "rank-*.log",
    "rank-*.times",
    "rank-*.stack",
    "rank-*.call",
    "timeline-*.ring",
    "timeline-*.names",
    "spec.json",
)


def prepare(plan: LaunchPlan) -> tuple[LaunchPlan, Command]:
    """Return ``plan`` settled for this machine, and the command that :func:`launch` would run for it. Acts on nothing.

    Raises :class:`DlrunError` where the plan cannot be carried out, and names the option.
    """
    return _prepare(plan, look(os.environ))


def _prepare(plan: LaunchPlan, site: Site) -> tuple[LaunchPlan, Command]:
    settled = _resolve(plan._replace(run_dir=plan.run_dir or new_run_dir(plan)), site)
    settled = with_profile(settled, site.env) if settled.tuned else settled
    return settled, command(settled, site)


def look_here() -> Site:
    """Return what is here, as :func:`prepare` sees it."""
    return look(os.environ)


def launch(
    plan: LaunchPlan,
    on_line: Callable[[int, str, str], None] | None = None,
    on_note: Callable[[str], None] | None = None,
) -> Result:
    """Run ``plan`` and return how it ended.

    What the ranks in ``plan.show`` write goes to this process's stdout and stderr as it comes, or line by line to
    ``on_line(rank, "out" or "err", line)``; ``on_note`` gets what is worth knowing before the start. Everything that
    every rank writes is in ``run_dir/rank-R.log``.
    Raises :class:`DlrunError` where nothing could be started. Call it from the main thread: it handles signals.
    """
    site = look(os.environ)
    settled, line = _prepare(plan, site)
    assert settled.launcher
    if settled.missing:
        raise DlrunError(settled.missing, settled.hint)
    say = on_note or (lambda text: None)
    for note in settled.notes:
        say(note)
    with served(settled, site, say) as variables:
        return _run(settled, line, site, variables, on_line, on_note)


def _run(
    settled: LaunchPlan,
    line: Command,
    site: Site,
    variables: dict[str, str],
    on_line: Callable[[int, str, str], None] | None,
    on_note: Callable[[str], None] | None,
) -> Result:
    """Run the command; the ranks get these variables besides."""
    from dlrun.launch.start import Start

    if settled.sandboxed:
        from dlrun.sandbox.run import Sandbox  # costs 8 ms
    run_dir = Path(settled.cwd, settled.run_dir)
    start = Start(settled)
    try:
        details = spec(settled, site, start.server.addresses, start.server.token)
        details["env"] |= variables
        try:
            _make_empty(run_dir)
            sandbox = Sandbox(settled.cwd, run_dir) if settled.sandboxed else None
            details["sandbox"] = str(sandbox.place) if sandbox else ""
            _write_new(Path(settled.cwd, settled.spec_file), json.dumps(details, indent=1))
            _link_latest(settled)
        except OSError as error:
            why = f"cannot make the run directory {run_dir}: {error.strerror}"
            raise DlrunError(why, "start where you may write; of dlrun launch, --log-dir names another") from error
        with sandbox or nullcontext():
            start.begin(line, os.environ)
            from dlrun.launch.process import Run  # while the ranks start

            result = Run(settled, start, on_line, on_note).run()
            if sandbox:
                sandbox.failed = result.returncode != 0 and not result.interrupted
    finally:
        start.close()
        saving.clear(str(run_dir))
    return result


def _make_empty(run_dir: Path) -> None:
    """Make the folder, or empty it of what an earlier run has left: its ``stop`` would end this one."""
    run_dir.parent.mkdir(parents=True, exist_ok=True)
    try:
        run_dir.mkdir()
    except FileExistsError:
        for pattern in _OF_A_RUN:
            for left in run_dir.glob(pattern):
                left.unlink(missing_ok=True)


def launch_again(
    plan: LaunchPlan,
    restarts: int,
    resume: tuple[str, ...],
    on_note: Callable[[str], None],
    least: int | None = None,
    hosts: Callable[[], tuple[Host, ...]] = tuple,
) -> Result:
    """Run ``plan``, and up to ``restarts`` times again where a rank failed, each time with the words ``resume`` added.

    Where a host was lost, the next attempt does without it, with as many ranks as the others take, ``least`` or more.
    ``hosts`` reads the hosts anew before each attempt; one that was lost is back once they are not the same as then.

    Each attempt has a run directory of its own, ``attempt-1`` and so on, inside the job's, and its number in
    ``DLRUN_ATTEMPT``. A job that was told to end is not started again.
    """
    run_dir = plan.run_dir or new_run_dir(plan)
    if least:
        plan = plan._replace(ranks=prepare(plan)[0].ranks)  # as many as the hosts take, where nobody says
        if least > (plan.ranks or 1):
            why = f"there are to be {plan.ranks} ranks, and {least} or more"
            raise DlrunError(why, "give the lower number first: -n 4:8, or --min-ranks 4 -n 8")
    left = _Left(plan, least, allocated(os.environ) if least and not plan.hosts else ())
    for attempt in range(1, restarts + 2):
        program = plan.program + (resume if attempt > 1 else ())
        env = (*plan.env, ("DLRUN_ATTEMPT", str(attempt)))
        here = f"{run_dir}/attempt-{attempt}"
        ranks, where = left.plan(hosts() or plan.hosts) if least else (plan.ranks, plan.hosts)
        result = launch(
            plan._replace(program=program, run_dir=here, env=env, ranks=ranks, hosts=where), on_note=on_note
        )
        if result.failure is None or attempt > restarts:
            break
        on_note(str(result.failure))
        if least and result.failure.lost:
            left.without(result.failure.host)
        on_note(f"attempt {attempt + 1} of {restarts + 1}")
    return result


class _Left:
    """The hosts that are left to a job of at most ``plan.ranks`` ranks, and at least ``least``.

    Where none are named they are those of the batch job, ``given``, which a launcher is told once some are lost.
    """

    def __init__(self, plan: LaunchPlan, least: int | None, given: tuple[str, ...] = ()) -> None:
        self.most, self.least, self.per_node = plan.ranks or 1, least or 1, plan.per_node
        self.even = -(-self.most // max(len(plan.hosts or given), 1))
        self.given = tuple(map(Host, given))
        self.named: tuple[Host, ...] = self.given
        self.lost: set[str] = set()

    def without(self, host: str) -> None:
        """Note that a host was lost, by the name that it has for itself."""
        self.lost |= {host, host.partition(".")[0]}

    def plan(self, named: tuple[Host, ...]) -> tuple[int, tuple[Host, ...]]:
        """Return how many ranks there can be, and on which of these hosts."""
        named = named or self.given
        if named != self.named:
            self.named, self.lost = named, set()
        hosts = tuple(host for host in named if not {host.name, host.name.partition(".")[0]} & self.lost)
        places = sum(host.slots or self.per_node or self.even for host in hosts) if named else self.most
        if places < self.least:
            raise DlrunError(
                f"the hosts that are left take {places} ranks, and the job needs {self.least}",
                "name others, or give -n fewer, as 2:8",
            )
        return min(self.most, places), hosts if self.lost or named != self.given else ()


def new_run_dir(plan: LaunchPlan) -> str:
    """Return the name of a run directory below ``plan.log_dir`` that is not there yet, as seen from the job's folder.

    It holds the host and the process: other jobs may begin in this second, and see the same folder.
    """
    host = socket.gethostname().partition(".")[0]
    stamp = f"{plan.log_dir}/{time.strftime('%Y%m%d-%H%M%S')}-{host}-{os.getpid()}"
    names = [stamp, *(f"{stamp}-{i}" for i in range(2, 1000))]
    return next(name for name in names if not Path(plan.cwd, name).exists())


def _write_new(file: Path, text: str) -> None:
    """Write a file that was not there, and no link, for this user alone: what it holds lets others into the job.

    Raises ``FileExistsError`` where somebody has just put one there.
    """
    with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600), "w") as new:
        new.write(text)


def _link_latest(plan: LaunchPlan) -> None:
    """Have ``latest`` beside a run directory of our own lead to it."""
    runs = Path(plan.cwd, plan.log_dir).absolute()
    own = Path(plan.cwd, plan.run_dir).absolute()
    if not own.is_relative_to(runs) or own == runs:
        return
    name = own.relative_to(runs).parts[0]
    with suppress(OSError):  # of a folder that holds something else by that name, or of a file system without links
        new = runs / f".latest-{name}"
        new.symlink_to(name)
        try:
            new.replace(runs / "latest")
        finally:
            new.unlink(missing_ok=True)
