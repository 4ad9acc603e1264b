"""Why the command is what it is, and which rank runs where."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence

from dlrun.launch.commands import library
from dlrun.launch.plan import Command, LaunchPlan
from dlrun.launch.site import Site, numa_nodes
from dlrun.rank.gpus import Gpu, assign, gpus, visible
from dlrun.rank.pinning import bound, cores


def explain(plan: LaunchPlan, command: Command, site: Site) -> str:
    """Return the command with a reason for each flag, and the table of ranks, for a settled ``plan``."""
    rows = [(shlex.join(flag.words), flag.why) for flag in command.flags if flag.words]
    rows += [(f"{name}={value}", "set for the launcher") for name, value in command.set.items()]
    rows += [(f"unset {name}", "left over from another launcher") for name in command.unset]
    rows += [(f"{name}={value}", f"on every rank, from {source}") for name, value, source in variables(plan, site)]
    width = min(max((len(row[0]) for row in rows), default=0), 44)
    lines = [f"  {words:<{width}}  {why}" for words, why in rows]
    return "\n".join([*lines, "", *table(plan, site)])


def variables(plan: LaunchPlan, site: Site) -> list[tuple[str, str, str]]:
    """Return (name, value, source) of what is set on every rank, and of dl_comm's settings that this shell holds."""
    assert plan.launcher
    origins = dict(plan.origins)
    found = {name: (value, origins.get(name, "the command line")) for name, value in plan.env}
    for name, value in library(plan.launcher, site).items():
        found.setdefault(name, (value, "the launcher: the library beside it"))
    for name, value in sorted(site.env.items()):
        if name.startswith("DL_COMM_"):
            found.setdefault(name, (value, "this shell"))
    return [(name, *rest) for name, rest in found.items()]


def table(plan: LaunchPlan, site: Site) -> list[str]:
    """Return one line per rank: where it runs, on which cores, with which GPU first."""
    here = cores(os.sched_getaffinity(0)) if plan.local else []
    vendor, found = gpus(env=site.env) if plan.local else ("", [])
    blocks, own, left = _shares(plan, site, here, vendor, found)
    numa = numa_nodes() if plan.local else {}
    lines = [f"  {'rank':>4}  {'host':<16}{'local':<8}{'cores':<16}{'NUMA':<6}GPU"]
    for rank, (host, local_rank, local_size) in enumerate(placement(plan, site)):
        if plan.local and plan.bind:
            cpus = sorted(cpu for core in blocks[local_rank] for cpu in core)
            on = _ranges(cpus) or "any"
        else:
            cpus = []
            on = f"{plan.cores} of its own" if plan.cores else ("an equal share" if plan.bind else "any")
        gpu = ",".join(left[i].name for i in own[local_rank]) or "-" if plan.local else "its own first"
        near = _ranges(sorted({numa[cpu] for cpu in cpus if cpu in numa})) or "-"
        lines.append(f"  {rank:>4}  {host:<16}{f'{local_rank}/{local_size}':<8}{on:<16}{near:<6}{gpu}")
        if rank == 63 and (plan.ranks or 0) > 64:
            lines.append(f"  and {(plan.ranks or 0) - 64} more")
            break
    return lines


def _shares(
    plan: LaunchPlan, site: Site, here: list[tuple[int, ...]], vendor: str, found: list[Gpu]
) -> tuple[list[Sequence[tuple[int, ...]]], list[list[int]], list[Gpu]]:
    """Return each local rank's cores, its GPUs (places in the third), and the GPUs that are left to the job."""
    blocks = bound(here, plan.ranks or 1, {"bind": plan.bind, "cores": plan.cores}) if plan.local else []
    left = visible(site.env, vendor, found) if vendor else []
    near = [frozenset(cpu for core in block for cpu in core) for block in blocks]
    return blocks, assign(near, left, plan.gpus or 1), left


def placement(plan: LaunchPlan, site: Site) -> list[tuple[str, int, int]]:
    """Return (host, local rank, ranks on that host) of each rank: hosts are filled one after the other."""
    ranks = plan.ranks or 1
    even = -(-ranks // (len(plan.hosts) or plan.nodes))
    if plan.hosts:
        slots = [(host.name, host.slots or plan.per_node or even) for host in plan.hosts]
    else:
        names = [site.host] if plan.local else [f"node {i}" for i in range(plan.nodes)]
        slots = [(name, plan.per_node or even) for name in names]
    placed: list[tuple[str, int, int]] = []
    for name, most in slots:
        here = min(most, ranks - len(placed))
        placed += [(name, i, here) for i in range(here)]
    return placed


def _ranges(cpus: list[int]) -> str:
    """Return ``0-3,8`` for [0, 1, 2, 3, 8]."""
    parts: list[list[int]] = []
    for cpu in cpus:
        if parts and parts[-1][-1] == cpu - 1:
            parts[-1].append(cpu)
        else:
            parts.append([cpu])
    return ",".join(str(p[0]) if len(p) == 1 else f"{p[0]}-{p[-1]}" for p in parts)
