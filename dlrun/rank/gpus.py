"""The GPUs of a node: what there is, which of them is near whom, and the one variable that masks them.

Everything is read from /proc and /sys below ``root``, so that a test hands it a recorded machine. No program is
started: every rank pays for this.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import NamedTuple

# The one variable that masks a vendor's GPUs, and those that would mask a second time inside it: two masks at once
# may leave nothing visible, so exactly one is set.
MASKS = {
    "nvidia": ("CUDA_VISIBLE_DEVICES", ()),
    "amd": ("ROCR_VISIBLE_DEVICES", ("HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL")),
    "intel": ("ZE_AFFINITY_MASK", ()),
}
_HIDDEN = ("none", "void", "nodevfiles", "-1")  # a mask that leaves no GPU, as schedulers spell it


class Gpu(NamedTuple):
    """A GPU: its name in a mask (a UUID, or a number), and the CPUs of its NUMA node (none: not known)."""

    name: str
    cpus: frozenset[int] = frozenset()


def gpus(root: str = "", env: Mapping[str, str] = os.environ) -> tuple[str, list[Gpu]]:
    """Return the vendor of this node's GPUs ("" where there are none) and the GPUs, in the order masks count them.

    NVIDIA's are named by UUID, which stays right inside containers and device cgroups. Intel's are tiles unless
    ``ZE_FLAT_DEVICE_HIERARCHY`` in ``env`` makes devices of them: "0.1" is then the second tile of the first.
    """
    found = _nvidia(root)
    if found:
        return "nvidia", found
    if found := _amd(root):
        return "amd", found
    if found := _intel(root, env.get("ZE_FLAT_DEVICE_HIERARCHY", "FLAT") != "FLAT"):
        return "intel", found
    return "", []


def visible(env: Mapping[str, str], vendor: str, found: Sequence[Gpu]) -> list[Gpu]:
    """Return the GPUs that the scheduler (or the user) has left to this process by the masks in ``env``.

    AMD's may be masked twice: what HIP's variable counts are then the GPUs that ROCR's has left. Some schedulers set
    both alike, and some CUDA's alone; they then mean the same GPUs.
    """
    outer, inner = MASKS[vendor]
    left = _chosen(env.get(outer), found)
    for name in inner:
        if name in env and env[name] != env.get(outer):
            places = env[name].split(",")
            if not env[name] or any(place.strip().lower() in _HIDDEN for place in places):
                return []
            if all(place.isdigit() and int(place) < len(left) for place in places):
                return [left[int(place)] for place in places]
    return left


def assign(blocks: Sequence[frozenset[int]], left: Sequence[Gpu], each: int = 1) -> list[list[int]]:
    """Return, for every rank of the node, which of the GPUs ``left`` are its own: those that are near its cores.

    ``blocks`` are the CPUs of each rank. A rank takes the first free GPU that shares most of its CPUs; where nothing
    is known this is the GPUs in their order. Where there are fewer GPUs than ranks want, they are
    shared evenly.
    """
    taken: list[list[int]] = []
    free = list(range(len(left)))
    for block in blocks:
        mine: list[int] = []
        for _ in range(min(each, len(left))):
            if not free:
                free = [i for i in range(len(left)) if i not in mine]
            nearest = max(free, key=lambda i: (len(left[i].cpus & block), -i))
            free.remove(nearest)
            mine.append(nearest)
        taken.append(mine)
    return taken


def by_number(taken: Sequence[Sequence[int]]) -> list[int]:
    """Return the first GPU of each rank, once: so ordered, a rank's GPU has its local rank, as under torchrun."""
    return list(dict.fromkeys(own[0] for own in taken if own))


def mask(env: Mapping[str, str], vendor: str, left: Sequence[Gpu], own: Sequence[int]) -> dict[str, str]:
    """Return the variables that put the local GPUs (places in ``left``) first, inside what the scheduler left.

    All GPUs stay visible: peers can map each other's memory, and ``cuda:0`` is local. Intel's mask cannot
    order, so there a rank sees its own alone. Nothing is set where there is no GPU.
    """
    if not vendor or not left:
        return {}
    ordered = [left[i].name for i in own]
    if vendor != "intel":
        ordered += [gpu.name for i, gpu in enumerate(left) if i not in own]
    settings = {MASKS[vendor][0]: ",".join(ordered)}
    if vendor == "nvidia" and "CUDA_DEVICE_ORDER" not in env:
        settings["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"  # the default, fastest first, is not what schedulers count by
    return settings


def cpu_list(text: str) -> frozenset[int]:
    """Return the CPUs of ``0-3,8``."""
    found: set[int] = set()
    for part in text.strip().split(",") if text.strip() else ():
        first, _, last = part.partition("-")
        found.update(range(int(first), int(last or first) + 1))
    return frozenset(found)


def _chosen(value: str | None, among: Sequence[Gpu]) -> list[Gpu]:
    """Return the GPUs of a mask, by number, UUID or the beginning of one; what is not known keeps its name."""
    if value is None:
        return list(among)
    names = [name.strip() for name in value.split(",") if name.strip()]
    if any(name.lower() in _HIDDEN for name in names):
        return []
    chosen = []
    for name in names:
        if name.isdigit():
            near = among[int(name)].cpus if int(name) < len(among) else frozenset()
            chosen.append(Gpu(name, near))
        else:
            chosen.append(next((Gpu(name, gpu.cpus) for gpu in among if gpu.name.startswith(name)), Gpu(name)))
    return chosen


def _nvidia(root: str) -> list[Gpu]:
    found = []
    for bus in _names(f"{root}/proc/driver/nvidia/gpus"):
        facts = {}
        for line in _read(f"{root}/proc/driver/nvidia/gpus/{bus}/information").splitlines():
            name, _, value = line.partition(":")
            facts[name.strip()] = value.strip()
        if "GPU UUID" in facts and os.path.exists(f"{root}/dev/nvidia{facts.get('Device Minor', '')}"):  # noqa: PTH110
            found.append(Gpu(facts["GPU UUID"], _near(root, f"{root}/sys/bus/pci/devices/{bus.lower()}")))
    return found


def _amd(root: str) -> list[Gpu]:
    """The nodes of the kernel's topology that have a GPU; their place on the bus is in ``location_id``."""
    nodes = f"{root}/sys/class/kfd/kfd/topology/nodes"
    found: list[Gpu] = []
    for node in sorted(_names(nodes), key=lambda name: int(name) if name.isdigit() else -1):
        if _read(f"{nodes}/{node}/gpu_id").strip() in ("", "0"):
            continue
        facts = dict(line.split(maxsplit=1) for line in _read(f"{nodes}/{node}/properties").splitlines() if " " in line)
        place = int(facts.get("location_id", 0))
        bus = f"{int(facts.get('domain', 0)):04x}:{place >> 8 & 0xFF:02x}:{place >> 3 & 0x1F:02x}.{place & 7:x}"
        found.append(Gpu(str(len(found)), _near(root, f"{root}/sys/bus/pci/devices/{bus}")))
    return found


def _intel(root: str, composite: bool) -> list[Gpu]:
    """The tiles of Intel's data centre GPUs (PCI class "display controller"; a desktop's own is a VGA one)."""
    found: list[Gpu] = []
    cards = [name for name in _names(f"{root}/sys/class/drm") if name[:4] == "card" and name[4:].isdigit()]
    number = 0
    for card in sorted(cards, key=lambda name: int(name[4:])):
        device = f"{root}/sys/class/drm/{card}/device"
        if _read(f"{device}/vendor").strip() != "0x8086" or not _read(f"{device}/class").startswith("0x0380"):
            continue
        tiles = [name for name in _names(f"{root}/sys/class/drm/{card}/gt") if name.startswith("gt")]
        tiles = tiles or [name for name in _names(device) if name[:4] == "tile" and name[4:].isdigit()] or ["tile0"]
        for tile in range(len(tiles)):
            name = f"{number}.{tile}" if composite else str(len(found))
            found.append(Gpu(name, _near(root, device)))
        number += 1
    return found


def _near(root: str, device: str) -> frozenset[int]:
    """Return the CPUs of a PCI device's NUMA node, none where the machine has one node only or does not tell."""
    node = _read(f"{device}/numa_node").strip()
    if node.isdigit():
        return cpu_list(_read(f"{root}/sys/devices/system/node/node{node}/cpulist"))
    return frozenset()


def _names(folder: str) -> list[str]:
    try:
        return sorted(os.listdir(folder))  # noqa: PTH208 - pathlib costs 5 ms a rank
    except OSError:
        return []


def _read(path: str) -> str:
    try:
        with open(path) as file:  # noqa: PTH123
            return file.read()
    except OSError:
        return ""
