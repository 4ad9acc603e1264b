"""The ways of reducing a list of arrays that a bench sets side by side; runs on the ranks, beside `allreduce.py`.

A way is made ready once for a case and then called again and again: `ready(arrays)` returns the call that is timed.
Every way reduces in place. dl_comm forms the mean, the others the sum: they do less, which is in their favour.
"""

from __future__ import annotations

import os
import re
import select
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
    known = {
        "float64": MPI.DOUBLE,
        "float32": MPI.FLOAT,
        "float16": MPI.FLOAT16_T,
        "bfloat16": MPI.BFLOAT16_T,
        "int64": MPI.INT64_T,
        "int32": MPI.INT32_T,
        "int16": MPI.INT16_T,
        "int8": MPI.INT8_T,
        "uint8": MPI.UINT8_T,
    }
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
    address = "127.0.0.1" if len(set(hosts)) == 1 else comm.bcast(_address())
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


def link_ready(arrays: Sequence[Any], dtype: str) -> Call:
    """What the links between hosts carry at the very least, both ways at once, over plain TCP sockets.

    Of n hosts each sends and gets 2 (n-1)/n of the data, a share of it by each of its ranks: here to the next host,
    from the one before.
    """
    hosts = comm.allgather(socket.gethostname())
    names = sorted(set(hosts), key=hosts.index)
    of_host = [[rank for rank, host in enumerate(hosts) if host == name] for name in names]
    if len(names) < 2 or len({len(ranks) for ranks in of_host}) > 1:
        raise ValueError("it is between hosts of equally many ranks")
    mine = names.index(hosts[comm.Get_rank()])
    place = of_host[mine].index(comm.Get_rank())
    ahead, behind = (of_host[(mine + step) % len(names)][place] for step in (1, -1))
    out, back = _sockets(ahead, behind)
    share = sum(a.nbytes for a in arrays) * 2 * (len(names) - 1) // len(names) // len(of_host[mine])
    sent, got = memoryview(bytearray(share)), memoryview(bytearray(share))

    def call() -> None:
        to_send, to_get = sent, got
        while to_send or to_get:
            writable, readable = [out] * bool(to_send), [back] * bool(to_get)
            can_read, can_write, _ = select.select(readable, writable, [], 60)
            if can_write:
                to_send = to_send[out.send(to_send[:LONGEST]) :]
            if can_read:
                to_get = to_get[back.recv_into(to_get[:LONGEST]) :]
            if not can_read and not can_write:
                raise TimeoutError("a link has carried nothing for a minute")

    return call


LONGEST = 1 << 20  # bytes that are given to a socket at once
_made: dict[tuple[int, int], tuple[socket.socket, socket.socket]] = {}


def _sockets(ahead: int, behind: int) -> tuple[socket.socket, socket.socket]:
    """The connections to rank `ahead` and from rank `behind`, made once."""
    if (ahead, behind) not in _made:
        with socket.create_server(("", 0)) as listening:
            listening.settimeout(60)
            where = comm.allgather((_address(), listening.getsockname()[1]))
            out = socket.create_connection(where[ahead], timeout=60)
            back, _ = listening.accept()
        for one in (out, back):
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            one.setblocking(False)
        _made[ahead, behind] = out, back
    return _made[ahead, behind]


def _address() -> str:
    """By what the other hosts find this one. Those of a lab are known to no name server, and end as their names do."""
    name = socket.gethostname()
    return f"10.99.0.{re.sub('.*n', '', name)}" if os.environ.get("DLRUN_LAB") else name


LIMITS = ("memcpy", "link")  # they reduce nothing

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
    "link": link_ready,
}
