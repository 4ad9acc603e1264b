"""Tensors on CUDA's GPUs: which they are, their stream, and the team that reduces them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from dl_comm import device
from dl_comm.device import Buffer, Flight
from dl_comm.ranks import own_team

# A team for each GPU of this rank, in the order in which they are first used: host calls on team 0 wait for no GPU.
_teams: dict[torch.device, int] = {}


def is_on_gpu(tensor: Tensor) -> bool:
    """Whether the core reduces this tensor where it lies: on a GPU of CUDA's. ROCm's tensors say ``is_cuda``, too."""
    return tensor.is_cuda and torch.version.cuda is not None


def current_stream(where: torch.device) -> int:
    """Return the stream that this thread's operations go to, as a ``CUstream``."""
    return int(torch.cuda.current_stream(where).cuda_stream)


def stream_object(where: torch.device) -> Any:
    """Return the current stream as torch has it, for ``gather``."""
    return torch.cuda.current_stream(where)


def gather(where: torch.device, streams: Mapping[int, Any]) -> None:
    """Let the current stream wait for all of ``streams``: autograd may fill one bucket from several."""
    current = current_stream(where)
    for handle, stream in streams.items():
        if handle != current:
            torch.cuda.current_stream(where).wait_stream(stream)


def memory(nbytes: int, where: torch.device) -> Tensor:
    """Return ``nbytes`` bytes of a GPU's memory."""
    return torch.empty(nbytes, dtype=torch.uint8, device=where)


def start(
    buffers: list[Buffer], labels: list[str], where: torch.device, *, op: str = "mean", root: int | None = None
) -> Flight:
    """Start the reduction of what the current stream leaves in these buffers, or with ``root`` their broadcast."""
    if where not in _teams:
        _teams[where] = own_team()
    return device.start(buffers, _teams[where], labels, current_stream(where), op=op, root=root)
