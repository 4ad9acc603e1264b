"""Which rank this process is: the launchers' variables in one table."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple


class Names(NamedTuple):
    """How one launcher calls a rank's place; an empty name is a thing it does not tell."""

    rank: str
    size: str = ""
    local_rank: str = ""
    local_size: str = ""
    node: str = ""


# Innermost first: a launcher started inside another's job leaves the outer one's variables standing, so the first row
# that is set is the launcher that started this very process. Slurm's come last: under mpiexec in a Slurm job they
# belong to mpiexec's daemon. OMPI_COMM_WORLD_NODE_RANK is no node index; PALS_LOCAL_SIZE is no world size.
NAMES: dict[str, Names] = {
    "flux": Names("FLUX_TASK_RANK", "FLUX_JOB_SIZE", "FLUX_TASK_LOCAL_ID"),
    "openmpi": Names(
        "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"
    ),
    "jsrun": Names("JSM_NAMESPACE_RANK", "JSM_NAMESPACE_SIZE", "JSM_NAMESPACE_LOCAL_RANK", "JSM_NAMESPACE_LOCAL_SIZE"),
    "pals": Names("PALS_RANKID", "", "PALS_LOCAL_RANKID", "PALS_LOCAL_SIZE", "PALS_NODEID"),
    "mpich": Names("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
    "aprun": Names("ALPS_APP_PE"),
    "srun": Names("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "SLURM_STEP_TASKS_PER_NODE", "SLURM_NODEID"),
}
NAMES["intel"] = NAMES["mpich"]
NAMES["spectrum"] = NAMES["openmpi"]


class Identity(NamedTuple):
    """A rank's place in the job; ``None`` is what its launcher did not tell (``dlrun launch`` then does)."""

    rank: int
    size: int | None
    local_rank: int | None = None
    local_size: int | None = None
    node: int | None = None


def identity(env: Mapping[str, str], backend: str = "") -> Identity:
    """Return this process's place, reading ``backend``'s variables first and then the table, innermost first.

    Without any launcher's variables this is rank 0 of 1.
    """
    order = ([backend] if backend in NAMES else []) + [b for b in NAMES if b != backend]
    for name in order:
        names = NAMES[name]
        rank = _number(env, names.rank)
        if rank is None or (names is NAMES["srun"] and "SLURM_STEP_ID" not in env):
            continue
        node = _number(env, names.node)
        local_size = _number(env, names.local_size)
        if name == "srun" and node is not None:
            local_size = tasks_on(env.get(names.local_size, ""), node)
        return Identity(rank, _number(env, names.size), _number(env, names.local_rank), local_size, node)
    return Identity(0, 1, 0, 1, 0)


def tasks_on(per_node: str, node: int) -> int | None:
    """Return entry ``node`` of Slurm's tasks-per-node list, as in ``2(x3),1``."""
    for count, repeats in re.findall(r"(\d+)(?:\(x(\d+)\))?", per_node):
        node -= int(repeats or 1)
        if node < 0:
            return int(count)
    return None


def _number(env: Mapping[str, str], name: str) -> int | None:
    text = env.get(name, "") if name else ""
    return int(text) if text.isdigit() else None
