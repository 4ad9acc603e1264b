"""What is compared when all ranks have called, before any script starts: the very ranks, in the very launch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from dlrun.rank.pinning import SHM_EACH

_SHM_LEAST = 64 << 20  # bytes; dl_comm keeps a node's gradients in /dev/shm

# What must be the same everywhere: the fact, and what a difference is called.
_SAME = {"python": "Python", "dlrun": "dlrun", "dl_comm": "dl_comm (its compiled module's checksum)"}


def refusals(facts: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return why these ranks cannot train together; each of ``facts`` is what a rank said of itself, in rank order."""
    found = []
    for fact, name in _SAME.items():
        values = Counter(f[fact] for f in facts)
        if len(values) > 1:
            usual = values.most_common(1)[0][0]
            odd = next(f for f in facts if f[fact] != usual)
            found.append(
                f"{name} differs: rank {odd['rank']} on {odd['host']} has {odd[fact] or 'none'}, "
                f"the others {usual or 'none'}"
            )
    return found


def warnings(facts: Sequence[Mapping[str, Any]], nodes: int = 1, local: bool = False, cores: int = 0) -> list[str]:
    """Return what will be slow, or fail later, one line for each host and reason; ``nodes`` are to run the ranks.

    Of the GPUs of this machine alone (``local``) it was told before the start. ``cores``: what each rank was to have.
    """
    found = []
    hosts: dict[str, list[Mapping[str, Any]]] = {}
    for fact in facts:
        hosts.setdefault(fact["host"], []).append(fact)
    if len(hosts) < nodes:
        found.append(
            f"{nodes} nodes are to run the ranks, and the launcher has put them on {len(hosts)}: "
            f"{', '.join(list(hosts)[:4])}; --hosts or --hostfile names the nodes to it"
        )
    for host, ranks in hosts.items():
        free = min(rank["shm"] for rank in ranks)
        if len(ranks) > 1 and free < len(ranks) * SHM_EACH:
            found.append(
                f"{host}: /dev/shm has {free >> 20} MB free, too little for {len(ranks)} ranks: MPI does "
                "without it, more slowly; give the container more (docker run --shm-size=1g)"
            )
        elif free < _SHM_LEAST:
            found.append(
                f"{host}: /dev/shm has {free >> 20} MB free, and gradients are exchanged through it; "
                "give the container more (docker run --shm-size=1g)"
            )
        gpus = set().union(*(rank["gpus"] for rank in ranks))
        if gpus and len(gpus) < len(ranks) and not local:
            shared = f"{len(gpus)} GPU{'s' if len(gpus) > 1 else ''}"
            found.append(f"{host}: {len(ranks)} ranks share {shared}; one rank for each is faster")
        if len(ranks) > 1 and len(gpus) == len(ranks) and all(len(rank["gpus"]) == 1 for rank in ranks):
            found.append(
                f"{host}: each rank sees its own GPU alone, so neighbours cannot map each other's memory; "
                "ask the batch system for GPUs by the node, not by the task"
            )
        cpus = set().union(*(rank["cpus"] for rank in ranks))
        overlap = _overlap(ranks)
        if overlap:
            found.append(
                f"{host}: {overlap}, which the launcher has not given to all ranks alike; each waits for the "
                "other there"
            )
        if len(ranks) * cores > len(cpus):
            there = f"{len(cpus)} CPU{'s are' if len(cpus) > 1 else ' is'} there"
            found.append(
                f"{host}: --cores {cores} for {len(ranks)} of the ranks needs {len(ranks) * cores} cores, and {there}: "
                "they share them, and none is bound to its own"
            )
        if len(cpus) == 1 and len(ranks) > 1:
            found.append(
                f"{host}: all {len(ranks)} ranks may use CPU {min(cpus)} only; a launcher inside "
                "another's job step gets that step's cores"
            )
    return found


def _overlap(ranks: Sequence[Mapping[str, Any]]) -> str:
    """Return which two ranks of a node were bound to CPUs partly the same; "" where the launcher bound none."""
    if all(rank["cpus"] == ranks[0]["cpus"] for rank in ranks):
        return ""
    owner: dict[int, int] = {}
    for rank in ranks:
        for cpu in rank["cpus"]:
            if cpu in owner:
                return f"ranks {owner[cpu]} and {rank['rank']} share CPU {cpu}"
            owner[cpu] = rank["rank"]
    return ""
