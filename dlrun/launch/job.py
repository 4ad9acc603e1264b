"""The same launch inside a batch script."""

from __future__ import annotations

import re
import shlex
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dlrun.errors import DlrunError
from dlrun.launch.plan import LaunchPlan
from dlrun.render import render

# The batch systems that a script can be written for, and the command that submits it.
SUBMIT = {"slurm": "sbatch", "pbs": "qsub", "cobalt": "qsub", "lsf": "bsub <", "flux": "flux batch",
          "kubernetes": "kubectl apply -f"}  # fmt: skip
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


def script(plan: LaunchPlan, job: Job) -> str:
    """Return the batch script that runs ``dlrun launch`` for ``plan`` on the nodes that it needs.

    Inside the job ``dlrun launch`` finds the allocation, so everything it promises holds there too. Raises
    :class:`DlrunError` for a batch system or a time that is none.
    """
    if job.system not in SUBMIT:
        raise DlrunError(f"--as {job.system}: no batch system of this name", f"known are {', '.join(SUBMIT)}")
    if not re.fullmatch(r"\d+:\d\d:\d\d", job.time):
        raise DlrunError(f"--time {job.time} is no time", "write H:MM:SS, as 1:30:00")
    if plan.ranks is None:
        raise DlrunError("how many ranks is not said", "say so: dlrun launch -n 8 --job FILE")
    per_node = plan.per_node or plan.ranks
    facts = {
        **asdict(job),
        "name": Path(plan.program[0]).stem,
        "nodes": -(-plan.ranks // per_node),
        "ranks": plan.ranks,
        "per_node": per_node,
        "cores": plan.cores,
        "gpus": plan.gpus,
        "seconds": job.seconds,
    }
    if job.system == "kubernetes":
        return _mpijob(plan, job, facts)
    setup = f"export PATH={shlex.quote(str(Path(sys.executable).parent))}:$PATH"
    return render(f"job/{job.system}.sh", setup=setup, line=shlex.join(["dlrun", "launch", *words(plan)]), **facts)


def _mpijob(plan: LaunchPlan, job: Job, facts: dict[str, Any]) -> str:
    """Return the MPIJob for Kubernetes' MPI operator: a pod that runs ``dlrun launch``, and one for each node."""
    missing = [f"--{name}" for name in ("image", "volume") if not getattr(job, name)]
    if missing:
        raise DlrunError(f"Kubernetes wants {' and '.join(missing)}", "--image names a container with dlrun, an MPI "
                         "and sshd; --volume the claim on a volume that all pods can write")  # fmt: skip
    name = re.sub(r"[^a-z0-9]+", "-", facts["name"].lower()).strip("-")[:40] or "job"
    line = ["dlrun", "launch", "--hostfile", _MPI_OPERATORS_HOSTS, *words(plan)]
    return render("job/kubernetes.yaml", **{**facts, "name": name, "backend": plan.backend, "line": line})


def words(plan: LaunchPlan) -> list[str]:
    """Return the options and arguments of ``dlrun launch`` that spell ``plan``; hosts are the batch system's."""
    usual = LaunchPlan(plan.program)
    named = {"-n": "ranks", "--per-node": "per_node", "--cores": "cores", "--gpus": "gpus", "--backend": "backend",
             "--mpiexec": "mpiexec", "--log-dir": "run_dir"}  # fmt: skip
    spelled = []
    for option, name in named.items():
        if getattr(plan, name) != getattr(usual, name):
            spelled += [option, str(getattr(plan, name))]
    spelled += [] if plan.bind else ["--no-bind"]
    spelled += [] if plan.tuned else ["--no-tuned"]
    spelled += ["--native", shlex.join(plan.native)] if plan.native else []
    spelled += ["--show", ",".join(map(str, plan.show))] if plan.show != usual.show else []
    spelled += [word for name, value in plan.env for word in ("--env", f"{name}={value}")]
    return [*spelled, *(["-m"] if plan.module else []), *plan.program]
