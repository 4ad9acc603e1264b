"""What is run for a settled plan: the launcher's command, and the spec file that the ranks read."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dlrun.errors import DlrunError
from dlrun.launch import ddl
from dlrun.launch.backends import BACKENDS
from dlrun.launch.plan import ONE_ORDER, Command, Flag, LaunchPlan
from dlrun.launch.site import FAMILY, Launcher, Site, family_of

# Left over from a launcher this process itself was started by; they would tell the new ranks a wrong story.
_STALE = (
    *("PMI_", "PMIX_", "HYDI_", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", "OMPI_COMM_WORLD_", "PRTE_LAUNCHED"),
    *("PALS_RANKID", "PALS_LOCAL_RANKID", "JSM_NAMESPACE_", "FLUX_TASK_", "ALPS_APP_PE"),
    *("DLRUN_RANK", "DLRUN_SIZE", "DLRUN_LOCAL_", "DLRUN_NODE", "DLRUN_NNODES", "DLRUN_RUN_DIR", "DLRUN_AS_OPENMPI"),
)

# What belongs to a machine, a shell or a batch step, and is not carried to other machines.
_NOT_CARRIED = (
    *("BASH_FUNC_", "SLURM_", "SLURMD_", "PBS_", "LSB_", "OMPI_", "PRTE_", "I_MPI_HYDRA_", "HYDRA_", "SSH_", "XDG_"),
    *("CUDA_VISIBLE_", "ROCR_VISIBLE_", "HIP_VISIBLE_", "GPU_DEVICE_ORDINAL", "ZE_AFFINITY_", "DBUS_"),
)
_NOT_CARRIED_NAMES = {
    "DISPLAY",
    "HOME",
    "HOST",
    "HOSTNAME",
    "LOGNAME",
    "MAIL",
    "OLDPWD",
    "PWD",
    "SHELL",
    "SHLVL",
    "TERM",
    "TMPDIR",
    "USER",
    "_",
}


def command(plan: LaunchPlan, site: Site) -> Command:
    """Return what is run for a settled ``plan``."""
    assert plan.launcher
    backend = BACKENDS[plan.launcher.backend]
    unset = tuple(sorted(name for name in site.env if name.startswith(_STALE)))
    settings, dropped = backend.env(plan, site)
    if site.allocation.system == "slurm" and dict(plan.env).get("DLRUN_ATTEMPT", "1") != "1":
        # A step whose node was lost holds its cores until Slurm misses that node; other launchers start by srun, too.
        settings = {**settings, "SLURM_OVERLAP": "1"}
    unset += tuple(name for name in dropped if name in site.env and name not in unset)
    native = [Flag(plan.native, "--native")] if plan.native else []
    return Command((*backend.flags(plan, site), *native, Flag(plan.shim, "what every rank runs")), settings, unset)


def spec(plan: LaunchPlan, site: Site, server: Sequence[tuple[str, int]], token: str) -> dict[str, Any]:
    """Return the spec file of a settled ``plan``: what the shim needs to know, as JSON."""
    assert plan.launcher
    theirs = ddl.loads_operators(plan)
    return {
        "ranks": plan.ranks,
        "nnodes": plan.nodes,
        "backend": plan.launcher.backend,
        "kind": plan.kind,
        "run_dir": str(Path(plan.cwd, plan.run_dir).absolute()),
        "show": list(plan.show or ()),
        "input": plan.input,
        "server": [list(address) for address in server],
        "token": token,
        "silence": plan.silence,
        "serial_after": plan.serial_after,
        "torchrun": plan.torchrun,
        "as_openmpi": theirs and plan.launcher.backend not in ("openmpi", "spectrum"),
        "sandbox": "",
        "place": {
            "bind": plan.bind and not (plan.cores and BACKENDS[plan.launcher.backend].binds),
            "cores": plan.cores,
            "gpus": plan.gpus,
            "by_number": plan.torchrun,
            "served": plan.local,  # mps.py has seen to GPUs that ranks of this machine share
        },
        "inherit": ONE_ORDER | inherit(plan, site),
        "env": library(plan.launcher, site) | (ddl.variables(site.env) if theirs else {}) | dict(plan.env),
    }


def inherit(plan: LaunchPlan, site: Site) -> dict[str, str]:
    """Return the variables of this shell that the ranks would miss: Open MPI carries none to other machines."""
    assert plan.launcher
    if plan.local or plan.launcher.backend not in ("openmpi", "spectrum"):
        return {}
    stay = (*_STALE, *_NOT_CARRIED)
    names = (name for name in site.env if not name.startswith(stay) and name not in _NOT_CARRIED_NAMES)
    return {name: site.env[name] for name in names}


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
