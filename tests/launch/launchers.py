"""The MPI launchers of this machine, and a cluster of several machines on it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
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
