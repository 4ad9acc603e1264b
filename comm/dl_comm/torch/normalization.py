"""BatchNorm over the global batch."""

from __future__ import annotations

import copy
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from dl_comm.ranks import get_nranks, own_team
from dl_comm.torch.memory import DenseMemory

M = TypeVar("M", bound=nn.Module)

# Statistics travel in the middle of forward and backward: on a team of their own they meet no other call.
_team: list[int] = []


def sync_batchnorm(module: M) -> M:
    """Return ``module`` with every BatchNorm layer replaced by one that normalises over all ranks' batches.

    The layers keep their parameters, buffers and names: what is saved of it, a ``state_dict`` or the whole module,
    holds the layers as they were and loads without dl_comm. In
    training, mean and variance are those of the ranks' batches together, as in the serial run with the global batch;
    in evaluation nothing differs. Every such layer communicates once forward and once backward, on all ranks in the
    same order. On one rank ``module`` itself comes back. Call it before the optimizer is made.
    """
    if get_nranks() == 1:
        return module
    if not _team:
        _team.append(own_team())
    converted: M = _converted(module)
    return converted


def _converted(module: Any) -> Any:
    if isinstance(module, nn.modules.batchnorm._BatchNorm) and not isinstance(module, SyncBatchNorm):
        return SyncBatchNorm(module)
    for name, child in module.named_children():
        setattr(module, name, _converted(child))
    return module


class SyncBatchNorm(nn.modules.batchnorm._BatchNorm):
    """A BatchNorm layer whose training statistics are those of all ranks; made from another by ``sync_batchnorm``."""

    def __init__(self, layer: nn.modules.batchnorm._BatchNorm) -> None:
        super().__init__(
            layer.num_features, layer.eps, layer.momentum, affine=False, track_running_stats=layer.track_running_stats
        )
        self.affine = layer.affine
        # The parameters and buffers themselves, not copies: whoever holds them still holds this layer's.
        self._parameters.update(layer._parameters)
        self._buffers.update(layer._buffers)
        self.train(layer.training)
        self._plain = type(layer)

    def __reduce_ex__(self, protocol: Any) -> Any:
        """A whole model that is pickled holds the layer that this one was made from, and loads without dl_comm."""
        state = {name: value for name, value in vars(self).items() if name != "_plain"}
        return object.__new__, (self._plain,), state

    def __deepcopy__(self, memo: dict[int, Any]) -> SyncBatchNorm:
        made = memo[id(self)] = SyncBatchNorm.__new__(SyncBatchNorm)
        vars(made).update(copy.deepcopy(vars(self), memo))
        return made

    def _check_input_dim(self, input: Tensor) -> None:
        if input.dim() < 2:
            raise ValueError(f"BatchNorm takes an input of 2 dimensions or more, not of shape {tuple(input.shape)}")

    def forward(self, input: Tensor) -> Tensor:
        """Normalise ``input`` (N, C, ...) over N and the dimensions after C."""
        if not self.training and self.running_mean is not None:
            return super().forward(input)
        self._check_input_dim(input)
        dims = [d for d in range(input.dim()) if d != 1]
        mean, var, count = _global_moments(input.detach(), dims)
        if self.training and self.running_mean is not None:
            self._update_running(mean, var, count)
        invstd = torch.rsqrt(var + self.eps)
        shape = [1, -1] + [1] * (input.dim() - 2)
        mean, invstd = (t.to(_wide(input.dtype)).reshape(shape) for t in (mean, invstd))
        normal: Tensor = _Normalize.apply(input, mean, invstd, count, dims)
        if self.weight is not None:
            normal = normal * self.weight.reshape(shape) + self.bias.reshape(shape)
        return normal.to(input.dtype)

    def _update_running(self, mean: Tensor, var: Tensor, count: float) -> None:
        assert self.running_mean is not None
        assert self.running_var is not None
        assert self.num_batches_tracked is not None
        self.num_batches_tracked.add_(1)
        rate = 1.0 / float(self.num_batches_tracked) if self.momentum is None else self.momentum
        self.running_mean.lerp_(mean.to(self.running_mean.dtype), rate)
        self.running_var.lerp_((var * (count / max(1.0, count - 1))).to(self.running_var.dtype), rate)


def _wide(dtype: torch.dtype) -> torch.dtype:
    return torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype


def _sum_over_ranks(values: Tensor) -> Tensor:
    memory = DenseMemory([values])
    memory.allreduce("sum", [f"batch statistics {tuple(values.shape)}"], _team[0])
    memory.store()
    return values


def _global_moments(x: Tensor, dims: list[int]) -> tuple[Tensor, Tensor, float]:
    """Return mean and (biased) variance per channel over all ranks, in float64, and the number of values in each."""
    n = x.numel() // max(1, x.shape[1])
    var, mean = (t.double() for t in torch.var_mean(x.to(_wide(x.dtype)), dims, correction=0))
    if n == 0:
        var, mean = torch.zeros_like(var), torch.zeros_like(mean)
    counts = torch.full_like(mean[:1], n)
    total = _sum_over_ranks(torch.cat([counts, n * mean, n * (var + mean.square())]))
    count = float(total[0])
    mean, square = (total[1:] / count).chunk(2)
    return mean, (square - mean.square()).clamp_min(0), count


class _Normalize(torch.autograd.Function):
    """(x - mean) * invstd, where mean and invstd depend on the x of all ranks, and so does the way back."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, mean: Tensor, invstd: Tensor, count: float, dims: list[int]) -> Tensor:
        normal = (x - mean) * invstd
        ctx.save_for_backward(normal, invstd)
        ctx.count, ctx.dims, ctx.dtype = count, dims, x.dtype
        return normal

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Any:
        # With g = dL/dnormal and averages over all ranks: dL/dx = invstd * (g - <g> - normal * <g * normal>).
        normal, invstd = ctx.saved_tensors
        sums = torch.cat([grad.sum(ctx.dims), (grad * normal).sum(ctx.dims)]).double()
        means = (_sum_over_ranks(sums) / ctx.count).to(grad.dtype)
        shape = invstd.shape
        along, across = (m.reshape(shape) for m in means.chunk(2))
        return (invstd * (grad - along - normal * across)).to(ctx.dtype), None, None, None, None
