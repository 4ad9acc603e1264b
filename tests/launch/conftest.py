"""The MPI launchers of this machine, each with its family, for the tests that really launch."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from dlrun.launch.site import recognise

# Launchers besides those of this environment and PATH, as paths: an Open MPI wheel, whose mpiexec would hide MPICH's.
_EXTRA = os.environ.get("DLRUN_TEST_MPIEXEC", "").split(":")


def mpi_launchers() -> dict[str, str]:
    """Return what is installed: a name such as ``mpich-5.0.2`` -> the program's path."""
    programs = [str(Path(sys.executable).parent / "mpiexec"), *filter(None, _EXTRA)]
    programs += [path for name in ("mpiexec.mpich", "mpiexec.openmpi", "mpiexec") if (path := shutil.which(name))]
    found = {}
    for program in programs:
        launcher = recognise(program)
        if launcher and launcher.backend in ("mpich", "openmpi", "intel"):
            found.setdefault(f"{launcher.backend}-{launcher.version}", launcher.path)
    return found


LAUNCHERS = mpi_launchers()


@pytest.fixture(params=sorted(LAUNCHERS) or [None])
def mpiexec(request: pytest.FixtureRequest) -> str:
    """The path of each MPI launcher that is installed, in turn."""
    if request.param is None:
        pytest.skip("no MPI launcher is installed (mpich, openmpi)")
    return LAUNCHERS[request.param]


@pytest.fixture(autouse=True)
def debian_mpich(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Debian calls MPICH's library libmpich.so.12; mpi4py asks for libmpi.so.12, as everybody else calls it."""
    library = Path("/usr/lib/x86_64-linux-gnu/libmpich.so.12")
    if library.exists():
        folder = tmp_path_factory.mktemp("lib")
        (folder / "libmpi.so.12").symlink_to(library)
        monkeypatch.setenv("LD_LIBRARY_PATH", f"{os.environ.get('LD_LIBRARY_PATH', '')}:{folder}".lstrip(":"))


@pytest.fixture
def any_mpiexec() -> str:
    """The path of one MPI launcher."""
    if not LAUNCHERS:
        pytest.skip("no MPI launcher is installed (mpich, openmpi)")
    return LAUNCHERS[min(LAUNCHERS)]


@pytest.fixture
def dlrun(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run ``dlrun launch`` with the given words in ``tmp_path``, for at most 30 seconds."""

    def run(*words: str, **options: object) -> subprocess.CompletedProcess[str]:
        line = [sys.executable, "-m", "dlrun", "launch", *words]
        return subprocess.run(line, cwd=tmp_path, capture_output=True, text=True, timeout=30, **options)  # type: ignore

    return run
