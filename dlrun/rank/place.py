"""Where a rank runs: its GPUs, its cores, its threads. All of it set before MPI, CUDA or OpenMP wake up."""

from __future__ import annotations

import os
from collections.abc import Mapping, MutableMapping, Sequence

# The one variable that masks a vendor's GPUs, and those that would mask a second time inside it: two masks at once
# leave nothing visible, so exactly one is set.
_MASKS = {
    "nvidia": ("CUDA_VISIBLE_DEVICES", ()),
    "amd": ("ROCR_VISIBLE_DEVICES", ("HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL")),
    "intel": ("ZE_AFFINITY_MASK", ()),
}


def settle(env: MutableMapping[str, str], local_rank: int, local_size: int, want: Mapping[str, object]) -> None:
    """Set GPU mask, affinity and thread count of this process for rank ``local_rank`` of ``local_size`` on its node.

    ``want`` is the ``place`` entry of the spec: ``bind`` (whether the shim binds; the launcher may have done so),
    ``cores`` and ``gpus`` per rank (``None``: an equal share).
    """
    vendor, found = gpus()
    gpus_each = want.get("gpus")
    env.update(mask(env, vendor, found, local_rank, gpus_each if isinstance(gpus_each, int) else 1))
    if vendor == "amd":
        for name in _MASKS["amd"][1]:
            env.pop(name, None)
    allowed = os.sched_getaffinity(0)
    mine: Sequence[tuple[int, ...]] = cores(allowed)
    if want.get("bind"):
        each = want.get("cores")
        block = share(mine, local_rank, local_size, each if isinstance(each, int) else None)
        if block:
            os.sched_setaffinity(0, {cpu for core in block for cpu in core})
        mine = block or mine[:1]
    env.setdefault("OMP_NUM_THREADS", str(len(mine)))


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


def mask(
    env: Mapping[str, str], vendor: str, found: Sequence[str], local_rank: int, each: int = 1
) -> dict[str, str]:
    """Return the variables that put a rank's own GPUs first, inside what the scheduler left visible.

    All GPUs stay visible: peers can map each other's memory, and ``cuda:0`` is the rank's own. An incoming mask is the
    universe; only its order changes. Nothing is set where there is no GPU.
    """
    if not vendor:
        return {}
    name = _MASKS[vendor][0]
    inherited = env.get(name)
    universe = list(found) if inherited is None else [g for g in inherited.split(",") if g]
    if not universe or any(g.lower() in ("none", "void", "nodevfiles", "-1") for g in universe):
        return {}
    first = local_rank * each % len(universe)
    own = [universe[(first + i) % len(universe)] for i in range(min(each, len(universe)))]
    ordered = own + [g for g in universe if g not in own]
    settings = {name: ",".join(ordered)}
    if vendor == "nvidia" and "CUDA_DEVICE_ORDER" not in env:
        settings["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"  # the default, fastest first, is not what schedulers count by
    return settings


def gpus(root: str = "") -> tuple[str, list[str]]:
    """Return the vendor of this node's GPUs ("" where there are none) and their names, in PCI order.

    NVIDIA's are named by UUID, which stays right inside containers and device cgroups. Starts no program: every rank
    pays for this.
    """
    uuids = []
    for bus in _names(f"{root}/proc/driver/nvidia/gpus"):
        facts = {}
        for line in _read(f"{root}/proc/driver/nvidia/gpus/{bus}/information").splitlines():
            name, _, value = line.partition(":")
            facts[name.strip()] = value.strip()
        if "GPU UUID" in facts and os.path.exists(f"{root}/dev/nvidia{facts.get('Device Minor', '')}"):  # noqa: PTH110
            uuids.append(facts["GPU UUID"])
    if uuids:
        return "nvidia", uuids
    nodes = f"{root}/sys/class/kfd/kfd/topology/nodes"
    amd = [node for node in _names(nodes) if _read(f"{nodes}/{node}/gpu_id").strip() not in ("", "0")]
    return ("amd", [str(i) for i in range(len(amd))]) if amd else ("", [])


def _names(folder: str) -> list[str]:
    try:
        return sorted(os.listdir(folder))  # noqa: PTH208 - pathlib costs 5 ms a rank
    except OSError:
        return []


def _read(path: str) -> str:
    with open(path) as file:  # noqa: PTH123
        return file.read()
