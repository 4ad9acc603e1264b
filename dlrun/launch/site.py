"""What is here: the allocation, the cores, the launchers. The only reader of the environment.

Nothing below reads ``os.environ``: :func:`look` takes the environment as an argument, so that a test hands it a dict.
"""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import NamedTuple

from dlrun.rank.gpus import cpu_list, gpus
from dlrun.rank.pinning import cores

# The families of MPI library, by which a rank can only be started by a fitting launcher: the library's file names, and
# a symbol that only this family's library holds. Spectrum MPI is an Open MPI; Intel's and Cray's are MPICHs.
LIBRARIES = {
    "mpich": (("libmpi.so.12", "libmpich.so.12", "libmpi_cray.so.12"), b"MPIR_Err_create_code"),
    "openmpi": (("libmpi.so.40", "libmpi_ibm.so.3"), b"ompi_mpi_comm_world"),
}
FAMILY = {
    "mpich": "mpich",
    "intel": "mpich",
    "pals": "mpich",
    "aprun": "mpich",
    "openmpi": "openmpi",
    "spectrum": "openmpi",
    "jsrun": "openmpi",
}

# What each launcher's --version says of itself. The name of the program says nothing: `mpiexec` may be any of these.
_BANNERS = (
    ("intel", r"Intel\(R\) MPI Library.*Version (?P<version>[\d.]+)"),
    ("mpich", r"HYDRA build details:\s+Version:\s+(?P<version>[\w.]+)"),
    ("spectrum", r"\(IBM Spectrum MPI\) (?P<version>[\d.]+)"),
    ("openmpi", r"\((?:Open MPI|OpenRTE|PRRTE)\) (?P<version>[\w.]+)"),
    ("srun", r"^slurm(?:-wlm)? (?P<version>[\d.]+)"),
    ("aprun", r"aprun \(ALPS\) (?P<version>[\d.]+)"),
    ("pals", r"PALS.*?(?P<version>\d+\.\d+[\d.]*)"),
)

_ANSWERS = 20.0  # seconds in which a program says what it is asked
_OF_SYSTEM = {"slurm": "srun", "lsf": "jsrun", "cobalt": "aprun", "flux": "flux"}


class Launcher(NamedTuple):
    """A program that starts ranks: where it is, whose dialect it speaks, and the MPI library that lies beside it."""

    path: str
    backend: str
    version: str = ""
    library: str = ""
    why: str = ""


class Allocation(NamedTuple):
    """What a batch system has given this job; an empty ``system`` means that there is none."""

    system: str = ""
    job: str = ""
    nodes: int = 1
    ranks: int | None = None


class Site(NamedTuple):
    """This machine and this job, as far as a launch needs to know them."""

    host: str
    user_id: int
    cores: int
    cpus: int
    gpus: int
    allocation: Allocation
    env: Mapping[str, str]

    def launchers(self) -> Iterator[Launcher]:
        """Yield the launchers that are here, best first, each looked at only when it is asked for.

        The environment the ranks will use first (the PyPI wheels of MPICH and Open MPI put an ``mpiexec`` beside its
        ``python``), then the allocation's own, then PATH.
        """
        for path, why in candidates(self.env, self.allocation):
            found = recognise(path, why)
            if found:
                yield found


def look(env: Mapping[str, str]) -> Site:
    """Return what is here, judging by ``env`` (usually ``os.environ``) and this machine. Starts no program."""
    allowed = os.sched_getaffinity(0)
    return Site(
        host=socket.gethostname(),
        user_id=os.getuid(),
        cores=len(cores(allowed)),
        cpus=len(allowed),
        gpus=len(gpus(env=env)[1]),
        allocation=allocation(env),
        env=env,
    )


def numa_nodes(nodes: Path = Path("/sys/devices/system/node")) -> dict[int, int]:
    """Return the NUMA node of each CPU of this machine; empty where the kernel tells of none."""
    found = {}
    for node in nodes.glob("node[0-9]*"):
        with suppress(OSError):
            found.update(dict.fromkeys(cpu_list((node / "cpulist").read_text()), int(node.name[4:])))
    return found


def allocation(env: Mapping[str, str]) -> Allocation:
    """Return the batch allocation that ``env`` tells of."""
    if "SLURM_JOB_ID" in env:
        nodes = _int(env.get("SLURM_JOB_NUM_NODES")) or _int(env.get("SLURM_NNODES")) or 1
        return Allocation("slurm", env["SLURM_JOB_ID"], nodes, _int(env.get("SLURM_NTASKS")))
    if "PBS_JOBID" in env:
        lines = _lines(env.get("PBS_NODEFILE"))
        return Allocation("pbs", env["PBS_JOBID"], len(set(lines)) or 1, len(lines) or None)
    if "LSB_JOBID" in env:
        hosts = env.get("LSB_MCPU_HOSTS", "").split()
        slots = [_int(n) or 1 for n in hosts[1::2]]
        if "CSM_ALLOCATION_ID" in env:  # there the first is the launch node, which runs no rank
            slots = slots[1:]
        return Allocation("lsf", env["LSB_JOBID"], len(slots) or 1, sum(slots) or None)
    if "COBALT_JOBID" in env:
        lines = _lines(env.get("COBALT_NODEFILE"))
        return Allocation("cobalt", env["COBALT_JOBID"], len(set(lines)) or _int(env.get("COBALT_JOBSIZE")) or 1)
    if "FLUX_ENCLOSING_ID" in env:
        return Allocation("flux", env["FLUX_ENCLOSING_ID"])
    if "PE_HOSTFILE" in env:
        named = [line.split() for line in _lines(env["PE_HOSTFILE"]) if line.strip()]
        slots = [_int("".join(host[1:2])) or 1 for host in named]
        return Allocation("sge", env.get("JOB_ID", ""), len(slots) or 1, sum(slots) or None)
    return Allocation()


def allocated(env: Mapping[str, str]) -> tuple[str, ...]:
    """Return the names of the allocation's nodes, where its batch system tells them and launchers take some of them."""
    system = allocation(env).system
    if system == "slurm" and (control := which("scontrol", env)):
        return tuple(_said(control, "show", "hostnames", env.get("SLURM_JOB_NODELIST", ""))[0].split())
    lines = _lines(env.get({"pbs": "PBS_NODEFILE", "sge": "PE_HOSTFILE"}.get(system, "")))
    return tuple(dict.fromkeys(line.split()[0] for line in lines if line.strip()))


def which(program: str, env: Mapping[str, str]) -> str | None:
    """Return the path of a program, as ``shutil.which`` does, whose import takes 4 ms."""
    folders = [""] if "/" in program else env.get("PATH", os.defpath).split(os.pathsep)
    paths = [os.path.join(folder, program) for folder in folders]  # noqa: PTH118 - pathlib turns ./run into run
    return next((p for p in paths if os.path.isfile(p) and os.access(p, os.X_OK)), None)  # noqa: PTH113


def candidates(env: Mapping[str, str], where: Allocation) -> Iterator[tuple[str, str]]:
    """Yield (path, why) of every launcher program worth asking, best first."""
    beside = Path(sys.executable).parent / "mpiexec"
    own = _OF_SYSTEM.get(where.system)
    path = which(own, env) if own else None
    if path and where.system == "flux":  # no mpiexec knows its nodes
        yield path, "this is a flux allocation"
    if beside.exists():
        yield str(beside), "it lies beside this python"
    if path and where.system != "flux":
        yield path, f"this is a {where.system} allocation"
    for name in ("mpiexec", "mpirun", "mpiexec.hydra", "mpiexec.mpich", "mpiexec.openmpi", *_OF_SYSTEM.values()):
        path = which(name, env)
        if path and Path(path) != beside and name != own:
            yield path, "it is on PATH"


@cache
def recognise(path: str, why: str = "") -> Launcher | None:
    """Return what the launcher program ``path`` is, by what its ``--version`` says; None when that tells nothing."""
    real = Path(path).resolve()
    if Path(path).name in ("jsrun", "flux"):
        return Launcher(path, Path(path).name, why=why)
    said = "".join(_said(path, "--version"))
    for backend, banner in _BANNERS:
        match = re.search(banner, said)
        if match:
            if backend == "mpich" and not (Path(path).parent / "hydra_pmi_proxy").exists():
                path = str(real)  # hydra looks for its proxy beside the name it was called by; this was a symlink
            return Launcher(path, backend, match["version"], library_beside(path, backend), why)
    if "/pals/" in str(real):
        return Launcher(path, "pals", said.strip(), "", why)
    return None


@cache
def pmi_types(srun: str) -> tuple[str, ...]:
    """Return what ``srun --mpi=`` takes here."""
    return tuple(re.findall(r"^\s+(\w+)$", "".join(_said(srun, "--mpi=list")), re.MULTILINE))


@cache
def flux_nodes(flux: str) -> int:
    """Return the nodes of the Flux allocation that this is; 0 where Flux does not say."""
    return _int(_said(flux, "getattr", "size")[0].strip()) or 0


def _said(*words: str) -> tuple[str, str]:
    """Return what a program writes to its output and as errors; nothing of one that does not run, or does not end."""
    null = subprocess.DEVNULL
    try:
        asked = subprocess.run(words, capture_output=True, text=True, timeout=_ANSWERS, stdin=null, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return "", ""
    return asked.stdout, asked.stderr


def library_beside(path: str, backend: str) -> str:
    """Return the MPI library of the launcher ``path``'s own installation, "" where none lies there."""
    names = LIBRARIES[FAMILY[backend]][0] if backend in FAMILY else ()
    prefix = Path(path).resolve().parent.parent
    folders = [prefix / "lib", prefix / "lib64", prefix / "lib/release", *sorted(prefix.glob("lib/*-linux-gnu"))]
    for folder in folders:
        for name in names:
            if (folder / name).exists():
                return str(folder / name)
    return ""


def family_of(library: str) -> str:
    """Return "mpich" or "openmpi" for an MPI library file, by the symbols that it holds; "" when it is neither."""
    import mmap

    try:
        with Path(library).open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            for family, (_, symbol) in LIBRARIES.items():
                if content.find(symbol) >= 0:
                    return family
    except (OSError, ValueError):
        return ""
    return ""


def _lines(path: str | None) -> list[str]:
    try:
        return Path(path).read_text().split("\n")[:-1] if path else []
    except OSError:
        return []


def _int(text: str | None) -> int | None:
    return int(text) if text and text.isdigit() else None
