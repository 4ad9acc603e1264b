"""The act: run a script's first steps on a few ranks of this machine, and average its gradients alone."""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable
from dataclasses import dataclass

from dlrun.bench.cases import WIDTHS, Case
from dlrun.bench.run import measure, usable_cores
from dlrun.errors import DlrunError
from dlrun.launch import LaunchPlan, look_here, prepare
from dlrun.launch.profile import choose, folder, key_of, read
from dlrun.tune.steps import probe, settled

STEPS = 24


@dataclass(frozen=True)
class Measured:
    """A script's step on so many ranks of one node: seconds, of which it averages for `averaging` when that is alone.

    `counts` are the elements of each array that is averaged in a step, `memory` the bytes that the largest rank held,
    `gpu_memory` those of its GPU (0: none was used). `overlap`: they are averaged while backward runs.
    """

    ranks: int
    step: float
    averaging: float
    counts: tuple[int, ...]
    dtype: str
    overlap: bool
    memory: int
    gpu_memory: int

    @property
    def nbytes(self) -> int:
        """The bytes of a step's gradients."""
        return sum(self.counts) * WIDTHS[self.dtype]


def ranks_to_measure(wanted: int, per_node: int) -> int:
    """Return on how many ranks to measure: a node's, as far as this machine has GPUs or cores for them; 2 at least."""
    site = look_here()
    return max(2, min(wanted, per_node, site.gpus or usable_cores()))


def measured(plan: LaunchPlan, ranks: int, per_node: int, seconds: float, on_stage: Callable[[str], None]) -> Measured:
    """Run the plan's script for some steps on `ranks` ranks, each with the cores it would have as one of `per_node`."""
    threads = os.environ.get("OMP_NUM_THREADS") or str(max(1, usable_cores() // per_node))
    here = plan._replace(ranks=ranks, per_node=None, sandboxed=True, env=(*plan.env, ("OMP_NUM_THREADS", threads)))
    on_stage(f"running {STEPS} steps of {plan.program[0]} on {ranks} ranks")
    seen = probe(here, STEPS)
    case = Case(plan.name, tuple(seen["counts"]))
    on_stage(f"averaging its gradients alone on {ranks} ranks")
    device = "cuda" if seen.get("gpu_memory") else "cpu"
    like = LaunchPlan((), backend=plan.backend, mpiexec=plan.mpiexec)
    bench = measure([case], ranks, seen["dtype"], seconds, ["dl_comm"], dict(here.env), like, device=device)
    if not bench.cells:
        raise DlrunError(f"dl_comm cannot be timed here: {bench.absent.get('dl_comm', 'it gave no numbers')}")
    step = statistics.median(settled(seen["seconds"]))
    return Measured(
        ranks,
        step,
        bench.cells[0].median,
        case.counts,
        seen["dtype"],
        seen["overlap"],
        seen["memory"],
        seen["gpu_memory"],
    )


def with_profile(plan: LaunchPlan) -> tuple[LaunchPlan, str]:
    """Return the plan with the settings that `dlrun tune` found for the job as it is to be, and the line on them."""
    profiles = read(folder(os.environ))
    if not profiles:
        return plan, ""
    chosen = {name: value for name, value in os.environ.items() if name.startswith("DL_COMM_")}
    settings, line = choose(profiles, key_of(prepare(plan._replace(tuned=False))[0]), chosen, plan.name)
    return plan._replace(env=(*plan.env, *settings.items())), line
