"""This rank's share of its node: which GPU, how many threads."""

from __future__ import annotations

import json
import math
import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass

from dl_comm import _core
from dl_comm.ranks import world

_gpu = 0


@dataclass(frozen=True)
class Share:
    """What this rank shall use: the index of its GPU among those it sees, if any, and a number of threads."""

    gpu: int | None
    threads: int


def share_of_machine(gpus: Sequence[str]) -> Share:
    """Agree with the other ranks of this node on who uses what. Collective.

    ``gpus`` names the GPUs that this process sees, in its order; a name means the same GPU in every process.
    """
    global _gpu
    here = {"host": socket.gethostname(), "cores": sorted(os.sched_getaffinity(0)), "gpus": list(gpus)}
    everyone = [json.loads(b) for b in _core.allgather_bytes(json.dumps(here).encode())]
    neighbours = [r for r, other in enumerate(everyone) if other["host"] == here["host"]]
    me = neighbours.index(world().rank)
    gpu = pick_gpus([everyone[r]["gpus"] for r in neighbours])[me] if gpus else None
    _gpu = gpu or 0
    return Share(gpu, fair_threads([everyone[r]["cores"] for r in neighbours], me))


def get_gpu() -> int:
    """Return the index of this rank's GPU among those that this process sees, as ``init`` chose it; 0 where it did not.

    The rank's number within its node is no such index: ``dlrun launch`` shows each rank its own GPU first.
    """
    return _gpu


def pick_gpus(visible: Sequence[Sequence[str]]) -> list[int]:
    """Return for each rank of a node the index, in its own list of visible GPUs, of the GPU it shall use.

    In rank order, each takes the first GPU of its list that the fewest ranks before it took. So ranks that all see
    the same list take one each, and a rank whose launcher listed its own GPU first takes that one.
    """
    taken: dict[str, int] = {}
    picks = []
    for names in visible:
        pick = min(range(len(names)), key=lambda i: taken.get(names[i], 0), default=0)
        if names:
            taken[names[pick]] = taken.get(names[pick], 0) + 1
        picks.append(pick)
    return picks


def fair_threads(cores: Sequence[Sequence[int]], me: int) -> int:
    """Return the number of threads for rank ``me`` of a node, where rank r may run on ``cores[r]``."""
    share = sum(1 / sum(core in other for other in cores) for core in cores[me])
    return max(1, math.floor(share + 1e-9))
