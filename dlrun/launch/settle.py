"""Close a plan for the machine it is to run on; the checks that name the wrong option."""

from __future__ import annotations

import math
import os
import shutil
import warnings
from dataclasses import replace
from pathlib import Path

from dlrun.errors import DlrunError, no_script
from dlrun.launch.backends import BACKENDS
from dlrun.launch.plan import LaunchPlan
from dlrun.launch.site import Launcher, Site, family_of, flux_nodes, pmi_types, recognise

# Launchers that take hosts, but not a number of ranks for each.
_EVEN = ("aprun", "pals", "flux")
_SOURCES = (".c", ".cc", ".cpp", ".cxx", ".cu", ".f", ".f90", ".go", ".rs")  # of programs that are compiled first


def settle(plan: LaunchPlan, site: Site) -> LaunchPlan:
    """Return ``plan`` with everything decided, judging by ``site``; raises :class:`DlrunError` for what cannot be."""
    kind = kind_of(plan)
    slots = [host.slots or 0 for host in plan.hosts]
    ranks = sum(slots) if plan.ranks is None and slots and all(slots) else plan.ranks
    ranks = ranks if ranks is not None else site.allocation.ranks or site.gpus or None
    if ranks is None:
        said = next((word for word in plan.program[1:] if word in ("-n", "--ranks", "-np")), "")
        why = f"; {said} after {plan.program[0]} is that script's own" if said else ""
        raise DlrunError(f"how many ranks is not said, and there is no batch job to ask{why}",
                         f"say so: dlrun launch -n 2 {plan.program[0]}")  # fmt: skip
    check_counts(plan, ranks)
    launcher, notes = _launcher(plan, site, ranks)
    pmi = ""
    if launcher.backend in ("srun", "flux") and launcher.why:  # they bring no MPI library of their own
        launcher = replace(launcher, library=site.env.get("DL_COMM_MPI_LIBRARY") or _library_here(site))
        pmi = _pmi(launcher) if launcher.backend == "srun" else ""
    in_job = bool(site.allocation.system)
    allocated = site.allocation.nodes
    if site.allocation.system == "flux" and launcher.backend == "flux" and launcher.why:
        allocated = flux_nodes(launcher.path)
        in_job = allocated > 0
    nodes = len(plan.hosts) or (math.ceil(ranks / plan.per_node) if plan.per_node else allocated)
    nodes = min(max(nodes, 1), ranks)
    local = not plan.hosts and not in_job and launcher.backend in ("mpich", "openmpi", "intel", "spectrum", "local")
    _check_placement(plan, site, ranks, launcher.backend, local)
    if local and launcher.path and ranks > site.cores:
        notes += (f"{ranks} ranks on {site.cores} cores: they take turns, and none is bound to a core",)
    if local and plan.gpus and not site.gpus:
        notes += (f"--gpus {plan.gpus}: dlrun sees no GPU on {site.host}, and gives the ranks none",)
    if local and not plan.gpus and 0 < site.gpus < ranks:
        served = plan.mps or "CUDA_MPS_PIPE_DIRECTORY" in site.env
        turns = "" if served else " and have it in turns: --mps lets them run on it at once"
        notes += (f"{ranks} ranks share {_gpus(site)}{turns}; one rank for each is faster",)
    if plan.mps and (why := _against_mps(plan, site, ranks, local)):
        notes += (f"--mps is left out: {why}",)
    known = local or in_job or plan.hosts
    if not known and not plan.per_node:
        notes += (f"how many ranks a node takes is not said (--per-node): {launcher.backend} decides",)
    per_node = plan.per_node or (math.ceil(ranks / nodes) if known else None)
    show = tuple(range(ranks)) if plan.show is None else plan.show
    program = plan.program
    if kind == "command" and "/" not in program[0] and Path(plan.cwd, program[0]).is_file():
        program = (f"./{program[0]}", *program[1:])  # as a script is: that of this folder, before any on PATH
    return replace(plan, program=program, ranks=ranks, launcher=launcher, pmi=pmi, nodes=nodes, per_node=per_node,
                   kind=kind, show=show, local=local, notes=plan.notes + notes)  # fmt: skip


def _against_mps(plan: LaunchPlan, site: Site, ranks: int, local: bool) -> str:
    """Return why no service of NVIDIA's is started for these ranks; "" where one is to be."""
    if not local:
        return "dlrun starts NVIDIA's service for ranks of this machine alone; a batch job's is the site's"
    if not site.gpus:
        return f"dlrun sees no GPU on {site.host}"
    return "" if site.gpus < ranks * (plan.gpus or 1) else "every rank has a GPU of its own"


def _check_placement(plan: LaunchPlan, site: Site, ranks: int, backend: str, local: bool) -> None:
    if plan.cores and local and plan.cores * ranks > site.cores:
        raise DlrunError(f"--cores {plan.cores} for {ranks} ranks needs {plan.cores * ranks} cores; {site.host} has "
                         f"{site.cores}", f"give --cores {max(site.cores // ranks, 1)} or less")  # fmt: skip
    if plan.gpus and local and site.gpus and plan.gpus * ranks > site.gpus:
        raise DlrunError(f"--gpus {plan.gpus} for {ranks} ranks needs {plan.gpus * ranks} GPUs; {site.host} has "
                         f"{site.gpus}", "give --share-gpus in place of --gpus, and the ranks share them")  # fmt: skip
    if local and not plan.gpus and not (plan.share_gpus or plan.mps) and 0 < site.gpus < ranks:
        raise DlrunError(f"{ranks} ranks, and {site.host} has {_gpus(site)}", f"give -n {site.gpus}, or --share-gpus: "
                         "ranks then share a GPU and its memory, or use none")  # fmt: skip
    if plan.hosts and backend == "jsrun":
        raise DlrunError("jsrun takes no hosts: LSF has chosen them", "leave out --hosts; --per-node says how many "
                         "ranks each takes")  # fmt: skip
    if any(host.slots for host in plan.hosts) and backend in _EVEN:
        raise DlrunError(f"{backend} starts the same number of ranks on every host", "leave out the ranks of "
                         "each host, and give --per-node")  # fmt: skip
    if backend == "local" and ranks > 1:
        raise DlrunError(f"--backend local starts one rank, and -n asks for {ranks}", "leave out --backend")


def _gpus(site: Site) -> str:
    return f"{site.gpus} GPU{'s' if site.gpus > 1 else ''}"


def _library_here(site: Site) -> str:
    """Return the MPI library that ranks of this environment load, where their launcher brings none."""
    return next((launcher.library for launcher in site.launchers() if launcher.library), "")


def _pmi(launcher: Launcher) -> str:
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


def kind_of(plan: LaunchPlan) -> str:
    """Return what the program is: "module", "script" (Python's) or "command"; raises DlrunError where there is none."""
    if plan.module:
        from dlrun.launch.module import check

        check(plan.program[0], plan.cwd, dict(plan.env).get("PYTHONPATH", ""))
        return "module"
    script = plan.program[0]
    if not script:
        raise DlrunError("the name of the script is empty", "name one: dlrun launch -n 2 train.py")
    path = Path(plan.cwd, script)
    if path.is_file() and not script.endswith((".py", ".pyw")):
        if os.access(path, os.X_OK):
            return "command"
        _is_python(path, script)
    if path.is_file():
        return "script"
    if "/" not in script and not script.endswith(".py") and shutil.which(script):
        return "command"
    if path.is_dir():
        raise DlrunError(f"{script} is a folder, and no script", "a package's name goes after -m")
    raise no_script(path)


def _is_python(path: Path, name: str) -> None:
    """Raise DlrunError where the file of another ending is no Python script, and so nothing that could be run."""
    import ast

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ast.parse(path.read_bytes())
    except (SyntaxError, ValueError):
        source = path.suffix.lower() in _SOURCES
        hint = "compile it, and launch the program" if source else f"if it is a program: chmod +x {name}"
        raise DlrunError(f"{name} is no Python script, and it is not executable", hint) from None


def check_counts(plan: LaunchPlan, ranks: int) -> None:
    """Raise DlrunError that names the option whose number cannot be."""
    asked = (
        ("-n", ranks, 1, "a job has at least one rank"),
        ("--per-node", plan.per_node, 1, "a node has at least one rank"),
        ("--cores", plan.cores, 1, "a rank has at least one core"),
        ("--gpus", plan.gpus, 1, "a rank is kept from GPUs by --env CUDA_VISIBLE_DEVICES="),
        ("--silence", plan.silence, 1, "a node gets at least a second to answer"),
        ("--start-timeout", plan.start_timeout, 1, "ranks get at least a second to start"),
        ("--stall-timeout", plan.stall_timeout, 1, "ranks get at least a second to make progress"),
        ("--save-time", plan.save_time, 0, "there is no less time than none"),
    )
    for option, value, least, why in asked:
        if value is not None and not value >= least:
            raise DlrunError(f"{option} {value}: {why}", f"give {option} {least} or more")
    slots = [host.slots for host in plan.hosts if host.slots is not None]
    if plan.hosts and len(slots) == len(plan.hosts) and sum(slots) < ranks:
        hosts = f"{len(slots)} hosts named take" if len(slots) > 1 else "one host named takes"
        raise DlrunError(f"-n {ranks} ranks, and the {hosts} {sum(slots)}",
                         f"give -n {sum(slots)}, or more slots per host")  # fmt: skip
    outside = [rank for rank in plan.show or () if rank >= ranks]
    if outside:
        raise DlrunError(f"--show {outside[0]}: the ranks are 0 to {ranks - 1}")


def _launcher(plan: LaunchPlan, site: Site, ranks: int) -> tuple[Launcher, tuple[str, ...]]:
    if plan.mpiexec:
        path = shutil.which(plan.mpiexec, path=site.env.get("PATH"))
        if path is None:
            raise DlrunError(f"--mpiexec {plan.mpiexec}: there is no such program", "give its path")
        launcher = recognise(path, "it was named")
        if launcher is None:
            raise DlrunError(f"--mpiexec {plan.mpiexec} is no launcher that dlrun knows, by its --version",
                             f"known are {', '.join(BACKENDS)}")  # fmt: skip
        if plan.backend not in ("auto", launcher.backend):
            raise DlrunError(f"--mpiexec {plan.mpiexec} is {launcher.backend} {launcher.version}, and --backend asks "
                             f"for {plan.backend}", "leave one of them out")  # fmt: skip
        return launcher, ()
    if plan.backend != "auto" and plan.backend not in BACKENDS:
        raise DlrunError(f"--backend {plan.backend} is not known", f"known are auto, {', '.join(BACKENDS)}")
    for launcher in site.launchers() if plan.backend != "local" else ():
        if plan.backend in ("auto", launcher.backend):
            return launcher, ()
    if plan.backend == "local" or (plan.backend == "auto" and ranks == 1):
        return Launcher("", "local", why="one rank needs no launcher"), ()
    name = "mpich" if plan.backend == "auto" else plan.backend
    program = BACKENDS[name].program
    path = shutil.which(program, path=site.env.get("PATH"))
    other = recognise(path) if path else None
    why = f"{path} is {other.backend} {other.version}" if other else f"{path} tells no version" if path else ""
    absent = Launcher(program, name, why=why)
    return absent, (replace(plan, launcher=absent).missing,)
