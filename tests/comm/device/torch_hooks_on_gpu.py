"""What a training step asks of the GPU through dl_comm.torch: nothing that makes the host wait for it.

Runs over the fake driver (``torch_as_if_on_gpu.py``), whose log has every call; torch's operations are seen one by one.
"""

from contextlib import ExitStack
from unittest.mock import patch

import dl_comm.torch as dl
import torch
from gpus import Gpu
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

_r = dl.get_rank()

# Every call of the driver that a step makes: they enqueue, or look up. The last is that of ``torch_as_if_on_gpu.py``.
_ENQUEUED = {
    "cuEventCreate",
    "cuEventRecord",
    "cuStreamWaitEvent",
    "cuMemcpyDtoHAsync_v2",
    "cuMemcpyHtoDAsync_v2",
    "cuMemcpyDtoDAsync_v2",
    "cuStreamIsCapturing",
    "cuLaunchKernel",
    "cuStreamWaitValue32_v2",
    "cuStreamWriteValue32_v2",
    "ncclGroupStart",
    "ncclGroupEnd",
    "ncclAllReduce",
    "ncclReduceScatter",
    "ncclAllGather",
    "cuStreamSynchronize",
}
# Operations of torch whose result the host needs at once, and ways of a tensor to the host.
_WAITING = {"_local_scalar_dense", "equal", "is_nonzero", "nonzero", "masked_select", "unique"}
_TO_THE_HOST = ("cpu", "numpy", "tolist")


class _Operations(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.names = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.add(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


def _asked_for(step):
    """The driver's functions and torch's operations that ``step()`` calls."""
    fake, asked = Gpu(), _Operations()

    def noted(name):
        method = getattr(torch.Tensor, name)

        def call(tensor, *args, **how):
            if tensor.is_floating_point():  # integers are what the ranks compare on the host
                asked.names.add(name)
            return method(tensor, *args, **how)

        return patch.object(torch.Tensor, name, call)

    fake.forget()
    with ExitStack() as stack:
        for name in _TO_THE_HOST:
            stack.enter_context(noted(name))
        stack.enter_context(asked)
        step()
    return set(fake.calls()), asked.names


def no_call_of_a_step_waits_for_the_gpu():
    for overlapped in (False, True):
        layers = [nn.Linear(40, 40).to((torch.float32, torch.bfloat16)[i % 2]) for i in range(10)]
        optimizer = torch.optim.SGD([p for layer in layers for p in layer.parameters()], 0.01)
        dl.broadcast(nn.ModuleList(layers))
        if overlapped:
            dl.overlap(optimizer)
        x = torch.randn(4, 40, generator=torch.Generator().manual_seed(_r))

        def backward_and_average(layers=layers, optimizer=optimizer, x=x):
            for layer in layers:
                x = torch.tanh(layer(x.to(layer.weight.dtype)))
            x.float().square().mean().backward()
            dl.gradients(optimizer)

        for step in range(5):
            optimizer.zero_grad()
            calls, operations = _asked_for(backward_and_average)
            optimizer.step()
            if step > 2:  # how the gradients lie is known by then
                assert "cuEventRecord" in calls
                assert "mm" in operations or "addmm" in operations
                assert calls <= _ENQUEUED, calls - _ENQUEUED
                assert not operations & _WAITING.union(_TO_THE_HOST), operations
