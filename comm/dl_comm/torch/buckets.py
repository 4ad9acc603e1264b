"""Gradients that travel together while backward still runs, and where each of them has its place."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils.weak import TensorWeakRef

from dl_comm import _core
from dl_comm.device import Flight
from dl_comm.torch import gpu
from dl_comm.torch.memory import dtype_name


@dataclass(eq=False)
class Slot:
    """One parameter's place: its ``view`` of a bucket, and what is known of its gradient in this step.

    The parameter lives as long as its owner wants it to.
    """

    name: str
    weak: TensorWeakRef
    fired: int = 0  # backwards that reached it since the last step
    expected: int = 0  # how many there were in the step before
    last: int = -1  # when the latest came, counted over all parameters
    bucket: Bucket | None = None
    view: Tensor | None = None
    copied: tuple[Tensor, int] | None = None  # the gradient that is in the view, and its version then

    @property
    def parameter(self) -> Tensor:
        """The parameter, which must be there still."""
        found: Tensor | None = self.weak()
        assert found is not None, f"{self.name} is gone"
        return found

    def is_current(self) -> bool:
        """Whether what was copied still is this rank's gradient."""
        grad = self.parameter.grad
        if self.copied is None:
            return grad is None
        return grad is self.copied[0] and grad._version == self.copied[1]


@dataclass(eq=False)
class Bucket:
    """Gradients that travel together: elements of one dtype in ``memory``, of which some are there.

    On a GPU the memory is the GPU's, and ``streams`` are those that fill it.
    """

    slots: list[Slot]
    memory: Tensor = field(default_factory=lambda: torch.empty(0))
    there: int = 0
    ticket: int | Flight | None = None
    streams: dict[int, Any] = field(default_factory=dict)

    def start(self, team: int, name: str) -> None:
        """Start the mean over the ranks of what the bucket holds."""
        buffer = (self.memory.data_ptr(), self.memory.numel(), dtype_name(self.memory))
        if gpu.is_on_gpu(self.memory):
            gpu.gather(self.memory.device, self.streams)
            self.ticket = gpu.start([buffer], [name], self.memory.device)
        else:
            self.ticket = _core.start([buffer], "mean", team, [name])

    def wait(self) -> None:
        """Return once the mean is there; on a GPU, let the current stream follow it."""
        if isinstance(self.ticket, Flight):
            self.ticket.follow(gpu.current_stream(self.memory.device))
        elif self.ticket is not None:
            _core.wait(self.ticket)
        self.ticket, self.there = None, 0
        self.streams.clear()
