"""The MPI launchers of this machine, each with its family, for the tests that really launch."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from launchers import LAUNCHERS, Lab, NoClusterError, a_cluster


@pytest.fixture(params=sorted(LAUNCHERS) or [None])
def mpiexec(request: pytest.FixtureRequest) -> str:
    """The path of each MPI launcher that is installed, in turn."""
    if request.param is None:
        pytest.skip("no MPI launcher is installed (mpich, openmpi)")
    return LAUNCHERS[request.param]


@pytest.fixture(autouse=True)
def debian_mpich(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Debian calls MPICH's library libmpich.so.12; mpi4py asks for libmpi.so.12, as everybody else calls it."""
    for library in Path("/usr/lib").glob("*-linux-gnu/libmpich.so.12"):
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
    """Run ``dlrun launch`` with the given words in ``tmp_path``, for at most four minutes."""

    def run(*words: str, **options: object) -> subprocess.CompletedProcess[str]:
        line = [sys.executable, "-m", "dlrun", "launch", *words]
        return subprocess.run(line, cwd=tmp_path, capture_output=True, text=True, timeout=240, **options)  # type: ignore

    return run


@pytest.fixture(scope="session")
def lab() -> Iterator[Lab]:
    """A real Slurm cluster, torn down without a trace; also when this process is killed."""
    with ExitStack() as stack:
        try:
            cluster = stack.enter_context(a_cluster())
        except NoClusterError as error:
            pytest.skip(str(error))
        yield cluster
