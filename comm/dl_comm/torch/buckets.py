"""Gradients that travel together while backward still runs, and where each of them has its place."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils.weak import TensorWeakRef

from dl_comm import _core
from dl_comm.device import Flight
from dl_comm.parts import weight_of_gradients
from dl_comm.torch import gpu
from dl_comm.torch.memory import dtype_name


@dataclass(frozen=True, eq=False)
class Copy:
    """A gradient as it was when it was copied: its version, its weight, and, if that is asked for, the sum of it."""

    grad: Tensor
    version: int
    weight: float
    sum: float | None

    @classmethod
    def of(cls, grad: Tensor, checked: bool) -> Copy:
        """Note these of a gradient."""
        return cls(grad, grad._version, weight_of_gradients(), _sum(grad) if checked else None)

    def holds(self, grad: Tensor) -> bool:
        """Whether this is that gradient still; an edit through ``.data``, which has no version, shows in its sum."""
        same = grad is self.grad and grad._version == self.version and weight_of_gradients() == self.weight
        if not same or self.sum is None:
            return same
        now = _sum(grad)
        return now == self.sum or (now != now and self.sum != self.sum)


def _sum(grad: Tensor) -> float:
    if not grad.is_complex():
        return float(grad.detach().sum(dtype=torch.float64))
    return float(torch.view_as_real(grad.detach()).sum(dtype=torch.float64))


@dataclass(eq=False)
class Slot:
    """One parameter's place: its ``view`` of a bucket, and what is known of its gradient in this step.

    The parameter lives as long as its owner wants it to.
    """

    name: str
    weak: TensorWeakRef
    checked: bool = False  # edits through ``.data`` are looked for
    fired: int = 0  # backwards that reached it since the last step
    expected: int = 0  # how many there were in the step before
    last: int = -1  # when the latest came, counted over all parameters
    bucket: Bucket | None = None
    view: Tensor | None = None
    copied: Copy | None = None  # the gradient that is in the view
    handle: Any = None  # of the hook, which removes it

    @property
    def parameter(self) -> Tensor:
        """The parameter, which must be there still."""
        found: Tensor | None = self.weak()
        assert found is not None, f"{self.name} is gone"
        return found

    def is_current(self) -> bool:
        """Whether what was copied still is this rank's gradient."""
        grad = self.parameter.grad
        if self.copied is None or grad is None:
            return grad is None and self.copied is None
        return self.copied.holds(grad)


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
