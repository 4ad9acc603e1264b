"""What a site has, as far as it can be found from here: the answers that ``dlrun config`` offers."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass

from dlrun.launch.site import Site

# The batch systems that dlrun writes scripts for, and the program by which each is known to be here.
SCHEDULERS = {"slurm": "sbatch", "lsf": "bsub", "flux": "flux", "cobalt": "cqsub", "pbs": "qsub"}
_ASK_S = 10.0  # seconds that a batch system gets to answer


@dataclass(frozen=True)
class Survey:
    """A site: its ``scheduler`` ("none": there is none), GPUs and ranks of a node, and whom and where to charge."""

    scheduler: str = "none"
    gpus: int = 0
    per_node: int = 1
    account: str = ""
    queue: str = ""


def survey(site: Site) -> Survey:
    """Return what can be seen of the site. Of Slurm its default partition and the user's account are asked for."""
    found = site.allocation.system or next(
        (name for name, program in SCHEDULERS.items() if shutil.which(program, path=site.env.get("PATH"))), "none"
    )
    scheduler = found if found in SCHEDULERS else "none"
    gpus, queue, account = site.gpus, "", ""
    if scheduler == "slurm":
        queue, on_node = default_partition(_ask(site.env, "sinfo", "--noheader", "--format=%P|%G"))
        gpus = on_node or gpus
        user = site.env.get("USER", "")
        said = _ask(site.env, "sacctmgr", "-nP", "show", "user", user, "format=DefaultAccount") if user else ""
        account = said.splitlines()[0].strip() if said.strip() else ""
    return Survey(scheduler, gpus, gpus or (site.cores if scheduler == "none" else 1), account, queue)


def default_partition(said: str) -> tuple[str, int]:
    """Return the default partition's name and its GPUs a node, of what ``sinfo --format=%P|%G`` said.

    The default's name ends with a star, and its GPUs stand in the list of what its nodes have: ``gpu:a100:4(S:0-1)``.
    """
    name, gpus = "", 0
    for line in said.splitlines():
        partition, _, has = line.strip().partition("|")
        if partition.endswith("*"):
            name = partition.rstrip("*")
            counts = re.findall(r"\bgpu(?::[^:,(]+)?:(\d+)", has)
            gpus = max(gpus, sum(map(int, counts)))
    return name, gpus


def _ask(env: Mapping[str, str], program: str, *words: str) -> str:
    """Return what a program of the batch system says; "" where it is not here, fails or is slow."""
    path = shutil.which(program, path=env.get("PATH"))
    if not path:
        return ""
    try:
        asked = subprocess.run(
            [path, *words], capture_output=True, text=True, timeout=_ASK_S, stdin=subprocess.DEVNULL, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return asked.stdout if not asked.returncode else ""
