"""The ways of reducing a list of arrays that a bench sets side by side; runs on the ranks, beside `allreduce.py`.

A way is made ready once for a case and then called again and again: `ready(arrays)` returns the call that is timed.
Every way reduces in place. dl_comm forms the mean, the others the sum: they do less, which is in their favour.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from mpi4py import MPI

Call = Callable[[], object]
Ready = Callable[[Sequence[Any], str], Call]

comm = MPI.COMM_WORLD


def dl_comm_ready(arrays: Sequence[Any], dtype: str) -> Call:
    """dl_comm's core, one blocking call for all arrays."""
    from dl_comm import _core

    operation = "mean" if "float" in dtype else "sum"
    buffers = [(a.ctypes.data, a.size, dtype) for a in arrays]
    names: list[str] = []
    return lambda: _core.allreduce(buffers, operation, 0, names)


def _mpi_type(dtype: str) -> MPI.Datatype:
    known = {"float64": MPI.DOUBLE, "float32": MPI.FLOAT, "float16": MPI.FLOAT16_T, "bfloat16": MPI.BFLOAT16_T,
             "int64": MPI.INT64_T, "int32": MPI.INT32_T, "int16": MPI.INT16_T, "int8": MPI.INT8_T,
             "uint8": MPI.UINT8_T}  # fmt: skip
    if known[dtype] == MPI.DATATYPE_NULL:
        raise TypeError(f"this MPI library has no {dtype}")
    return known[dtype]


def mpi_ready(arrays: Sequence[Any], dtype: str) -> Call:
    """The MPI library's own MPI_Allreduce in place, one array after the other."""
    buffers = [[a, a.size, _mpi_type(dtype)] for a in arrays]

    def call() -> None:
        for buffer in buffers:
            comm.Allreduce(MPI.IN_PLACE, buffer)

    return call


def mpi_packed_ready(arrays: Sequence[Any], dtype: str) -> Call:
    """Arrays copied into one, one MPI_Allreduce in place, and copied back."""
    flat = np.zeros(sum(a.size for a in arrays), arrays[0].dtype)
    ends = np.cumsum([a.size for a in arrays])
    pieces = [flat[end - a.size : end] for end, a in zip(ends, arrays, strict=True)]
    buffer = [flat, flat.size, _mpi_type(dtype)]

    def call() -> None:
        for piece, array in zip(pieces, arrays, strict=True):
            piece[:] = array
        comm.Allreduce(MPI.IN_PLACE, buffer)
        for piece, array in zip(pieces, arrays, strict=True):
            array[:] = piece

    return call


def _as_tensors(arrays: Sequence[Any], dtype: str) -> list[Any]:
    import torch

    return [torch.from_numpy(a).view(getattr(torch, dtype)) for a in arrays]


def _join_gloo() -> None:
    import torch
    import torch.distributed as dist

    if dist.is_initialized():
        return
    torch.set_num_threads(1)
    hosts = comm.allgather(socket.gethostname())
    address = "127.0.0.1" if len(set(hosts)) == 1 else hosts[0]
    with socket.socket() as probe:
        probe.bind(("", 0))
        port = probe.getsockname()[1]
    port = comm.bcast(port)
    if len(set(hosts)) == 1:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group(
        "gloo", init_method=f"tcp://{address}:{port}", rank=comm.Get_rank(), world_size=comm.Get_size()
    )


def gloo_ready(arrays: Sequence[Any], dtype: str) -> Call:
    """torch.distributed over gloo: all_reduce of one array, the coalesced form of several."""
    import torch.distributed as dist

    _join_gloo()
    tensors = _as_tensors(arrays, dtype)
    if len(tensors) == 1:
        return lambda: dist.all_reduce(tensors[0])
    group = dist.distributed_c10d._get_default_group()
    return lambda: group.allreduce_coalesced(tensors, dist.AllreduceCoalescedOptions()).wait()


def oneccl_ready(arrays: Sequence[Any], dtype: str) -> Call:
    """torch.distributed over oneCCL, through Intel's bindings: all_reduce of every array, all under way at once."""
    import oneccl_bindings_for_pytorch  # noqa: F401 - registers the backend
    import torch.distributed as dist

    _join_gloo()
    group = dist.new_group(backend="ccl")
    tensors = _as_tensors(arrays, dtype)

    def call() -> None:
        for work in [dist.all_reduce(tensor, group=group, async_op=True) for tensor in tensors]:
            work.wait()

    return call


def horovod_ready(arrays: Sequence[Any], dtype: str) -> Call:
    """Horovod: allreduce_ of one array, the grouped form of several."""
    import horovod.torch as hvd

    hvd.init()
    tensors = _as_tensors(arrays, dtype)
    names = [f"{dtype}.{len(tensors)}.{i}.{t.numel()}" for i, t in enumerate(tensors)]
    if len(tensors) == 1:
        return lambda: hvd.allreduce_(tensors[0], op=hvd.Sum, name=names[0])
    return lambda: hvd.grouped_allreduce_(tensors, op=hvd.Sum, name=names[0])


def memcpy_ready(arrays: Sequence[Any], dtype: str) -> Call:
    """Every rank copies as many bytes as the case has, once: what moving the data costs at the very least."""
    count = sum(a.nbytes for a in arrays)
    source, target = np.zeros(count, np.uint8), np.zeros(count, np.uint8)
    source[:], target[:] = 1, 2  # every page is there before the clock runs
    return lambda: np.copyto(target, source)


# In the order of the table. `arena` needs arrays inside dl_comm's shared memory; the limit reduces nothing.
WAYS: dict[str, Ready] = {
    "dl_comm": dl_comm_ready,
    "dl_comm arena": dl_comm_ready,
    "MPI": mpi_ready,
    "MPI packed": mpi_packed_ready,
    "gloo": gloo_ready,
    "horovod": horovod_ready,
    "oneCCL": oneccl_ready,
    "memcpy": memcpy_ready,
}
