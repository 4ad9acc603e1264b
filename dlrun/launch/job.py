"""The same launch inside a batch script."""

from __future__ import annotations

import math
import re
import shlex
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dlrun.errors import DlrunError
from dlrun.launch.check_options import check_counts
from dlrun.launch.plan import LaunchPlan
from dlrun.launch.program_kind import kind_of
from dlrun.render import render

# The batch systems that a script can be written for, and the command that submits it.
SUBMIT = {
    "slurm": "sbatch",
    "pbs": "qsub",
    "cobalt": "qsub",
    "lsf": "bsub <",
    "flux": "flux batch",
    "kubernetes": "kubectl apply -f",
}
_MPI_OPERATORS_HOSTS = "/etc/mpi/hostfile"  # where the MPI operator tells the launcher's pod of the others


@dataclass(frozen=True)
class Job:
    """What a batch system wants to know besides the launch: its kind, the time (H:MM:SS), whom to charge, where.

    Kubernetes also wants the container's ``image``, with dlrun, an MPI and sshd in it, and a ``volume``: the claim on
    one that all pods can write, with the script in it.
    """

    system: str
    time: str = "1:00:00"
    account: str = ""
    queue: str = ""
    image: str = ""
    volume: str = ""

    @property
    def seconds(self) -> int:
        """The time in seconds."""
        hours, minutes, seconds = map(int, self.time.split(":"))
        return hours * 3600 + minutes * 60 + seconds


def script(plan: LaunchPlan, job: Job, words: Sequence[str]) -> str:
    """Return the batch script that runs ``dlrun launch`` with the ``words`` that spell ``plan``: options and arguments.

    It asks for the nodes that ``plan`` needs. Inside the job ``dlrun launch`` finds the allocation, so everything it
    promises holds there too. Raises :class:`DlrunError` for a batch system or a time that is none.
    """
    if job.system not in SUBMIT:
        raise DlrunError(f"--as {job.system}: no batch system of this name", f"known are {', '.join(SUBMIT)}")
    for option in ("account", "queue", "image", "volume"):
        if not getattr(job, option).isprintable():
            raise DlrunError(
                f"--{option} {getattr(job, option)!r} holds a line break or the like",
                "give the name alone: it stands in a line of the batch script",
            )
    if not re.fullmatch(r"\d+(:[0-5]\d){2}", job.time):
        raise DlrunError(f"--time {job.time} is no time", "write H:MM:SS, as 1:30:00")
    if plan.hosts:
        raise DlrunError(
            "--hosts in a batch script: the batch system chooses the hosts",
            "leave them out; --per-node says how many ranks each takes",
        )
    if plan.ranks is None:
        raise DlrunError("how many ranks is not said", "say so: dlrun launch -n 8 --job FILE")
    check_counts(plan, plan.ranks)
    if job.system != "kubernetes":  # there the script lies in the volume
        kind_of(plan)
    per_node = plan.per_node or plan.ranks
    facts = {
        **asdict(job),
        "name": re.sub(r"[^\w.-]+", "-", plan.name),
        "nodes": -(-plan.ranks // per_node),
        "ranks": plan.ranks,
        "per_node": per_node,
        "cores": plan.cores,
        "gpus": plan.gpus,
        "seconds": job.seconds,
        "save_time": math.ceil(plan.save_time),
    }
    if job.system == "kubernetes":
        return _mpijob(plan, job, words, facts)
    setup = f"export PATH={shlex.quote(str(Path(sys.executable).parent))}:$PATH"
    return render(f"job/{job.system}.sh", setup=setup, line=shlex.join(["dlrun", "launch", *words]), **facts)


def _mpijob(plan: LaunchPlan, job: Job, words: Sequence[str], facts: dict[str, Any]) -> str:
    """Return the MPIJob for Kubernetes' MPI operator: a pod that runs ``dlrun launch``, and one for each node."""
    missing = [f"--{name}" for name in ("image", "volume") if not getattr(job, name)]
    if missing:
        raise DlrunError(
            f"Kubernetes wants {' and '.join(missing)}",
            "--image names a container with dlrun, an MPI "
            "and sshd; --volume the claim on a volume that all pods can write",
        )
    name = re.sub(r"[^a-z0-9]+", "-", facts["name"].lower()).strip("-")[:40] or "job"
    line = ["dlrun", "launch", "--hostfile", _MPI_OPERATORS_HOSTS, *words]
    return render("job/kubernetes.yaml", **{**facts, "name": name, "backend": plan.backend, "line": line})
