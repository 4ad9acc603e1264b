"""Who this process is among the ranks, and its share of the machine and of the random numbers."""

from __future__ import annotations

import hashlib
import json
import math
import multiprocessing
import os
import random
import socket
from collections.abc import Sequence
from dataclasses import astuple, dataclass

import numpy as np
import torch

import dl_comm
from dl_comm import _core

# A DataLoader worker that is spawned imports the script anew; through this it learns whose child it is.
_PARENT = "DL_COMM_PARENT"


@dataclass(frozen=True)
class World:
    """This process's place: ``rank`` of ``size`` in the job, ``localrank`` of ``localsize`` on its node."""

    rank: int
    size: int
    localrank: int
    localsize: int


_world: World | None = None
_own_teams = iter(range(399, 0, -1))


def init() -> None:
    """Join the ranks of the job. A second call does nothing; every other function joins on its first use.

    On several ranks it also gives this rank its share of the machine:

    - where CUDA is available, ``torch.cuda.set_device`` picks, among the GPUs this process sees and in the order in
      which it sees them, the first that the fewest ranks of this node before it have picked;
    - where ``OMP_NUM_THREADS`` is not set, ``torch.set_num_threads`` gets the cores this rank may run on, each
      divided by the number of ranks of this node that may also run there (at least 1).

    It seeds nothing. Raises ``dl_comm.CommError`` when the launcher and the MPI library disagree on the ranks.
    """
    world()


def world() -> World:
    """Return this process's place, joining the ranks on the first call."""
    global _world
    if _world is None:
        if multiprocessing.parent_process() is not None:
            # A worker process speaks for nobody, it only needs to know its parent's place.
            _world = World(*json.loads(os.environ.get(_PARENT, "[0, 1, 0, 1]")))
        else:
            dl_comm.init_mpi()
            _world = World(_core.rank(), _core.size(), _core.local_rank(), _core.local_size())
            os.environ[_PARENT] = json.dumps(astuple(_world))
            if _world.size > 1:
                _share_machine(_world)
    return _world


def _share_machine(world: World) -> None:
    """Choose this rank's GPU and number of threads, knowing what the other ranks of its node may use."""
    cuda = torch.cuda.is_available()
    here = {
        "host": socket.gethostname(),
        "cores": sorted(os.sched_getaffinity(0)),
        "gpus": [_gpu_name(i) for i in range(torch.cuda.device_count())] if cuda else [],
    }
    everyone = [json.loads(b) for b in _core.allgather_bytes(json.dumps(here).encode())]
    neighbours = [r for r, other in enumerate(everyone) if other["host"] == here["host"]]
    me = neighbours.index(world.rank)
    if here["gpus"]:
        torch.cuda.set_device(pick_gpus([everyone[r]["gpus"] for r in neighbours])[me])
    if "OMP_NUM_THREADS" not in os.environ and len(neighbours) > 1:
        torch.set_num_threads(fair_threads([everyone[r]["cores"] for r in neighbours], me))


def _gpu_name(index: int) -> str:
    """A name for visible GPU ``index`` that means the same GPU in every process of this node."""
    uuid = getattr(torch.cuda.get_device_properties(index), "uuid", None)
    if uuid is not None:
        return str(uuid)
    mask = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    return mask.split(",")[index] if mask else str(index)


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


def get_rank() -> int:
    """Return this process's rank, 0 to ``get_nranks() - 1``."""
    return world().rank


def get_nranks() -> int:
    """Return the number of ranks in the job; 1 without a launcher."""
    return world().size


def get_localrank() -> int:
    """Return this process's rank among those of its node."""
    return world().localrank


def get_localsize() -> int:
    """Return the number of ranks on this node."""
    return world().localsize


def parts() -> int:
    """Return by how many ranks the work is divided: their number, or 1 under ``DL_COMM_REPLICATE=1``.

    With that variable every rank repeats the serial run (nothing sharded, scaled or reseeded), which is how a port
    is proved: the mean of n equal gradients is that gradient, so nothing may change.
    """
    return 1 if os.environ.get("DL_COMM_REPLICATE") == "1" else world().size


def own_team() -> int:
    """Return the number of a new team, from the top down: those of the user's count from 0. Collective."""
    team = next(_own_teams)
    _core.create_team(team, int(os.environ.get("DL_COMM_DEFAULT_NTHREADS", "2")))
    return team


def barrier() -> None:
    """Return when all ranks have called it."""
    if get_nranks() > 1:
        _core.barrier()


def finalize() -> None:
    """Leave the ranks, after all of them have come here. A second call does nothing."""
    world()
    if multiprocessing.parent_process() is None:
        dl_comm.finalize()


def is_rank0() -> bool:
    """Return whether this is rank 0, the one that prints and writes files."""
    return get_rank() == 0


def reseed() -> None:
    """Give every rank its own random numbers; rank 0 keeps the serial script's.

    On rank r > 0 the generators of torch (CPU and CUDA), NumPy and ``random`` are seeded from a hash of their own
    state and r: a seeded script stays reproducible. Call it where the ranks shall begin to differ (dropout, noise,
    augmentation), after the model is built.
    """
    rank = get_rank() if parts() > 1 else 0
    if rank == 0:
        return
    torch.manual_seed(shifted_seed(torch.get_rng_state().numpy().tobytes(), rank))
    name, keys, position = np.random.get_state()[:3]  # type: ignore[misc]
    np.random.seed(shifted_seed(f"{name} {position}".encode() + keys.tobytes(), rank) % 2**32)
    random.seed(shifted_seed(repr(random.getstate()).encode(), rank))


def shifted_seed(state: bytes, rank: int) -> int:
    """Return a seed in [0, 2^63) that depends on a generator's ``state`` and on the rank."""
    digest = hashlib.blake2b(state, digest_size=8, salt=rank.to_bytes(8, "little")).digest()
    return int.from_bytes(digest, "little") >> 1
