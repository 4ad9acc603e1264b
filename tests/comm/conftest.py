"""Ranks for tests: threads of this process, and processes under each MPI that this machine has."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from mpis import FAMILIES, Mpi, find_mpi, first_mpi


@pytest.fixture(params=FAMILIES)
def each_mpi(request: pytest.FixtureRequest) -> Mpi:
    """Every MPI in turn."""
    return find_mpi(request.param)


@pytest.fixture
def any_mpi() -> Mpi:
    """The first MPI that is installed."""
    return first_mpi()


@dataclass(frozen=True)
class Ended:
    """How a job ended: its exit code and everything it printed."""

    code: int
    output: str

    def lines(self, start: str) -> list[str]:
        return sorted(line for line in self.output.splitlines() if line.startswith(start))


Job = Callable[..., Ended]


@pytest.fixture
def job(tmp_path: Path) -> Job:
    """Return job(mpi, n, program, **environment): run Python text, or a command, on n ranks; collect all output."""

    def run(mpi: Mpi, n: int, program: str | list[str], *, timeout: float = 200, **environment: str) -> Ended:
        if isinstance(program, str):
            script = tmp_path / "program.py"
            script.write_text(textwrap.dedent(program))
            program = [sys.executable, str(script)]
        env = {name: value for name, value in os.environ.items() if not name.startswith(("PMI", "OMPI_", "DLRUN_SIZE"))}
        env.pop("PYTHONUNBUFFERED", None)  # lines of several ranks would be mixed
        env.update(
            {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", **mpi.for_mpi4py(), **environment}
        )
        command = [*mpi.command(n), *program]
        ended = subprocess.run(
            command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=timeout, check=False
        )
        return Ended(ended.returncode, ended.stdout)

    return run


@pytest.fixture
def before_mpi(any_mpi: Mpi, tmp_path: Path) -> Callable[..., str]:
    """Return before_mpi(text, *flags): the path of a library of C functions that are called before those of the MPI."""

    def build(text: str, *flags: str) -> str:
        compiler = shutil.which("cc")
        if compiler is None or not any_mpi.for_mpi4py():
            pytest.skip("no C compiler, or the MPI library lies elsewhere")
        library = any_mpi.for_mpi4py()["MPI4PY_LIBMPI"]
        source, shim = tmp_path / "before.c", tmp_path / "before.so"
        source.write_text(text)
        words = [compiler, "-shared", "-fPIC", *flags, str(source), "-o", str(shim), library]
        subprocess.run([*words, f"-Wl,-rpath,{Path(library).parent}"], check=True, timeout=60)
        return str(shim)

    return build


Threads = Callable[..., list[Any]]


@pytest.fixture
def threads() -> Threads:
    """Return threads(n, body, patience=200, **how): body(session, rank) on n ranks that are threads.

    It gives results, or errors, by rank, and fails if one takes longer than ``patience`` seconds.
    """
    from dl_comm import _core

    def run(n: int, body: Callable[[Any, int], Any], *, patience: float = 200, **how: Any) -> list[Any]:
        sessions = _core.local_sessions(n, **how)
        results: list[Any] = [None] * n

        def rank(number: int) -> None:
            try:
                results[number] = body(sessions[number], number)
            except Exception as error:
                results[number] = error

        running = [threading.Thread(target=rank, args=(number,)) for number in range(n)]
        for thread in running:
            thread.start()
        for thread in running:
            thread.join(timeout=patience)
            assert not thread.is_alive(), "a rank hangs"
        return results

    return run


SHARED_MEMORY = Path("/dev/shm")


@pytest.fixture(autouse=True)
def nothing_left_in_shared_memory() -> Any:
    """No test of dl_comm leaves a name in /dev/shm. Those of living processes are another's, in use."""
    before = set(SHARED_MEMORY.glob("dl_comm.*"))
    yield
    deadline = time.monotonic() + 20  # another's processes may just have died, and be cleared away after
    while (left := left_behind() - before) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not left


def left_behind() -> set[Path]:
    """Return dl_comm's names in shared memory whose processes are gone."""
    names = SHARED_MEMORY.glob("dl_comm.*")
    return {name for name in names if not Path("/proc", name.name.split(".")[1]).exists()}
