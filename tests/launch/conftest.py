"""The MPI launchers of this machine, each with its family, for the tests that really launch."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from launchers import LAUNCHERS, Lab


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


_PATH = f"{os.environ['PATH']}:/usr/sbin:/sbin"


def _missing() -> str:
    if os.getuid() != 0:
        return "a Slurm lab needs root (network namespaces)"
    programs = ("slurmctld", "slurmd", "srun", "sshd", "ip", "nsenter", "unshare", "pgrep", "ssh-keygen")
    missing = [name for name in programs if not shutil.which(name, path=_PATH)]
    return f"not installed: {', '.join(missing)}" if missing else ""


_CLONE_NEWNET = 0x40000000


@contextmanager
def _own_network() -> Iterator[None]:
    """Give this process, and what it starts, a network of its own: the lab's cable ends there.

    In everybody's, the MPI of other tests' ranks would see an interface come and go as it looks through them all:
    UCX ends a rank that way.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    home = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
    if libc.unshare(_CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), "no network namespace")
    try:
        subprocess.run(["ip", "link", "set", "lo", "up"], env=os.environ | {"PATH": _PATH}, check=True)
        yield
    finally:
        libc.setns(home, _CLONE_NEWNET)
        os.close(home)


@pytest.fixture(scope="session")
def lab() -> Iterator[Lab]:
    """A real Slurm cluster, torn down without a trace; also when this process is killed."""
    if why := _missing():
        pytest.skip(why)
    with _own_network():
        yield from _cluster()


def _cluster() -> Iterator[Lab]:
    folder = Path(tempfile.mkdtemp(prefix="dlab", dir="/tmp"))
    cluster = Lab(folder, os.getpid() % 250)  # another session of tests on this machine has one of its own
    started = subprocess.run([cluster.up], env=cluster.env, capture_output=True, text=True, timeout=240, check=False)
    if started.returncode:
        pytest.skip(f"the Slurm lab did not come up: {started.stderr.strip().splitlines()[-1:]}")
    yield cluster
    subprocess.run([cluster.down], env=cluster.env, timeout=60, check=False)
