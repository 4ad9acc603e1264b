"""What is to be launched, and the checks that name the wrong option."""

from __future__ import annotations

import math
import os
import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from dlrun.errors import DlrunError
from dlrun.launch.site import FAMILY, Launcher, Site, family_of, pmi_types, recognise

# Left over from a launcher this process itself was started by; they would tell the new ranks a wrong story.
_STALE = (
    *("PMI_", "PMIX_", "HYDI_", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", "OMPI_COMM_WORLD_", "PRTE_LAUNCHED"),
    *("PALS_RANKID", "PALS_LOCAL_RANKID", "JSM_NAMESPACE_", "FLUX_TASK_", "ALPS_APP_PE"),
    *("DLRUN_RANK", "DLRUN_SIZE", "DLRUN_LOCAL_", "DLRUN_NODE", "DLRUN_NNODES", "DLRUN_RUN_DIR"),
)

# Launchers that take hosts, but not a number of ranks for each.
_EVEN = ("aprun", "pals", "flux")


@dataclass(frozen=True)
class Host:
    """A node to run on, and how many ranks it takes (None: an equal share)."""

    name: str
    slots: int | None = None


@dataclass(frozen=True)
class LaunchPlan:
    """A job to start: a program, how often, and where. What is None is still open; :func:`settle` closes it.

    ``program`` is the script and its arguments; ``module`` says that it is a module's name, as in ``python -m``.
    ``native`` are words for the launcher itself. ``per_node``, ``cores`` and ``gpus`` count ranks per node, and cores
    and GPUs per rank. ``show`` are the ranks whose output is shown. ``cwd`` is where the job runs ("": here).
    Seconds: ``grace`` between a signal and SIGKILL, ``save_time`` to save and stop in, ``start_timeout`` for all ranks
    to start, ``stall_timeout`` without progress until ``on_stall`` ("report" or "abort"), ``silence`` after which a
    node that does not answer counts as gone.
    """

    program: tuple[str, ...]
    ranks: int | None = None
    module: bool = False
    backend: str = "auto"
    mpiexec: str = ""
    native: tuple[str, ...] = ()
    per_node: int | None = None
    hosts: tuple[Host, ...] = ()
    cores: int | None = None
    gpus: int | None = None
    bind: bool = True
    env: tuple[tuple[str, str], ...] = ()
    show: tuple[int, ...] = (0,)
    cwd: str = ""
    run_dir: str = ""
    grace: float = 1.0
    save_time: float = 60.0
    stall_timeout: float = 300.0
    on_stall: str = "report"
    start_timeout: float = 120.0
    tuned: bool = True
    silence: int = 20
    # Closed by settle():
    launcher: Launcher | None = None
    pmi: str = ""
    nodes: int = 1
    kind: str = "script"
    local: bool = True
    notes: tuple[str, ...] = ()

    @property
    def spec_file(self) -> str:
        """Where the ranks read what does not belong on a command line."""
        return f"{self.run_dir}/spec.json"

    @property
    def missing(self) -> str:
        """What is so when no launcher was found (its path is then a bare name), else ""."""
        if self.launcher is None or not self.launcher.path or "/" in self.launcher.path:
            return ""
        return f"no {'MPI' if self.backend == 'auto' else self.backend} launcher is here"

    @property
    def hint(self) -> str:
        """What to do when no launcher was found."""
        if self.backend in ("auto", "mpich"):
            return 'to have one in this environment: pip install "dlrun[mpi]"'
        return f"put {self.launcher.path if self.launcher else self.backend} on PATH, or leave out --backend"

    @property
    def shim(self) -> tuple[str, ...]:
        """The command every rank runs."""
        return (sys.executable, "-m", "dlrun.rank", "--spec", self.spec_file, "--", *self.program)


class Flag(NamedTuple):
    """Some words of a launcher's command line, and the reason why they stand there."""

    words: tuple[str, ...]
    why: str


@dataclass(frozen=True)
class Command:
    """What is run: the words, each with its reason, and what changes in the environment."""

    flags: tuple[Flag, ...]
    set: Mapping[str, str] = field(default_factory=dict)
    unset: tuple[str, ...] = ()

    @property
    def argv(self) -> list[str]:
        """The command as a list of words; no shell ever reads it."""
        return [word for flag in self.flags for word in flag.words]

    def environment(self, env: Mapping[str, str]) -> dict[str, str]:
        """Return ``env`` as the command gets it."""
        return {name: value for name, value in env.items() if name not in self.unset} | dict(self.set)

    def __str__(self) -> str:
        changes = [word for name in self.unset for word in ("-u", name)]
        changes += [f"{name}={value}" for name, value in self.set.items()]
        return shlex.join([*(["env"] if changes else []), *changes, *self.argv])


def settle(plan: LaunchPlan, site: Site) -> LaunchPlan:
    """Return ``plan`` with everything decided, judging by ``site``; raises :class:`DlrunError` for what cannot be."""
    kind = _kind(plan)
    ranks = plan.ranks if plan.ranks is not None else site.allocation.ranks or site.gpus or None
    if ranks is None:
        raise DlrunError("how many ranks is not said, and there is no batch job to ask", "say so: dlrun launch -n 2")
    _check_counts(plan, ranks)
    launcher, notes = _launcher(plan, site, ranks)
    pmi = ""
    if launcher.backend in ("srun", "flux") and launcher.why:  # they bring no MPI library of their own
        launcher = replace(launcher, library=site.env.get("DL_COMM_MPI_LIBRARY") or _library_here(site))
        pmi = _pmi(launcher, site) if launcher.backend == "srun" else ""
    in_job = bool(site.allocation.system)
    nodes = len(plan.hosts) or (math.ceil(ranks / plan.per_node) if plan.per_node else site.allocation.nodes)
    nodes = min(nodes, ranks)
    local = not plan.hosts and not in_job and launcher.backend in ("mpich", "openmpi", "intel", "spectrum", "local")
    if local and launcher.path and ranks > site.cores:
        notes += (f"{ranks} ranks on {site.cores} cores: they take turns, and none is bound to a core",)
    if plan.cores and local and plan.cores * ranks > site.cores:
        raise DlrunError(f"--cores {plan.cores} for {ranks} ranks needs {plan.cores * ranks} cores; {site.host} has "
                         f"{site.cores}", f"give --cores {max(site.cores // ranks, 1)} or less")  # fmt: skip
    if plan.hosts and launcher.backend == "jsrun":
        raise DlrunError("jsrun takes no hosts: LSF has chosen them", "leave out --hosts; --per-node says how many ranks "
                         "each takes")  # fmt: skip
    if any(host.slots for host in plan.hosts) and launcher.backend in _EVEN:
        raise DlrunError(f"{launcher.backend} starts the same number of ranks on every host", "leave out the ranks of "
                         "each host, and give --per-node")  # fmt: skip
    known = local or in_job or plan.hosts
    per_node = plan.per_node or (math.ceil(ranks / nodes) if known else None)
    return replace(plan, ranks=ranks, launcher=launcher, pmi=pmi, nodes=nodes, per_node=per_node, kind=kind,
                   local=local, notes=plan.notes + notes)  # fmt: skip


def command(plan: LaunchPlan, site: Site) -> Command:
    """Return what is run for a settled ``plan``."""
    from dlrun.launch.backends import BACKENDS

    assert plan.launcher
    backend = BACKENDS[plan.launcher.backend]
    unset = tuple(sorted(name for name in site.env if name.startswith(_STALE)))
    settings, dropped = backend.env(plan, site)
    unset += tuple(name for name in dropped if name in site.env and name not in unset)
    native = [Flag(plan.native, "--native")] if plan.native else []
    return Command((*backend.flags(plan, site), *native, Flag(plan.shim, "what every rank runs")), settings, unset)


def spec(plan: LaunchPlan, site: Site, home: Sequence[tuple[str, int]], token: str) -> dict[str, Any]:
    """Return the spec file of a settled ``plan``: what the shim needs to know, as JSON."""
    from dlrun.launch.backends import BACKENDS

    assert plan.launcher
    return {
        "ranks": plan.ranks,
        "nnodes": plan.nodes,
        "backend": plan.launcher.backend,
        "kind": plan.kind,
        "run_dir": str(Path(plan.cwd, plan.run_dir).absolute()),
        "show": list(plan.show),
        "home": [list(address) for address in home],
        "token": token,
        "silence": plan.silence,
        "place": {
            "bind": plan.bind and not (plan.cores and BACKENDS[plan.launcher.backend].binds),
            "cores": plan.cores,
            "gpus": plan.gpus,
        },
        "env": library(plan.launcher, site) | dict(plan.env),
    }


def library(launcher: Launcher, site: Site) -> dict[str, str]:
    """Return the variables that make the ranks load the MPI library that fits the launcher that starts them."""
    named = site.env.get("DL_COMM_MPI_LIBRARY")
    family = FAMILY.get(launcher.backend, "")
    if named:
        theirs = family_of(named)
        if theirs and family and theirs != family:
            raise DlrunError(
                f"DL_COMM_MPI_LIBRARY={named} is of the {theirs} family, and {launcher.path} is "
                f"{launcher.backend} {launcher.version}: each rank would be alone, rank 0 of 1",
                f"unset DL_COMM_MPI_LIBRARY, or choose the launcher that fits: --backend {theirs}",
            )
        return {}
    if not launcher.library:
        return {}
    settings = {"DL_COMM_MPI_LIBRARY": launcher.library}
    if not any(name.startswith("MPI4PY_") for name in site.env):  # with MPI4PY_MPIABI it would not read MPI4PY_LIBMPI
        settings["MPI4PY_LIBMPI"] = launcher.library
    return settings


def _library_here(site: Site) -> str:
    """Return the MPI library that ranks of this environment load, where their launcher brings none."""
    return next((launcher.library for launcher in site.launchers() if launcher.library), "")


def _pmi(launcher: Launcher, site: Site) -> str:
    """Return Slurm's --mpi for the library that the ranks will load, "" to leave it to the site's default."""
    family = family_of(launcher.library) if launcher.library else ""
    speaks = {"mpich": ("cray_shasta", "pmi2") if "cray" in launcher.library else ("pmi2",), "openmpi": ("pmix",)}
    offered = pmi_types(launcher.path)
    wanted = speaks.get(family, ())
    if not wanted or not offered:
        return ""
    fitting = [pmi for pmi in wanted if pmi in offered]
    if not fitting:
        raise DlrunError(
            f"this Slurm offers {', '.join(offered)}, and {launcher.library} speaks {wanted[-1]}: each rank would be "
            "alone, rank 0 of 1",
            f"use the library's own launcher: --backend {family}",
        )
    return fitting[0]


def _kind(plan: LaunchPlan) -> str:
    if plan.module:
        return "module"
    script = plan.program[0]
    path = Path(plan.cwd, script)
    if path.is_file():
        return "script" if script.endswith((".py", ".pyw")) or not os.access(path, os.X_OK) else "command"
    if "/" not in script and not script.endswith(".py") and shutil.which(script):
        return "command"
    near = _near(path)
    raise DlrunError(f"there is no script {script}", f"did you mean {near}?" if near else
                     f"looked in {path.parent.absolute()}")  # fmt: skip


def _near(script: Path) -> str:
    import difflib

    folder = script.parent
    names = sorted(p.name for p in folder.glob("*.py")) if folder.is_dir() else []
    close = difflib.get_close_matches(script.name, names, n=1)
    return str(folder / close[0]) if close else ""


def _check_counts(plan: LaunchPlan, ranks: int) -> None:
    asked = (
        ("-n", ranks, "a job has at least one rank"),
        ("--per-node", plan.per_node, "a node has at least one rank"),
        ("--cores", plan.cores, "a rank has at least one core"),
    )
    for option, value, least in asked:
        if value is not None and value < 1:
            raise DlrunError(f"{option} {value}: {least}", f"give {option} 1 or more")
    slots = [host.slots for host in plan.hosts if host.slots is not None]
    if plan.hosts and len(slots) == len(plan.hosts) and sum(slots) < ranks:
        raise DlrunError(f"-n {ranks} ranks, and the {len(slots)} hosts named take {sum(slots)}",
                         f"give -n {sum(slots)}, or more slots per host")  # fmt: skip
    outside = [rank for rank in plan.show if rank >= ranks]
    if outside:
        raise DlrunError(f"--show {outside[0]}: the ranks are 0 to {ranks - 1}")


def _launcher(plan: LaunchPlan, site: Site, ranks: int) -> tuple[Launcher, tuple[str, ...]]:
    from dlrun.launch.backends import BACKENDS

    if plan.mpiexec:
        path = shutil.which(plan.mpiexec, path=site.env.get("PATH")) or plan.mpiexec
        launcher = recognise(path, "it was named")
        if launcher is None:
            raise DlrunError(f"--mpiexec {plan.mpiexec} is no launcher that dlrun knows, by its --version",
                             f"known are {', '.join(BACKENDS)}")  # fmt: skip
        return launcher, ()
    if plan.backend != "auto" and plan.backend not in BACKENDS:
        raise DlrunError(f"--backend {plan.backend} is not known", f"known are auto, {', '.join(BACKENDS)}")
    for launcher in site.launchers() if plan.backend != "local" else ():
        if plan.backend in ("auto", launcher.backend):
            return launcher, ()
    if plan.backend == "local" or (plan.backend == "auto" and ranks == 1):
        return Launcher("", "local", why="one rank needs no launcher"), ()
    name = "mpich" if plan.backend == "auto" else plan.backend
    absent = Launcher(BACKENDS[name].program, name)
    return absent, (replace(plan, launcher=absent).missing,)
