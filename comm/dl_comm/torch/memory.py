"""From tensors to the memory that the core reduces: addresses, element counts, dtypes.

The core works in place on dense host memory. Most gradients already are that. The others (on a GPU, or laid out
with gaps or in another order than their parameter) go through a dense host copy, in and out.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

Buffer = tuple[int, int, str]


def dtype_name(tensor: Tensor) -> str:
    """Return the dtype as the core and error messages spell it: ``float32``, ``bfloat16``, ``int64``."""
    return str(tensor.dtype).removeprefix("torch.")


def label(name: str, tensor: Tensor) -> str:
    """Return ``name (64, 3) float32``, with the strides where they are not the usual ones: what all ranks compare."""
    text = f"{name} {tuple(tensor.shape)} {dtype_name(tensor)}"
    if tensor.layout == torch.strided and not tensor.is_contiguous():
        text += f" strides {tensor.stride()}"
    return text


def plain_buffers(tensors: Sequence[Tensor]) -> list[Buffer] | None:
    """Return where the parameters' gradients lie, if each has one that is dense host memory laid out as it is.

    A quick look at the common case; ``HostMemory`` takes all others.
    """
    buffers = []
    for tensor in tensors:
        grad = tensor.grad
        if grad is None or not grad.is_cpu or grad.is_sparse or grad.is_neg():
            return None
        name = _REAL.get(grad.dtype)
        if name is None or not (grad.is_contiguous() and tensor.is_contiguous()):
            return None
        buffers.append((grad.data_ptr(), grad.numel(), name))
    return buffers


_REAL = {torch.float64: "float64", torch.float32: "float32", torch.float16: "float16", torch.bfloat16: "bfloat16"}


class HostMemory:
    """Dense host memory holding the values of ``tensors``, all of them strided.

    The element order of each is that of its ``layout`` (the tensor itself, unless given), which must be the same on
    all ranks. Where a tensor already is dense host memory in this order it is used as it is. ``store()`` brings what
    is now in the copies back into the tensors.
    """

    def __init__(self, tensors: Sequence[Tensor], layouts: Sequence[Tensor] | None = None) -> None:
        self._copies: list[tuple[Tensor, Tensor]] = []
        self._devices: set[torch.device] = set()
        self.host = [self._dense(t.detach(), t if layouts is None else layouts[i]) for i, t in enumerate(tensors)]
        self._synchronize()

    def _dense(self, tensor: Tensor, layout: Tensor) -> Tensor:
        on_host = tensor.device.type == "cpu"
        if on_host and not (tensor.is_conj() or tensor.is_neg()):
            if tensor.is_contiguous() and layout.is_contiguous():
                return tensor
            # empty_like keeps the strides of a layout without gaps or overlaps, and makes others contiguous.
            if tensor.stride() == torch.empty_like(layout, device="meta").stride():
                return tensor
        pin = tensor.device.type == "cuda"
        copy = torch.empty_like(layout, device="cpu", dtype=tensor.dtype, pin_memory=pin, requires_grad=False)
        copy.copy_(tensor, non_blocking=pin)
        if pin:
            self._devices.add(tensor.device)
        self._copies.append((tensor, copy))
        return copy

    def _synchronize(self) -> None:
        for device in self._devices:
            torch.cuda.current_stream(device).synchronize()

    @property
    def buffers(self) -> list[Buffer]:
        """For arithmetic: (address, element count, dtype); a complex number counts as two real ones."""
        real = [torch.view_as_real(h) if h.is_complex() else h for h in self.host]
        return [(h.data_ptr(), h.numel(), dtype_name(h)) for h in real]

    @property
    def raw(self) -> list[Buffer]:
        """For copying, whatever the dtype: (address, byte count, ``uint8``)."""
        return [(h.data_ptr(), h.numel() * h.element_size(), "uint8") for h in self.host]

    def store(self) -> None:
        """Copy the host copies back into the tensors they came from."""
        for tensor, copy in self._copies:
            tensor.copy_(copy, non_blocking=copy.is_pinned())
        self._synchronize()
