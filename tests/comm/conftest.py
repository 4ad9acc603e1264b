"""Ranks for tests: threads of this process, and processes under each MPI that this machine has."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

FAMILIES = ["mpich 5", "mpich 4", "openmpi 5", "openmpi 4"]


@dataclass(frozen=True)
class Mpi:
    """An installed MPI: its family and major version, and how its mpiexec is called."""

    name: str
    mpiexec: str

    def command(self, n: int) -> list[str]:
        more = ["--oversubscribe", "--bind-to", "none"] if self.name.startswith("openmpi") else []
        return [self.mpiexec, *more, "-n", str(n)]

    def for_mpi4py(self) -> dict[str, str]:
        """Where mpi4py finds the library of this MPI; dl_comm finds it by itself."""
        libraries = sorted(Path(self.mpiexec).resolve().parent.parent.glob("lib/libmpi.so.*"))
        return {"MPI4PY_LIBMPI": str(libraries[0])} if libraries else {}


def _version(mpiexec: str) -> str:
    """Return "mpich 5", "openmpi 4", ... or "" for what is neither."""
    said = subprocess.run([mpiexec, "--version"], capture_output=True, text=True, timeout=30, check=False).stdout
    for sign in ("(Open MPI)", "(OpenRTE)"):
        if sign in said:
            return "openmpi " + said.split(sign)[1].split(".")[0].strip()
    if "HYDRA" in said and "Version:" in said:
        return "mpich " + said.split("Version:")[1].split(".")[0].strip()
    return ""


def _installed() -> dict[str, Mpi]:
    """Find one mpiexec of each family: named by DLRUN_TEST_MPIEXEC (separated by ":"), of this environment, of PATH."""
    named = [Path(one) for one in os.environ.get("DLRUN_TEST_MPIEXEC", "").split(":") if one]
    folders = [Path(sys.prefix) / "bin", *(Path(one) for one in os.environ.get("PATH", "").split(":") if one)]
    places = [*named, *(folder / f"mpiexec{end}" for folder in folders for end in ("", ".mpich", ".openmpi"))]
    found: dict[str, Mpi] = {}
    seen: set[Path] = set()
    for place in places:
        if not place.exists() or place.resolve() in seen:
            continue
        seen.add(place.resolve())
        name = _version(str(place))
        found.setdefault(name, Mpi(name, str(place)))
    return found


_found: dict[str, Mpi] = {}


def find_mpi(name: str) -> Mpi:
    """Return the MPI of this name, or skip the test and say that it is missing."""
    if not _found:
        _found.update(_installed())
    if name not in _found:
        pytest.skip(f"no mpiexec of {name} on PATH or in DLRUN_TEST_MPIEXEC")
    return _found[name]


@pytest.fixture(params=FAMILIES)
def each_mpi(request: pytest.FixtureRequest) -> Mpi:
    """Every MPI in turn."""
    return find_mpi(request.param)


@pytest.fixture
def any_mpi() -> Mpi:
    """The first MPI that is installed."""
    _found.update(_found or _installed())
    for name in FAMILIES:
        if name in _found:
            return _found[name]
    pytest.skip("no mpiexec of MPICH or Open MPI on PATH")


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

    def run(mpi: Mpi, n: int, program: str | list[str], *, timeout: float = 60, **environment: str) -> Ended:
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


Threads = Callable[..., list[Any]]


@pytest.fixture
def threads() -> Threads:
    """Return threads(n, body, **how): body(session, rank) on n ranks that are threads; results, or errors, by rank."""
    from dl_comm import _core

    def run(n: int, body: Callable[[Any, int], Any], **how: Any) -> list[Any]:
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
            thread.join(timeout=60)
            assert not thread.is_alive(), "a rank hangs"
        return results

    return run


@pytest.fixture(autouse=True)
def nothing_left_in_shared_memory() -> Any:
    """No test of dl_comm leaves a name in /dev/shm."""
    folder = Path("/dev/shm")
    before = set(folder.glob("dl_comm*")) if folder.is_dir() else set()
    yield
    after = set(folder.glob("dl_comm*")) if folder.is_dir() else set()
    assert after <= before


def has(program: str) -> bool:
    """Whether a program is installed."""
    return shutil.which(program) is not None
