"""Arrays on a GPU as the core sees them: an address, a number of elements, the name of a type, and their stream.

Whatever has ``__cuda_array_interface__`` (CuPy, Numba, torch) or ``__dlpack__`` counts. Everything is ordered by
streams: a reduction begins on the device after what the array's stream held at the call, and what the stream gets
afterwards begins after the result is there. Where nobody says what stream an array is used on (DLPack, which makes it
ready for the default stream; an interface whose stream is None) the host waits until the result is there.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dl_comm import _core
from dl_comm.dlpack import borrowed, lies_on_cuda
from dl_comm.errors import CommError

Buffer = tuple[int, int, str]

# What the core can reduce.
CORE_TYPES = ("float64", "float32", "float16", "bfloat16", "int8", "int16", "int32", "int64", "uint8")


@dataclass(frozen=True)
class OnGpu:
    """One dense array on a GPU, and the stream (a ``CUstream``) that its values come from; None: it is not told."""

    buffer: Buffer
    stream: int | None


def is_on_gpu(array: Any) -> bool:
    """Whether this is an array of CUDA's that the core takes where it lies.

    Tensors of torch that are not dense, or of other types than the core's, are not: torch copies them to the host.
    """
    if isinstance(array, np.ndarray):
        return False
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(array, torch.Tensor):
        if not array.is_cuda or torch.version.cuda is None or array.layout != torch.strided:  # None: it is ROCm's
            return False
        return array.is_contiguous() and str(array.dtype).removeprefix("torch.") in CORE_TYPES
    return hasattr(array, "__cuda_array_interface__") or lies_on_cuda(array)


def on_gpu(array: Any) -> OnGpu:
    """Describe an array for which ``is_on_gpu`` is true. Raises CommError where it is read-only or not contiguous."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(array, torch.Tensor):
        name = str(array.dtype).removeprefix("torch.")
        return OnGpu((array.data_ptr(), array.numel(), name), torch.cuda.current_stream(array.device).cuda_stream)
    if not hasattr(array, "__cuda_array_interface__"):
        return OnGpu(borrowed(array), None)
    told = array.__cuda_array_interface__
    address, read_only = told["data"]
    if read_only:
        raise CommError(f"an array of shape {told['shape']} is read-only", "pass a copy")
    dtype = np.dtype(told["typestr"])
    strides, dense = told.get("strides"), dtype.itemsize
    for length, stride in reversed(list(zip(told["shape"], strides or (), strict=strides is not None))):
        if length != 1 and stride != dense and 0 not in told["shape"]:
            raise _not_contiguous(array)
        dense *= length
    count = int(np.prod(told["shape"], dtype=np.int64))
    name = dtype.name if dtype.kind != "V" else str(getattr(array, "dtype", dtype))
    return OnGpu((address or 0, count, name), told.get("stream"))


def _not_contiguous(array: Any) -> CommError:
    return CommError(f"an array of shape {tuple(array.shape)} on a GPU is not contiguous", "pass a contiguous copy")


@dataclass
class Flight:
    """A reduction that is under way on the GPU: its ticket, and the stream that it began on; None: it is not told."""

    ticket: int
    stream: int | None

    def follow(self, stream: int) -> None:
        """What is enqueued on ``stream`` from now on comes after the result. Raises what an earlier call ran into."""
        _core.session().follow_on_gpu(self.ticket, stream)

    def land(self) -> None:
        """Let its own stream follow, and wait for the ranks' part, so that what went wrong is raised here.

        Without a stream, wait until the result is there.
        """
        self.follow(self.stream or 0)
        if self.stream is None:
            _core.session().finish_on_gpu(self.ticket)
        else:
            _core.session().await_on_gpu(self.ticket)


def start(
    buffers: list[Buffer],
    team: int,
    labels: list[str],
    stream: int | None,
    *,
    op: str = "mean",
    root: int | None = None,
) -> Flight:
    """Start the reduction of arrays on this rank's GPU, or with ``root`` their broadcast, once ``stream`` is there.

    A stream that is not told (None) is the default one.
    """
    session = _core.session()
    if root is None:
        ticket = session.allreduce_on_gpu(buffers, op, team, labels, stream or 0)
    else:
        ticket = session.broadcast_on_gpu(buffers, root, team, labels, stream or 0)
    path = session.gpu_path(team)
    if path not in _told:
        _told.add(path)
        if session.rank() == 0:
            sys.stderr.write(f"dl_comm: arrays on GPUs are reduced by {path}\n")
    return Flight(ticket, stream)


_told = {""}


def take_off(arrays: Sequence[Any], team: int, labels: list[str], *, root: int | None = None) -> list[Flight]:
    """Start the mean of these arrays over the ranks, or the broadcast from ``root``, one call for each stream."""
    described = [on_gpu(array) for array in arrays]
    flights = []
    for stream in dict.fromkeys(one.stream for one in described):
        mine = [i for i, one in enumerate(described) if one.stream == stream]
        buffers, names = [described[i].buffer for i in mine], [labels[i] for i in mine]
        flights.append(start(buffers, team, names, stream, root=root))
    return flights
