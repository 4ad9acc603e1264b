"""From tensors to the memory that the core reduces: addresses, element counts, dtypes.

The core works in place on dense memory of the host and of CUDA's GPUs. Most gradients already are that. The others (on
another device, or laid out with gaps or in another order than their parameter) go through a dense copy, in and out.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from dl_comm import _core
from dl_comm.device import Buffer
from dl_comm.torch import gpu


def dtype_name(tensor: Tensor) -> str:
    """Return the dtype as the core and error messages spell it: ``float32``, ``bfloat16``, ``int64``."""
    return str(tensor.dtype).removeprefix("torch.")


def label(name: str, tensor: Tensor) -> str:
    """Return ``name (64, 3) float32``, with the strides where they are not the usual ones: what all ranks compare."""
    text = f"{name} {tuple(tensor.shape)} {dtype_name(tensor)}"
    if tensor.layout == torch.strided and not tensor.is_contiguous():
        text += f" strides {tensor.stride()}"
    return text


def expanded(tensor: Tensor) -> list[int]:
    """Return the dimensions along which all elements are one in memory, as in the gradient of a sum."""
    if tensor.layout != torch.strided:
        return []
    return [dim for dim, step in enumerate(tensor.stride()) if step == 0 and tensor.shape[dim] > 1]


def plain_buffers(tensors: Sequence[Tensor]) -> list[Buffer] | None:
    """Return where the parameters' gradients lie, if each has one that is dense host memory laid out as it is.

    A quick look at the common case; ``DenseMemory`` takes all others.
    """
    buffers = []
    for tensor in tensors:
        grad = tensor.grad
        if grad is None or not grad.is_cpu or grad.is_sparse or grad.is_neg():
            return None
        name = _REAL.get(grad.dtype)
        if name is None:
            return None
        if not ((grad.is_contiguous() and tensor.is_contiguous()) or _both_have_channels_last(grad, tensor)):
            return None
        buffers.append((grad.data_ptr(), grad.numel(), name))
    return buffers


def _both_have_channels_last(grad: Tensor, tensor: Tensor) -> bool:
    last = torch.channels_last
    return grad.dim() == 4 and grad.is_contiguous(memory_format=last) and tensor.is_contiguous(memory_format=last)


_REAL = {torch.float64: "float64", torch.float32: "float32", torch.float16: "float16", torch.bfloat16: "bfloat16"}


class DenseMemory:
    """Dense memory that the core reduces, holding the values of ``tensors``, all of them strided.

    The element order of each is that of its ``layout`` (the tensor itself, unless given), which must be the same on
    all ranks. A tensor that already is dense in this order, in the host's memory or on a GPU of CUDA's, is used as it
    is; others are copied, to the host from devices that the core does not know. ``store()`` brings what is now in the
    copies back into the tensors.

    On a GPU everything is ordered by the current stream, and no call waits for it.
    """

    def __init__(self, tensors: Sequence[Tensor], layouts: Sequence[Tensor] | None = None) -> None:
        self._copies: list[tuple[Tensor, Tensor]] = []
        self.dense = [self._dense(t.detach(), t if layouts is None else layouts[i]) for i, t in enumerate(tensors)]

    def _dense(self, tensor: Tensor, layout: Tensor) -> Tensor:
        known = tensor.device.type == "cpu" or gpu.is_on_gpu(tensor)
        if known and not (tensor.is_conj() or tensor.is_neg()):
            if tensor.is_contiguous() and layout.is_contiguous():
                return tensor
            # empty_like keeps the strides of a layout without gaps or overlaps, and makes others contiguous.
            if tensor.stride() == torch.empty_like(layout, device="meta").stride():
                return tensor
        where = tensor.device if known else "cpu"
        copy = torch.empty_like(layout, device=where, dtype=tensor.dtype, requires_grad=False)
        copy.copy_(tensor)
        self._copies.append((tensor, copy))
        return copy

    def allreduce(self, op: str, labels: Sequence[str], team: int = 0) -> None:
        """Combine with the other ranks' by "mean", "sum", ...; ``team`` does what lies in the host's memory."""
        real = [torch.view_as_real(h) if h.is_complex() else h for h in self.dense]  # a complex number is two real ones
        buffers = [(h.data_ptr(), h.numel(), dtype_name(h)) for h in real]
        here, names, there = self._by_place(buffers, labels)
        if here or not there:
            _core.allreduce(here, op, team, names)
        for where, (group, theirs) in there.items():
            gpu.start(group, theirs, where, op=op).follow(gpu.current_stream(where))

    def broadcast(self, root: int) -> None:
        """Take the values of rank ``root``, whatever the dtype: bytes are copied."""
        buffers = [(h.data_ptr(), h.numel() * h.element_size(), "uint8") for h in self.dense]
        here, _, there = self._by_place(buffers, [""] * len(buffers))
        if here:
            _core.broadcast(here, root)
        for where, (group, _) in there.items():
            gpu.start(group, [], where, root=root).follow(gpu.current_stream(where))

    def _by_place(
        self, buffers: Sequence[Buffer], labels: Sequence[str]
    ) -> tuple[list[Buffer], list[str], dict[torch.device, tuple[list[Buffer], list[str]]]]:
        """Buffers and labels of the host's memory, and by GPU those of each."""
        here: tuple[list[Buffer], list[str]] = ([], [])
        there: dict[torch.device, tuple[list[Buffer], list[str]]] = {}
        for tensor, buffer, text in zip(self.dense, buffers, labels, strict=True):
            group = there.setdefault(tensor.device, ([], [])) if gpu.is_on_gpu(tensor) else here
            group[0].append(buffer)
            group[1].append(text)
        return *here, there

    def store(self) -> None:
        """Copy the copies back into the tensors they came from."""
        for tensor, copy in self._copies:
            own, mean = tensor, copy
            for dim in expanded(tensor):  # on all ranks, whose labels hold the strides: one element stands for all
                own, mean = own.narrow(dim, 0, 1), mean.narrow(dim, 0, 1)
            own.copy_(mean)
