"""Start a program on many ranks, under whatever launcher the site has, and behave the same under all of them.

``site`` looks around, ``settle`` decides, ``backends`` speak the launchers' dialects, ``process`` acts::

    result = launch(LaunchPlan(("train_dist.py", "--epochs", "2"), ranks=2))
    result.returncode, result.run_dir, result.failure

What people complain of in launchers, and the test that keeps each complaint from being ours:
``tests/launch/test_complaints.py``.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from dlrun.apart.run import Apart
from dlrun.errors import DlrunError
from dlrun.launch.commands import command, spec
from dlrun.launch.mps import served
from dlrun.launch.plan import Command, Host, LaunchPlan
from dlrun.launch.profile import with_profile
from dlrun.launch.settle import settle as _settle
from dlrun.launch.site import Site, look

if TYPE_CHECKING:
    from dlrun.launch.result import Result

__all__ = ["Command", "Host", "LaunchPlan", "launch", "launch_again", "look_here", "prepare"]


# What a run leaves in its folder besides its spec file.
_OF_A_RUN = ("stop", "listens", "failure.json", "rank-*.failure.json", "ranks.json", "launcher.log", "rank-*.log",
             "rank-*.stack", "rank-*.call", "timeline-*.ring", "timeline-*.names")  # fmt: skip


def prepare(plan: LaunchPlan) -> tuple[LaunchPlan, Command]:
    """Return ``plan`` settled for this machine, and the command that :func:`launch` would run for it. Acts on nothing.

    Raises :class:`DlrunError` where the plan cannot be carried out, and names the option.
    """
    site = look(os.environ)
    settled = _settle(replace(plan, run_dir=plan.run_dir or _new_run_dir(Path(plan.cwd))), site)
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
    settled, line = prepare(plan)
    assert settled.launcher
    if settled.missing:
        raise DlrunError(settled.missing, settled.hint)
    say = on_note or (lambda text: None)
    for note in settled.notes:
        say(note)
    with served(settled, look(os.environ), say) as variables:
        return _run(settled, line, variables, on_line, on_note)


def _run(
    settled: LaunchPlan,
    line: Command,
    variables: dict[str, str],
    on_line: Callable[[int, str, str], None] | None,
    on_note: Callable[[str], None] | None,
) -> Result:
    """Run the command; the ranks get these variables besides."""
    from dlrun.launch.process import Run

    run_dir = Path(settled.cwd, settled.run_dir)
    run = Run(settled, on_line, on_note)
    details = spec(settled, look(os.environ), run.home.addresses, run.home.token)
    details["env"] |= variables
    file = Path(settled.cwd, settled.spec_file)
    try:
        run_dir.mkdir(parents=True, exist_ok=True)
        for pattern in _OF_A_RUN:  # of an earlier run in the same folder: its ``stop`` would end this one
            for left in run_dir.glob(pattern):
                left.unlink(missing_ok=True)
        apart = Apart(settled.cwd, run_dir) if settled.apart else None
        details["apart"] = str(apart.place) if apart else ""
        file.touch(0o600)
        file.write_text(json.dumps(details, indent=1))
    except OSError as error:
        run.home.close()
        why = f"cannot make the run directory {run_dir}: {error.strerror}"
        raise DlrunError(why, "start where you may write; of dlrun launch, --log-dir names another") from error
    if not apart:
        return run.run(line, os.environ)
    with apart:
        result = run.run(line, os.environ)
        apart.failed = result.returncode != 0 and not result.interrupted
    return result


def launch_again(plan: LaunchPlan, restarts: int, resume: tuple[str, ...], on_note: Callable[[str], None]) -> Result:
    """Run ``plan``, and up to ``restarts`` times again where a rank failed, each time with the words ``resume`` added.

    Each attempt has a run directory of its own, ``attempt-1`` and so on, inside the job's, and its number in
    ``DLRUN_ATTEMPT``. A job that was told to end is not started again.
    """
    run_dir = plan.run_dir or _new_run_dir(Path(plan.cwd))
    for attempt in range(1, restarts + 2):
        program = plan.program + (resume if attempt > 1 else ())
        env = (*plan.env, ("DLRUN_ATTEMPT", str(attempt)))
        here = f"{run_dir}/attempt-{attempt}"
        result = launch(replace(plan, program=program, run_dir=here, env=env), on_note=on_note)
        if result.failure is None or attempt > restarts:
            break
        on_note(str(result.failure))
        on_note(f"attempt {attempt + 1} of {restarts + 1}")
    return result


def _new_run_dir(cwd: Path) -> str:
    """Return the name of a run directory that is not there yet, as seen from the job's folder ``cwd``."""
    stamp = f"dlrun-runs/{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"
    names = [stamp, *(f"{stamp}-{i}" for i in range(2, 1000))]
    return next(name for name in names if not (cwd / name).exists())
