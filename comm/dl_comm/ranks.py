"""Who this process is among the ranks."""

from __future__ import annotations

import datetime
import hashlib
import json
import multiprocessing
import os
import pickle
import random
import time
import uuid
from dataclasses import astuple, dataclass
from pathlib import PurePath
from typing import Any, TypeVar, cast

import numpy as np

import dl_comm
from dl_comm import _core, settings
from dl_comm.generators import GENERATORS, set_state, state_of

# A DataLoader worker that is spawned imports the script anew; through this it learns whose child it is.
_PARENT = "DL_COMM_PARENT"
_T = TypeVar("_T")
# What cannot be changed in place: numbers, texts, times. What broadcast() is given of these, it returns.
VALUES = (
    bool,
    int,
    float,
    complex,
    str,
    bytes,
    type(None),
    np.generic,
    datetime.date,
    time.struct_time,
    uuid.UUID,
    PurePath,
)


@dataclass(frozen=True)
class World:
    """This process's place: ``rank`` of ``size`` in the job, ``localrank`` of ``localsize`` on its node."""

    rank: int
    size: int
    localrank: int
    localsize: int


_world: World | None = None
_faces: set[str] = set()  # those that have set this process up
_own_teams = iter(range(399, 0, -1))


def world() -> World:
    """Return this process's place, joining the ranks on the first call."""
    global _world
    if _world is None:
        if is_worker():
            _world = World(*json.loads(os.environ.get(_PARENT, "[0, 1, 0, 1]")))
        else:
            dl_comm.init_mpi()
            _world = World(_core.rank(), _core.size(), _core.local_rank(), _core.local_size())
            os.environ[_PARENT] = json.dumps(astuple(_world))
    return _world


def is_worker() -> bool:
    """Return whether a rank started this process, as a loader does: it only knows its parent's place."""
    return multiprocessing.parent_process() is not None


def joins(face: str) -> bool:
    """Return whether ``face`` has this process to set up for its rank: one of several ranks, asking the first time."""
    if get_nranks() == 1 or is_worker() or face in _faces:
        return False
    _faces.add(face)
    return True


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
    return 1 if settings.flag(os.environ, "DL_COMM_REPLICATE") else world().size


def own_team() -> int:
    """Return the number of a new team, from the top down: those of the user's count from 0. Collective."""
    team = next(_own_teams, None)
    if team is None:
        raise dl_comm.CommError("no team of threads is left: the functions of dl_comm's faces have taken 399")
    _core.create_team(team, settings.threads(os.environ))
    return team


def barrier() -> None:
    """Return when all ranks have called it."""
    if get_nranks() > 1:
        _core.barrier()


def finalize() -> None:
    """Leave the ranks, after all of them have come here. A second call does nothing."""
    world()
    if not is_worker():
        dl_comm.finalize()


def is_rank0() -> bool:
    """Return whether this is rank 0, the one that prints and writes files."""
    return get_rank() == 0


def shifted_seed(state: bytes, rank: int) -> int:
    """Return a seed in [0, 2^63) that depends on a generator's ``state`` and on the rank."""
    digest = hashlib.blake2b(state, digest_size=8, salt=rank.to_bytes(8, "little")).digest()
    return int.from_bytes(digest, "little") >> 1


def shift_generators(rank: int) -> int:
    """Seed NumPy and ``random`` anew, from a hash of their states and the rank; return NumPy's seed, in [0, 2^32)."""
    numpys = np.random.get_state(legacy=False)
    state = f"{numpys['bit_generator']} {numpys['state']['pos']}".encode() + numpys["state"]["key"].tobytes()
    seed = shifted_seed(state, rank) % 2**32
    np.random.seed(seed)
    random.seed(shifted_seed(repr(random.getstate()).encode(), rank))
    return seed


def shift_own(generators: tuple[Any, ...]) -> None:
    """Seed generators of a script's own anew on the ranks above 0, each from a hash of its state and the rank.

    Takes ``torch.Generator``, NumPy's ``Generator`` and ``RandomState``, ``random.Random``; else raises ``TypeError``.
    """
    rank = get_rank() if parts() > 1 else 0
    for generator in generators:
        if isinstance(generator, GENERATORS):
            state: Any = state_of(generator)
        elif hasattr(generator, "manual_seed"):
            state = generator.get_state().cpu().numpy().tobytes()
        else:
            raise TypeError(f"reseed() got {type(generator).__name__}; it takes generators of torch, NumPy and random")
        seed = shifted_seed(pickle.dumps(state), rank)
        if rank and isinstance(generator, np.random.Generator):
            generator.bit_generator.state = type(generator.bit_generator)(seed).state
        elif rank and hasattr(generator, "manual_seed"):
            generator.manual_seed(seed)
        elif rank:
            generator.seed(seed % 2**32)


def value_of(value: Any, root: int) -> Any:
    """Return rank ``root``'s ``value``, which must be one that can be pickled. Collective.

    A generator of random numbers is local, and goes on as rank ``root``'s.
    """
    if get_nranks() == 1 or is_worker():
        return value
    if isinstance(value, GENERATORS):
        set_state(value, value_of(state_of(value), root))
        return value
    return pickle.loads(_core.broadcast_bytes(pickle.dumps(value), root))


def draw_alike(own: _T) -> _T:
    """Give all ranks rank 0's random numbers, NumPy's and those of ``random``; return what rank 0 has for ``own``."""
    state = pickle.dumps((own, random.getstate(), np.random.get_state()))
    theirs, python, numpys = pickle.loads(_core.broadcast_bytes(state, 0))
    if parts() > 1:
        random.setstate(python)
        np.random.set_state(numpys)
    return cast(_T, theirs)


def share(length: int, rank: int, n: int) -> list[int]:
    """Return the positions of rank ``rank``: r, r + n, ..., as many on every rank, padded from the beginning.

    Raises ``dl_comm.CommError`` where there is less than one for each rank.
    """
    check_enough(length, n)
    return [position % length for position in range(rank, -(-length // n) * n, n)] if length else []


def check_enough(length: int, n: int, entries: str = "entries") -> None:
    """Raise ``dl_comm.CommError`` when ``length`` entries, if any, cannot give each of n ranks one of its own."""
    if 0 < length < n:
        raise dl_comm.CommError(
            f"shard: {length} {entries} cannot be divided among {n} ranks: some would repeat the work of others",
            f"Use at most {length} ranks, or smaller batches, or do not shard these data.",
        )
