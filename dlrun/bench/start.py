"""What `dlrun launch` adds to a start: the bare launcher and dlrun start a script that prints a line, interleaved."""

from __future__ import annotations

import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from dlrun.errors import DlrunError
from dlrun.launch import LaunchPlan, look_here, prepare
from dlrun.launch.backends import BACKENDS

_SCRIPT = "print('up')\n"
_TAKES_N = ("mpich", "openmpi", "intel", "spectrum", "srun", "aprun")  # a number of ranks as `-n 2`


class Start(NamedTuple):
    """Medians of some starts: seconds from the start to the last process's end, and the processor time of all."""

    seconds: float
    processor: float


class Starts(NamedTuple):
    """Of ``ranks`` ranks, ``runs`` times each: the bare launcher, called ``launcher``, and ``dlrun launch``."""

    launcher: str
    ranks: int
    runs: int
    bare: Start
    dlrun: Start


def measure(ranks: int, mpiexec: str, runs: int, on_run: Callable[[int], None]) -> Starts:
    """Start ``ranks`` ranks so often each way; raises :class:`DlrunError` where they do not start."""
    site = look_here()
    with tempfile.TemporaryDirectory(prefix="dlrun-start-") as folder:
        script = Path(folder, "prints.py")
        script.write_text(_SCRIPT)
        plan, _ = prepare(LaunchPlan((str(script),), ranks, mpiexec=mpiexec, cwd=folder))
        assert plan.launcher
        if plan.missing:
            raise DlrunError(plan.missing, plan.hint)
        if plan.launcher.backend not in _TAKES_N:
            raise DlrunError(f"how {plan.launcher.backend} starts ranks by itself is not known here")
        env = {**os.environ, **BACKENDS[plan.launcher.backend].env(plan, site)[0]}
        bare = [plan.launcher.path, "-n", str(ranks), sys.executable, str(script)]
        ours = [sys.executable, "-m", "dlrun", "launch", "-n", str(ranks), "--mpiexec", plan.launcher.path, str(script)]
        pairs = []
        for number in range(runs):
            on_run(number)
            pairs.append((_once(bare, folder, env), _once(ours, folder, env)))
    launcher = f"{plan.launcher.backend} {plan.launcher.version}".strip()
    return Starts(launcher, ranks, runs, *(_median(list(way)) for way in zip(*pairs, strict=True)))


def table(starts: Starts) -> str:
    """Return the figures for people, in ms."""
    bare, ours = starts.bare, starts.dlrun
    more = Start(ours.seconds - bare.seconds, ours.processor - bare.processor)
    rows = ((starts.launcher, bare), ("dlrun launch", ours), ("more", more))
    width = max(len(name) for name, _ in rows)
    head = f"start of {starts.ranks} ranks that print a line, medians of {starts.runs} starts each way, interleaved"
    lines = [f"{name:{width}}  {1e3 * one.seconds:9.0f}  {1e3 * one.processor:12.0f}" for name, one in rows]
    return "\n".join([head, "", f"{'':{width}}  {'ms':>9}  {'processor ms':>12}", *lines])


def _once(line: Sequence[str], folder: str, env: dict[str, str]) -> Start:
    """Run the line once. What it prints is not looked at: some launchers lose a word on a busy machine."""
    before, begin = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run(line, cwd=folder, env=env, capture_output=True, text=True, check=False)
    seconds, after = time.perf_counter() - begin, resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        raise DlrunError(f"{' '.join(line)} ended with exit code {done.returncode}", done.stderr.strip())
    return Start(seconds, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)


def _median(starts: list[Start]) -> Start:
    return Start(*map(statistics.median, zip(*starts, strict=True)))
