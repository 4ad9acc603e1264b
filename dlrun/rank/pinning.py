"""Where a rank runs: its GPUs, its cores, its threads. All of it set before MPI, CUDA or OpenMP wake up."""

from __future__ import annotations

import os
from collections.abc import Mapping, MutableMapping, Sequence
from typing import Any

from dlrun.rank.gpus import MASKS, Gpu, assign, by_number, gpus, mask, visible

SHM_EACH = 12 << 20  # bytes of /dev/shm that a rank may take, or look for
Core = tuple[int, ...]  # its hardware threads


def pin(env: MutableMapping[str, str], local_rank: int, local_size: int, want: Mapping[str, Any]) -> bool:
    """Set GPU mask, affinity and thread count of this process for rank ``local_rank`` of ``local_size`` on its node.

    ``want`` is the ``place`` entry of the spec: ``bind`` (whether the shim binds), ``cores`` and ``gpus`` per rank
    (``None``: an equal share, and 1), ``by_number`` (whether a rank finds its own GPU by its local rank, as torchrun's
    do, and not as the first), and ``cpus``, the CPUs that the launcher gave to each of the node's ranks, where it did
    not give all to all: it has bound them, and they stay so; ``shm`` are the bytes that /dev/shm has free.

    Returns whether NVIDIA's GPUs are shared by ranks, and nobody has seen to that (``served``; see mps.py).
    """
    blocks = bound(cores(os.sched_getaffinity(0)), local_size, want)
    mine = blocks[local_rank]
    if want.get("bind") and not want.get("cpus") and mine:
        os.sched_setaffinity(0, {cpu for core in mine for cpu in core})
    vendor, found = gpus(env=env)
    left: list[Gpu] = []
    if vendor:
        left = visible(env, vendor, found)
        near = [frozenset(cpu for core in block for cpu in core) for block in blocks]
        taken = assign(near, left, want.get("gpus") or 1)
        own = by_number(taken) if want.get("by_number") else taken[local_rank]
        env.update(mask(env, vendor, left, own))
        if left:
            for name in MASKS[vendor][1]:
                env.pop(name, None)
    for name, value in {**fork_safety(), **without_shm(local_size, want.get("shm"))}.items():
        env.setdefault(name, value)
    env.setdefault("OMP_NUM_THREADS", str(len(mine) or 1))
    env.setdefault("UCX_LOG_FILE", "stderr")  # its warnings are no part of what a script prints (default: stdout)
    shared = vendor == "nvidia" and local_size * (want.get("gpus") or 1) > len(left) > 0
    return shared and not want.get("served")


def bound(here: Sequence[Core], local_size: int, want: Mapping[str, Any]) -> list[Sequence[Core]]:
    """Return the cores of each rank of the node, () where it has none of its own; ``here`` are this process's."""
    if cpus := want.get("cpus"):
        return [cores(set(each)) for each in cpus]
    if not want.get("bind"):
        return [here] * local_size
    return [share(here, rank, local_size, want.get("cores")) for rank in range(local_size)]


def without_shm(local_size: int, free: int | None) -> dict[str, str]:
    """Return the variables that have MPICH do without /dev/shm, where its ``free`` bytes are too few for these ranks.

    It would die of SIGBUS. MPICH 5.0 over UCX was seen to take 5.3 MiB a rank, and 16 KiB with these. Where it finds
    less than twice that, ranks choose different ways to each other now and then, and one dies of SIGSEGV in MPI_Init
    (3 of 14 times with 20 MiB for 2 ranks, never with 24). dl_comm's own memory lies elsewhere.
    """
    if free is None or local_size < 2 or free >= local_size * SHM_EACH:
        return {}
    return {
        "MPIR_CVAR_NOLOCAL": "1",
        "MPIR_CVAR_CH4_SHM_POSIX_IQUEUE_NUM_CELLS": "4",
        "MPIR_CVAR_CH4_SHM_POSIX_IQUEUE_CELL_SIZE": "64",
        "UCX_TLS": "^posix",
    }


def fork_safety(devices: str = "/sys/class/infiniband") -> dict[str, str]:
    """Return the variables that keep memory registered with an RDMA card from breaking in forked DataLoader workers.

    Nothing without such a card. EFA's library has a variable of its own; the others read libibverbs'
    (ibv_fork_init(3)).
    """
    try:
        cards = os.listdir(devices)  # noqa: PTH208 - pathlib costs 5 ms a rank
    except OSError:
        return {}
    settings = {"RDMAV_FORK_SAFE": "1"} if cards else {}
    if any(card.startswith(("efa", "rdmap")) for card in cards):
        settings["FI_EFA_FORK_SAFE"] = "1"
    return settings


def share(
    cores: Sequence[tuple[int, ...]], local_rank: int, local_size: int, each: int | None = None
) -> Sequence[tuple[int, ...]]:
    """Return the cores of one rank: contiguous, so that neighbours share caches and a NUMA node; all ranks disjoint.

    Empty when there are fewer cores than ranks (or than ``local_size * each``): the ranks then float over all of them.
    """
    if each is None:
        first, last = local_rank * len(cores) // local_size, (local_rank + 1) * len(cores) // local_size
        return cores[first:last] if len(cores) >= local_size else ()
    return cores[local_rank * each : (local_rank + 1) * each] if len(cores) >= local_size * each else ()


def cores(allowed: set[int], sys: str = "/sys/devices/system/cpu") -> list[tuple[int, ...]]:
    """Return the physical cores behind the CPUs ``allowed``: tuples of hardware threads, package by package."""
    found: dict[tuple[int, int], list[int]] = {}
    for cpu in sorted(allowed):
        try:
            package = int(_read(f"{sys}/cpu{cpu}/topology/physical_package_id"))
            first = int(_read(f"{sys}/cpu{cpu}/topology/thread_siblings_list").replace("-", ",").split(",")[0])
        except (OSError, ValueError):
            package, first = 0, cpu
        found.setdefault((package, first), []).append(cpu)
    return [tuple(found[key]) for key in sorted(found)]


def _read(path: str) -> str:
    with open(path) as file:  # noqa: PTH123
        return file.read()
