"""Which launcher is taken: the one that was named, or the first of those that are here and fit."""

from __future__ import annotations

from dlrun.errors import DlrunError
from dlrun.launch.backends import BACKENDS
from dlrun.launch.plan import LaunchPlan
from dlrun.launch.site import Launcher, Site, family_of, pmi_types, recognise, which


def choose_launcher(plan: LaunchPlan, site: Site, ranks: int) -> tuple[Launcher, tuple[str, ...]]:
    """Return the launcher for these ranks, and what to tell of one that is not here.

    ``--mpiexec`` names a program, ``--backend`` a kind; else the first of ``site.launchers()`` is taken. Raises
    :class:`DlrunError` where what was named is no launcher, or another than was asked for.
    """
    if plan.mpiexec:
        path = which(plan.mpiexec, site.env)
        if path is None:
            raise DlrunError(f"--mpiexec {plan.mpiexec}: there is no such program", "give its path")
        launcher = recognise(path, "it was named")
        if launcher is None:
            raise DlrunError(
                f"--mpiexec {plan.mpiexec} is no launcher that dlrun knows, by its --version",
                f"known are {', '.join(BACKENDS)}",
            )
        if plan.backend not in ("auto", launcher.backend):
            raise DlrunError(
                f"--mpiexec {plan.mpiexec} is {launcher.backend} {launcher.version}, and --backend asks "
                f"for {plan.backend}",
                "leave one of them out",
            )
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
    path = which(program, site.env)
    other = recognise(path) if path else None
    why = f"{path} is {other.backend} {other.version}" if other else f"{path} tells no version" if path else ""
    absent = Launcher(program, name, why=why)
    return absent, (plan._replace(launcher=absent).missing,)


def with_library(launcher: Launcher, site: Site) -> tuple[Launcher, str]:
    """Return a launcher that brings no MPI library with the one that ranks will load, and Slurm's --mpi for that."""
    launcher = launcher._replace(library=site.env.get("DL_COMM_MPI_LIBRARY") or _library_here(site))
    return launcher, _pmi(launcher) if launcher.backend == "srun" else ""


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
