"""Decide what a plan leaves open, for this machine: ranks, launcher, nodes, and what the user is told."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

from dlrun.errors import DlrunError
from dlrun.launch.check_options import check_counts, check_placement, gpus_of, reason_against_mps
from dlrun.launch.choose_launcher import choose_launcher, with_library
from dlrun.launch.plan import LaunchPlan
from dlrun.launch.program_kind import kind_of
from dlrun.launch.site import Launcher, Site, flux_nodes


def resolve(plan: LaunchPlan, site: Site) -> LaunchPlan:
    """Return ``plan`` with everything decided, judging by ``site``; raises :class:`DlrunError` for what cannot be."""
    kind = kind_of(plan)
    ranks = _ranks(plan, site)
    check_counts(plan, ranks)
    launcher, notes = choose_launcher(plan, site, ranks)
    pmi = ""
    if launcher.backend in ("srun", "flux") and launcher.why:  # they bring no MPI library of their own
        launcher, pmi = with_library(launcher, site)
    nodes, in_job = _nodes(plan, site, ranks, launcher)
    local = not plan.hosts and not in_job and launcher.backend in ("mpich", "openmpi", "intel", "spectrum", "local")
    check_placement(plan, site, ranks, launcher.backend, local)
    known = bool(local or in_job or plan.hosts)
    program = plan.program
    if kind == "command" and "/" not in program[0] and Path(plan.cwd, program[0]).is_file():
        program = (f"./{program[0]}", *program[1:])  # as a script is: that of this folder, before any on PATH
    return plan._replace(
        program=program,
        ranks=ranks,
        launcher=launcher,
        pmi=pmi,
        nodes=nodes,
        per_node=plan.per_node or (math.ceil(ranks / nodes) if known else None),
        kind=kind,
        show=tuple(range(ranks)) if plan.show is None else plan.show,
        local=local,
        notes=plan.notes + notes + tuple(_notes(plan, site, ranks, launcher, local, known)),
    )


def _ranks(plan: LaunchPlan, site: Site) -> int:
    """Return how many ranks: those asked for, or what the hosts, the batch job or the GPUs here say."""
    slots = [host.slots or 0 for host in plan.hosts]
    ranks = sum(slots) if plan.ranks is None and slots and all(slots) else plan.ranks
    ranks = ranks if ranks is not None else site.allocation.ranks or site.gpus or None
    if ranks is None:
        said = next((word for word in plan.program[1:] if word in ("-n", "--ranks", "-np")), "")
        why = f"; {said} after {plan.program[0]} is that script's own" if said else ""
        raise DlrunError(
            f"how many ranks is not said, and there is no batch job to ask{why}",
            f"say so: dlrun launch -n 2 {plan.program[0]}",
        )
    return ranks


def _nodes(plan: LaunchPlan, site: Site, ranks: int, launcher: Launcher) -> tuple[int, bool]:
    """Return on how many nodes the ranks run, and whether that is inside a batch job."""
    in_job, allocated = bool(site.allocation.system), site.allocation.nodes
    if site.allocation.system == "flux" and launcher.backend == "flux" and launcher.why:
        allocated = flux_nodes(launcher.path)
        in_job = allocated > 0
    nodes = len(plan.hosts) or (math.ceil(ranks / plan.per_node) if plan.per_node else allocated)
    return min(max(nodes, 1), ranks), in_job


def _notes(plan: LaunchPlan, site: Site, ranks: int, launcher: Launcher, local: bool, known: bool) -> Iterator[str]:
    """Yield what the user is told before the start."""
    if local and launcher.path and ranks > site.cores:
        yield f"{ranks} ranks on {site.cores} cores: they share them in time slices, and none is bound to a core"
    if local and plan.gpus and not site.gpus:
        yield f"--gpus {plan.gpus}: dlrun sees no GPU on {site.host}, and gives the ranks none"
    if local and not plan.gpus and 0 < site.gpus < ranks:
        served = plan.mps or "CUDA_MPS_PIPE_DIRECTORY" in site.env
        turns = "" if served else " and have it in time slices: --mps lets them run on it at once"
        yield f"{ranks} ranks share {gpus_of(site)}{turns}; one rank for each is faster"
    if plan.mps and (why := reason_against_mps(plan, site, ranks, local)):
        yield f"--mps is left out: {why}"
    if not known and not plan.per_node:
        yield f"how many ranks a node takes is not said (--per-node): {launcher.backend} decides"
