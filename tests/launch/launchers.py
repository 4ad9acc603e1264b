"""The MPI launchers of this machine, and a cluster of several machines on it."""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

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


class Lab:
    """A Slurm cluster of three machines, n1 to n3, with four cores each, all on this one."""

    def __init__(self, folder: Path, number: int) -> None:
        self.folder = folder
        everywhere = {name: value for name, value in os.environ.items() if name != "UCX_NET_DEVICES"}
        self.env = {
            **everywhere,
            "PATH": _PATH,  # machines that are mended start slurmd, too
            "LAB": str(folder),
            "P": f"dl{number}",
            "NET": f"10.77.{number}",
            "PORT": str(26817 + 10 * number),
            "NODES": "3",
            "WATCH": str(os.getpid()),
        }
        here = Path(__file__).parent / "lab"
        self.up, self.down = here / "up.sh", here / "down.sh"
        self.env["SLURM_CONF"] = f"{folder}/etc/slurm.conf"
        # Open MPI names its files by process id, which each machine counts anew, and killed daemons leave them behind:
        # so they go where every boot of a machine begins with nothing.
        self.env |= dict.fromkeys(("PRTE_MCA_prte_tmpdir_base", "OMPI_MCA_orte_tmpdir_base"), f"{folder}/tmp")
        # How the launchers reach the machines where there is no batch job: real ssh, with the lab's keys.
        agents = ("HYDRA_LAUNCHER_EXEC", "PRTE_MCA_plm_ssh_agent", "OMPI_MCA_plm_rsh_agent")
        self.ssh = {**self.env, **dict.fromkeys(agents, f"{folder}/ssh")}

    def run(self, *words: str) -> str:
        """Run one of the lab's own programs, as ``lab.run("poweroff", "n2")``; what cannot be done is an error."""
        done = subprocess.run(
            [self.folder / words[0], *words[1:]], env=self.env, capture_output=True, text=True, timeout=120, check=False
        )
        assert done.returncode == 0, f"{' '.join(words)}: {done.stderr}"
        return done.stdout


class NoClusterError(RuntimeError):
    """What keeps a cluster from being made here."""


@contextmanager
def a_cluster() -> Iterator[Lab]:
    """Make a real Slurm cluster, and take it down without a trace; also when this process is killed.

    Raises :class:`NoClusterError`.
    """
    if why := _missing():
        raise NoClusterError(why)
    with _own_network():
        folder = Path(tempfile.mkdtemp(prefix="dlab", dir="/tmp"))
        cluster = Lab(folder, os.getpid() % 250)  # another session of tests on this machine has one of its own
        try:
            _come_up(cluster)
            yield cluster
        finally:
            subprocess.run([cluster.down], env=cluster.env, timeout=60, check=False)


def _come_up(cluster: Lab) -> None:
    with tempfile.TemporaryFile("w+", errors="replace") as said:
        up = subprocess.Popen([cluster.up], env=cluster.env, stdout=said, stderr=said, start_new_session=True)
        try:
            code = up.wait(240)
        except subprocess.TimeoutExpired:
            os.killpg(up.pid, signal.SIGKILL)
            code = up.wait()
        said.seek(0)
        if code:
            raise NoClusterError(f"the Slurm lab did not come up (exit code {code}): {said.read()[-2000:]}")


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
