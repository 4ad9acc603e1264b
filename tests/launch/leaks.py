"""Many launches, and what they leave: `python tests/launch/leaks.py 1000`.

In turn a job ends well, fails, is told to end, and loses the `dlrun launch` that started it, under each MPI. The jobs
of this process are launched from Python, so that its own files and threads count, too. The exit code is 1 where
anything is left: processes, open files, files in /dev/shm or TMPDIR, hidden files in the run directories.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import astuple, dataclass
from pathlib import Path

from failures import running_in
from launchers import LAUNCHERS

from dlrun.launch import LaunchPlan, launch
from dlrun.rank.proc import unmapped

TRAINS = """
import os, signal, sys
import numpy as np
import dl_comm as dl
dl.init()
how, gradients = sys.argv[1], [np.ones(1000, np.float32)]
for step in range(100_000):
    dl.gradients(gradients)
    if step == 3 and dl.get_rank() == 0:
        print("up", flush=True)
    if step == 3 and dl.get_rank() == 1 and how == "exception":
        raise ValueError
    if step == 3 and dl.get_rank() == 1 and how == "SIGKILL":
        os.kill(os.getpid(), signal.SIGKILL)
    if step == 9 and how == "well":
        break
dl.finalize()
"""
FROM_PYTHON = {"well": 0, "exception": 1, "SIGKILL": 137}
OF_DLRUN = {"SIGTERM": 143, "SIGINT": 130, "SIGKILL": -9}


@dataclass(frozen=True)
class Left:
    """What there is besides the program itself."""

    files_open: int
    threads: int
    running: tuple[str, ...]
    shared: tuple[str, ...]
    temporary: tuple[str, ...]
    hidden: tuple[str, ...]


def look(folder: Path, shared: set[str]) -> Left:
    """Return what is left of jobs in ``folder``; ``shared`` was in /dev/shm before. What ends has 10 s for it."""
    deadline = time.monotonic() + 10
    while (running := running_in(folder)) and time.monotonic() < deadline:
        time.sleep(0.05)
    memory = {str(path) for path in Path("/dev/shm").iterdir()} - shared
    return Left(
        len(list(Path("/proc/self/fd").iterdir())),
        threading.active_count(),
        tuple(running),
        tuple(sorted(unmapped(memory))),
        tuple(str(path) for path in Path(folder, "tmp").iterdir()),
        tuple(str(path) for path in folder.glob("runs/*/.*")),
    )


def run(how: str, folder: Path, mpiexec: str) -> int:
    """Launch from Python a job that ends so; return its exit code."""
    words = (str(folder / "trains.py"), how)
    plan = LaunchPlan(words, ranks=2, mpiexec=mpiexec, cwd=str(folder), log_dir="runs")
    return launch(plan, on_line=lambda *_: None).returncode


def end(how: str, folder: Path, mpiexec: str) -> int:
    """Start a `dlrun launch`, send it the signal, and return its exit code."""
    line = [sys.executable, "-m", "dlrun", "launch", "-n", "2", "--mpiexec", mpiexec, "--log-dir", "runs"]
    null = subprocess.DEVNULL
    with subprocess.Popen([*line, "trains.py", "on"], cwd=folder, stdout=subprocess.PIPE, stderr=null) as job:
        assert job.stdout
        job.stdout.readline()
        job.send_signal(getattr(signal, how))
        return job.wait(60)


def many(launches: int, folder: Path) -> tuple[Left, Left, list[str]]:
    """Return what there was before, what there is after so many launches, and the exit codes that were wrong."""
    (folder / "trains.py").write_text(TRAINS)
    (folder / "tmp").mkdir()
    os.environ["TMPDIR"] = str(folder / "tmp")
    tempfile.tempdir = None
    shared = {str(path) for path in Path("/dev/shm").iterdir()}
    kinds = [(run, how, code) for how, code in FROM_PYTHON.items()]
    kinds += [(end, how, code) for how, code in OF_DLRUN.items()]
    turns = [(kind, mpiexec) for mpiexec in LAUNCHERS.values() for kind in kinds]
    wrong: list[str] = []
    before = look(folder, shared)
    for number in range(launches):
        (act, how, code), mpiexec = turns[number % len(turns)]
        if (got := act(how, folder, mpiexec)) != code:
            wrong.append(f"launch {number}, {act.__name__} {how} under {mpiexec}: exit code {got}, not {code}")
    return before, look(folder, shared), wrong


def main() -> int:
    """Print what was there before and after."""
    with tempfile.TemporaryDirectory(prefix="dlrun-leaks-") as name:
        folder = Path(name).resolve()
        began = time.monotonic()
        before, after, wrong = many(int(sys.argv[1]) if len(sys.argv) > 1 else 100, folder)
        print(f"before: {before}\nafter:  {after}\n{time.monotonic() - began:.0f} s", *wrong, sep="\n")
        return int(bool(wrong) or astuple(before) != astuple(after))


if __name__ == "__main__":
    sys.exit(main())
