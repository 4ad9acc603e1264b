"""Every way in which a job ends badly, under every way to start one: `python tests/launch/failures.py` prints a table.

Three ranks train, and in the middle of it the last of them fails, or `dlrun launch` is signalled. Looked at are the
exit code, the rank that is named, the seconds until all is over, and what is left: processes, files in /dev/shm and
in TMPDIR, files in the run directory. ``--how`` and ``--backend`` choose rows; the exit code counts the wrong ones.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from launchers import LAUNCHERS, Lab, a_cluster

from dlrun.rank.proc import unmapped

RANKS = 3
IN_TIME = 3.0  # seconds from the failure to the end of everything, on an idle machine
_STALL = 2.0
_LOOKS = 2.0  # seconds that two looks at where the ranks stand take

TRAINS = """
import os, resource, signal, sys, time
how, kind = sys.argv[1:]
rank = int(os.environ["DLRUN_RANK"])
if kind == "torchrun":
    import torch, torch.distributed as dist
    dist.init_process_group("gloo")
    sums = torch.ones(1000)
    exchange = lambda: dist.all_reduce(sums)
else:
    import numpy as np
    import dl_comm as dl
    dl.init()
    gradients = [np.ones(1000, np.float32)]
    exchange = lambda: dl.gradients(gradients)
def fail():
    open("failed", "w").close()
    if how == "exception": raise ValueError("bad shape (3, 4)")
    if how == "sys.exit(3)": sys.exit(3)
    if how == "sys.exit(0)": sys.exit(0)
    if how == "os._exit(0)": os._exit(0)
    if how == "os._exit(5)": os._exit(5)
    if how == "SIGKILL": os.kill(os.getpid(), signal.SIGKILL)
    if how == "SIGBUS": os.kill(os.getpid(), signal.SIGBUS)
    if how == "abort": os.abort()
    if how == "SIGSEGV":
        import ctypes
        ctypes.string_at(0)
    if how == "MemoryError":
        used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + (32 << 20), used + (32 << 20)))
        held = []
        while True: held.append(bytearray(1 << 16))
    if how == "hang":
        while True: time.sleep(300)
for step in range(100_000):
    exchange()
    time.sleep(0.01)
    if step == 5:
        print("up", flush=True)
        if rank == 2 and how not in ("Ctrl-C", "SIGTERM"):
            fail()
"""
_LINES = TRAINS.splitlines()


def _at(text: str) -> str:
    """Return ``trains.py:N`` of the line that holds ``text``."""
    return f"trains.py:{1 + next(number for number, line in enumerate(_LINES) if text in line)}"


# how -> exit code, and the end of the line that names the rank; "" where none is to be named
ENDS = {
    "exception": (1, f"ended the job: ValueError: bad shape (3, 4) at {_at('raise ValueError')}"),
    "sys.exit(3)": (3, f"ended the job: sys.exit(3) at {_at(': sys.exit(3)')}"),
    "sys.exit(0)": (1, f"ended the job: sys.exit(0) in the middle of the job at {_at(': sys.exit(0)')}"),
    "os._exit(0)": (
        1,
        f"ended the job: exit code 0 in the middle of the job, by os._exit() or the like at {_at(': os._exit(0)')}",
    ),
    "os._exit(5)": (5, f"ended the job: exit code 5 at {_at(': os._exit(5)')}"),
    "SIGKILL": (137, "ended the job: killed by SIGKILL"),
    "SIGSEGV": (139, f"ended the job: killed by SIGSEGV at {_at('string_at')}"),
    "SIGBUS": (135, f"ended the job: killed by SIGBUS at {_at('signal.SIGBUS')}"),
    "abort": (134, f"ended the job: killed by SIGABRT at {_at('os.abort')}"),
    "MemoryError": (1, f"ended the job: MemoryError at {_at('bytearray')}"),
    "hang": (124, f"at {_at('sleep(300)')} fail"),
    "Ctrl-C": (130, ""),
    "SIGTERM": (143, ""),
}
BACKENDS = ("mpich", "openmpi", "srun", "torchrun", "ssh")


@dataclass
class Seen:
    """What one job did."""

    how: str
    backend: str
    code: int
    seconds: float
    said: str
    errors: str
    processes: list[str] = field(default_factory=list)
    files: list[str] = field(default_factory=list)

    def wrong(self, busy: float = 0.0) -> list[str]:
        """Return what was not as it should be; ``busy``: seconds more, on a busy machine."""
        code, end = ENDS[self.how]
        found = []
        if self.code != code:
            found.append(f"exit code {self.code}, not {code}")
        if not end and self.said:
            found.append(f"a rank is blamed: {self.said}")
        if end and not (self.said.startswith(f"dlrun: rank {RANKS - 1} ") and self.said.endswith(end)):
            found.append(f"told: {self.said or 'nothing'}; expected rank {RANKS - 1} ... {end}")
        limit = IN_TIME + busy + (_STALL + _LOOKS if self.how == "hang" else 0)
        if self.seconds > limit:
            found.append(f"{self.seconds:.1f} s, and {limit:g} s were to be enough")
        found += [f"left running: {', '.join(self.processes)}"] if self.processes else []
        return found + ([f"left lying: {', '.join(self.files)}"] if self.files else [])


def words(backend: str) -> list[str]:
    """Return the options by which ``dlrun launch`` starts the ranks so."""
    options = ["-n", str(RANKS), "--log-dir", "runs"]
    if backend == "srun":
        return [*options, "--hosts", "n1:2,n2:1", "--backend", "srun"]
    if backend == "ssh":
        return [*options, "--hosts", "n1:2,n2:1", "--mpiexec", _launcher("mpich")]
    if backend == "torchrun":
        return [*options, "--torchrun", "--mpiexec", _launcher("mpich")]
    return [*options, "--mpiexec", _launcher(backend)]


def _launcher(family: str) -> str:
    """Return the newest launcher of an MPI."""
    return LAUNCHERS[max(name for name in LAUNCHERS if name.startswith(family))]


def see(backend: str, how: str, folder: Path, cluster: Lab | None = None) -> Seen:
    """Start a job in ``folder``, have it fail, and return what was seen."""
    (folder / "trains.py").write_text(TRAINS)
    temporary = folder / "tmp"
    temporary.mkdir()
    env = dict(os.environ)
    if cluster:
        env = cluster.ssh if backend == "ssh" else cluster.env
    env |= {"OMP_NUM_THREADS": "1", "TMPDIR": str(temporary)}
    line = [sys.executable, "-m", "dlrun", "launch", *words(backend)]
    line += ["--stall-timeout", str(_STALL), "--on-stall", "abort"] if how == "hang" else []
    line += ["trains.py", how, backend]
    shared, running = _shared(cluster), _on_nodes(cluster)
    pipe = subprocess.PIPE
    job = subprocess.Popen(line, cwd=folder, env=env, stdout=pipe, stderr=pipe, text=True, start_new_session=True)
    try:
        assert job.stdout
        up = job.stdout.readline()
        if up != "up\n":
            return Seen(how, backend, job.wait(), 0, f"it did not come up: {up}", job.communicate()[1])
        if how in ("Ctrl-C", "SIGTERM"):
            began = time.time()
            os.killpg(job.pid, signal.SIGINT) if how == "Ctrl-C" else job.terminate()
        else:
            began = _when_made(folder / "failed")
        errors = job.communicate(timeout=60)[1]
    finally:
        job.kill()
    seconds = time.time() - began
    said = next((line for line in errors.splitlines() if line.startswith("dlrun: rank")), "")
    seen = Seen(how, backend, job.returncode, seconds, said, errors)
    deadline = time.time() + IN_TIME
    while True:  # what lies there for a moment may be another job's that ends just now
        seen.processes = running_in(folder) + sorted(_on_nodes(cluster) - running)
        files = _shared(cluster) - shared
        files = (files if cluster else unmapped(files)) | {str(path) for path in temporary.iterdir()}
        seen.files = sorted(files | {str(path) for path in folder.glob("runs/*/.*")})
        if not (seen.processes or seen.files) or time.time() > deadline:
            return seen
        time.sleep(0.05)


def _when_made(file: Path) -> float:
    """Return when ``file`` came, in seconds since 1970, once it is there."""
    deadline = time.monotonic() + 30
    while not file.exists():
        assert time.monotonic() < deadline, f"{file} never came"
        time.sleep(0.005)
    return file.stat().st_mtime


def running_in(folder: Path) -> list[str]:
    """Return what runs in ``folder``, on any of the machines: their processes are this kernel's, too."""
    found = []
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            try:
                line = (process / "cmdline").read_bytes().split(b"\0")
                if (process / "cwd").readlink().is_relative_to(folder) and line[0]:
                    found.append(f"{process.name} {line[0].decode()}")
            except OSError:
                continue
    return found


def _on_nodes(cluster: Lab | None) -> set[str]:
    """Return what runs on the cluster's machines, but for what looks there."""
    found = set()
    for node in ("n1", "n2") if cluster else ():
        assert cluster
        rows = cluster.run("on", node, "ps", "-e", "-o", "pid=,comm=,args=").splitlines()
        found |= {f"{node}: {row.strip()}" for row in rows if row.split()[1] not in ("ps", "sleep", "slurmd", "sshd")}
    return found


def _shared(cluster: Lab | None) -> set[str]:
    """Return the files that stand for memory, of this user and of whatever machine."""
    if cluster:
        return {
            f"{node}:/dev/shm/{name}"
            for node in ("n1", "n2")
            for name in _names(cluster.run("on", node, "ls", "/dev/shm"))
        }
    return {str(path) for path in Path("/dev/shm").iterdir() if path.owner() == _ME}


def _names(said: str) -> list[str]:
    return said.split()


_ME = Path("/proc/self").owner()


@contextmanager
def machines(backends: list[str]) -> Iterator[Lab | None]:
    """Make a cluster where one of the ``backends`` needs it."""
    if not {"srun", "ssh"} & set(backends):
        yield None
        return
    with a_cluster() as cluster:
        yield cluster


def main() -> int:
    """Print the table; return how many of its rows are wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backend", choices=BACKENDS, action="append")
    parser.add_argument("--how", choices=ENDS, action="append")
    parser.add_argument("--busy", type=float, default=0.0, help="seconds more, on a busy machine")
    asked = parser.parse_args()
    bad = 0
    print("| how | backend | exit code | seconds | processes | files | |\n|---|---|---|---|---|---|---|", flush=True)
    with machines(asked.backend or list(BACKENDS)) as cluster:
        for backend in asked.backend or BACKENDS:
            for how in asked.how or ENDS:
                with tempfile.TemporaryDirectory(prefix="dlrun-failures-") as folder:
                    needs = cluster if backend in ("srun", "ssh") else None
                    seen = see(backend, how, Path(folder).resolve(), needs)
                wrong = seen.wrong(asked.busy)
                bad += bool(wrong)
                told = "; ".join(wrong) or "as it should be"
                row = (how, backend, seen.code, f"{seen.seconds:.1f}", len(seen.processes), len(seen.files), told)
                print(f"| {' | '.join(map(str, row))} |", flush=True)
                if wrong:
                    print(seen.errors, file=sys.stderr, flush=True)
    return bad


if __name__ == "__main__":
    sys.exit(main())
