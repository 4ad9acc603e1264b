"""Runs on every rank: as `allreduce.py`, with arrays on the ranks' GPUs.

The ways are `dl_comm`, from arrays on the GPU to their mean on the GPU, and `memcpy`: as many bytes go to pinned memory
of the host while as many come back, which is the least that reducing on the host costs.
"""

from __future__ import annotations

import json
import os
import platform
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from mpi4py import MPI

sys.path.insert(0, str(Path(__file__).parent))
from allreduce import arrays_in, meet, rank, room_for, say, size, time_in_turns
from answers import fill, storage, wrong
from cuda import Gpu
from ways import comm


def missing() -> str:
    """What keeps a rank from measuring; the same on all."""
    why = ""
    try:
        Gpu()
    except OSError as error:
        why = f"rank {rank}: {error}"
    return next(filter(None, comm.allgather(why)), "")


def ready(
    gpu: Gpu, memory: int, host: Any, back: int, dtype: str, counts: Sequence[int]
) -> dict[str, Callable[[], object]]:
    """The call of each way, for arrays that lie behind each other in `memory`."""
    from dl_comm import _core

    width, offset, buffers = storage(dtype).itemsize, 0, []
    for count in counts:
        buffers.append((memory + offset, count, dtype))
        offset += room_for([count], width)
    operation = "mean" if "float" in dtype else "sum"
    session, names = _core.session(), list[str]()
    nbytes = sum(counts) * width

    def reduce() -> None:
        ticket = session.allreduce_on_gpu(buffers, operation, 0, names, gpu.stream)
        session.follow_on_gpu(ticket, gpu.stream)
        gpu.wait()
        session.await_on_gpu(ticket)

    def copy() -> None:
        gpu.download(host[0][:nbytes], memory, meanwhile=True)
        gpu.upload(back, host[1][:nbytes])
        gpu.wait()

    return {"dl_comm": reduce, "memcpy": copy}


def run(spec: dict[str, Any]) -> None:
    """Measure every case of the spec."""
    if why := missing():
        say("missing", why=why)
        return
    from dl_comm import _core

    _core.init("")
    dtype, gpu = spec["dtype"], Gpu()
    most = max(room_for(counts, storage(dtype).itemsize) for _, counts in spec["cases"])
    memory, back, host = gpu.memory(most), gpu.memory(most), (gpu.pinned(most), gpu.pinned(most))
    names = [name for name in ("dl_comm", "memcpy") if not spec["ways"] or name in spec["ways"]]
    say(
        "start",
        ranks=size,
        hosts=len(set(comm.allgather(platform.node()))),
        ways=names,
        absent={},
        mpi=MPI.Get_library_version().splitlines()[0].strip(),
        python=platform.python_version(),
        numpy=np.__version__,
        cores=os.cpu_count(),
        settings={k: v for k, v in os.environ.items() if k.startswith("DL_COMM_")},
    )
    for index, (case, counts) in enumerate(spec["cases"]):
        say("case", name=case, index=index, of=len(spec["cases"]))
        calls = {name: call for name, call in ready(gpu, memory, host, back, dtype, counts).items() if name in names}
        arrays = arrays_in(host[0], counts, dtype)
        gpu.upload(memory, host[0][: room_for(counts, storage(dtype).itemsize)])
        gpu.wait()
        samples = time_in_turns(calls, spec["seconds"])
        for name in calls:
            bad = 0
            if name == "dl_comm":
                fill(arrays, rank, dtype)
                gpu.upload(memory, host[0])
                gpu.wait()
                host[0][:] = 255  # what comes back is the GPU's
                meet()
                calls[name]()
                gpu.download(host[0], memory)
                gpu.wait()
                bad = comm.allreduce(wrong(arrays, size, dtype, "float" in dtype))
            say("cell", case=case, way=name, seconds=samples[name], wrong=bad)
    say("path", path=_core.session().gpu_path())


if __name__ == "__main__":
    run(json.loads(sys.argv[1]))
