"""Runs on every rank: times every way of reducing each case, one after the other, and checks the numbers.

Its argument is a JSON object: `cases` (a list of [name, counts]), `dtype`, `seconds` (per case), `ways` (names, or
empty for all). Rank 0 prints one JSON object per line: what is here, the case at hand, and each finished cell.

A sample is the slowest rank's time, after a barrier, over a few back-to-back calls for what is quick. Ways alternate
inside every round, in an order drawn anew for each, so that a noisy neighbour meets all of them alike: compare within
one run only.
"""

from __future__ import annotations

import json
import os
import platform
import random
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from mpi4py import MPI

sys.path.insert(0, str(Path(__file__).parent))
from answers import fill, storage, wrong
from ways import LIMITS, WAYS, comm

ALIGN = 64  # bytes; arrays of a framework start on a cache line
QUICK = 5e-4  # seconds; quicker calls are timed several at a time
FEWEST, MOST = 5, 400  # rounds per case

rank, size = comm.Get_rank(), comm.Get_size()


def say(event: str, **facts: Any) -> None:
    """One JSON line from rank 0."""
    if rank == 0:
        print(json.dumps({"event": event, **facts}), flush=True)


def room_for(counts: Sequence[int], width: int) -> int:
    """Bytes that arrays of these lengths take, each starting on a cache line."""
    return sum(-(-count * width // ALIGN) * ALIGN for count in counts)


def arrays_in(memory: Any, counts: Sequence[int], dtype: str) -> list[Any]:
    """Arrays of these lengths, one behind the other in a block of bytes, filled with zeros."""
    kind, at, found = storage(dtype), 0, []
    for count in counts:
        array = memory[at : at + count * kind.itemsize].view(kind)
        array[:] = 0  # zeros stay zeros however often they are summed
        found.append(array)
        at += room_for([count], kind.itemsize)
    return found


def reasons_against(names: Sequence[str], dtype: str) -> dict[str, str]:
    """Which of the ways cannot run here, and why: tried on one element, and agreed among the ranks."""
    against: dict[str, str] = {}
    for name in names:
        reason = "" if name in WAYS else f"there is no such way; known are {', '.join(WAYS)}"
        try:
            if name == "horovod":
                import horovod.torch  # noqa: F401
            if name == "gloo":
                import torch  # noqa: F401
            if name == "oneCCL":
                import oneccl_bindings_for_pytorch  # noqa: F401
            if name.startswith("dl_comm"):
                from dl_comm import _core

                _core.init("")
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
        reason = next(filter(None, comm.allgather(reason)), "")
        if not reason:
            try:
                WAYS[name]([np.zeros(1, storage(dtype))], dtype)()
            except Exception as error:
                reason = f"{type(error).__name__}: {error}"
        reason = next(filter(None, comm.allgather(reason)), "")
        if reason:
            against[name] = reason.splitlines()[0]
    return against


def meet() -> None:
    """A barrier that leaves the core to others while it waits: gloo's own thread, and ranks that share a core."""
    request = comm.Ibarrier()
    while not request.Test():
        os.sched_yield()


def seconds_of(call: Callable[[], object], repeats: int) -> float:
    """Seconds per call on this rank, all ranks starting together."""
    meet()
    start = time.perf_counter()
    for _ in range(repeats):
        call()
    return (time.perf_counter() - start) / repeats


def time_in_turns(calls: dict[str, Callable[[], object]], budget: float) -> dict[str, list[float]]:
    """Samples in seconds of every call: rounds until the budget is spent, at least FEWEST of them."""
    repeats = {}
    for name, call in calls.items():
        # The quickest of a few: a disturbed guess would have every sample of something quick be a single, cold call.
        once = comm.allreduce(min(seconds_of(call, 3) for _ in range(5)), MPI.MAX)
        repeats[name] = max(1, min(200, int(QUICK / once)))
    samples: dict[str, list[float]] = {name: [] for name in calls}
    order, dice = list(calls), random.Random(0)  # the same on all ranks
    start, rounds, more = time.monotonic(), 0, True
    while more:
        dice.shuffle(order)
        for name in order:
            samples[name].append(seconds_of(calls[name], repeats[name]))
        rounds += 1
        more = comm.bcast(rounds < FEWEST or (rounds < MOST and time.monotonic() - start < budget))
    names = list(samples)
    slowest = np.zeros((len(names), rounds))
    comm.Allreduce(np.array([samples[name] for name in names]), slowest, MPI.MAX)
    return {name: [float(f"{s:.4g}") for s in row] for name, row in zip(names, slowest, strict=True)}


def run(spec: dict[str, Any]) -> None:
    """Measure every case of the spec."""
    dtype, names = spec["dtype"], spec["ways"] or list(WAYS)
    against = reasons_against(names, dtype)
    names = [name for name in names if name not in against]
    most = max(room_for(counts, storage(dtype).itemsize) for _, counts in spec["cases"])
    memory = {"private": np.zeros(most + ALIGN, np.uint8)}
    memory["private"] = memory["private"][-memory["private"].ctypes.data % ALIGN :]
    if "dl_comm arena" in names:
        from dl_comm import _core

        memory["arena"] = np.frombuffer(_core.arena(most), np.uint8)
    say(
        "start",
        ranks=size,
        hosts=len(set(comm.allgather(platform.node()))),
        ways=names,
        absent=against,
        mpi=MPI.Get_library_version().splitlines()[0].strip(),
        python=platform.python_version(),
        numpy=np.__version__,
        cores=os.cpu_count(),
        settings={k: v for k, v in os.environ.items() if k.startswith("DL_COMM_")},
    )
    for index, (case, counts) in enumerate(spec["cases"]):
        say("case", name=case, index=index, of=len(spec["cases"]))
        here = [n for n in names if n != "MPI packed" or len(counts) > 1]
        where = {n: memory["arena" if n == "dl_comm arena" else "private"] for n in here}
        calls = {n: WAYS[n](arrays_in(where[n], counts, dtype), dtype) for n in here}
        samples = time_in_turns(calls, spec["seconds"])
        for name in here:
            bad = 0
            if name not in LIMITS:
                arrays = arrays_in(where[name], counts, dtype)
                fill(arrays, rank, dtype)
                meet()
                calls[name]()
                mean = name.startswith("dl_comm") and "float" in dtype
                bad = comm.allreduce(wrong(arrays, size, dtype, mean))
            say("cell", case=case, way=name, seconds=samples[name], wrong=bad)
    if "dl_comm" in names:
        from dl_comm import _core

        say("wire", wire=_core.session().wire())


if __name__ == "__main__":
    run(json.loads(sys.argv[1]))
