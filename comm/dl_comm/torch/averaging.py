"""Means over ranks of gradients."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dl_comm import CommError, _core
from dl_comm.ranks import get_nranks
from dl_comm.torch.initial import compare_once
from dl_comm.torch.memory import DenseMemory, expanded, plain_buffers
from dl_comm.torch.overlap import finish_overlapped
from dl_comm.torch.overlap_choice import after_step
from dl_comm.torch.parameters import DENSE, DONE, SPARSE, Held, held_by, holds_gradient, kind_of
from dl_comm.torch.uneven import settled, weigh


@torch.no_grad()
def gradients(what: Any) -> None:
    """Replace each gradient by its mean over the ranks, in place.

    Call it right before the first thing that reads gradients: clipping, ``scaler.unscale_``, ``optimizer.step``; in a
    closure after ``backward``; with gradient accumulation once, where the step is.

    ``what`` is an optimizer, a module, an iterable of parameters (their ``.grad`` is averaged) or of gradient tensors
    as ``torch.autograd.grad`` returns them (averaged themselves), or several of these in a list; of another object, the
    optimizers that it holds. A parameter that occurs twice counts once. Gradients may be float64, float32, float16,
    bfloat16 or complex, of any memory format, sparse, and on any device. A ``.grad`` that is ``None`` on some ranks
    counts as zero there; ``None`` on all ranks stays ``None``. The sum over ranks is formed in rank order: all ranks
    hold the same bits afterwards.

    Raises ``TypeError`` where ``what`` holds no parameters, and ``dl_comm.CommError`` on every rank when the ranks
    bring different parameters, naming the first one that differs.

    Within a loop over a loader of ``shard``, the mean is that over the samples of the global batch, also where a rank
    has one sample less than another.

    Warns on rank 0 where a parameter differs between the ranks before its first update.
    """
    held = held_by(what)
    if get_nranks() == 1:
        return
    with settled(held.tensors):
        _average(held)
    compare_once(held)
    after_step(what, held.tensors)


def _average(held: Held) -> None:
    known = finish_overlapped(held.tensors)
    weigh(held.tensors, [key for key, kind in known.items() if kind == DONE])
    asked = held.only(lambda t: id(t) not in known) if known else held
    buffers = plain_buffers(asked.tensors) if held.parameters else None
    agreed = _agree_on_kinds(asked, buffers is not None)
    if buffers is not None and not known and agreed == [DENSE] * len(buffers):
        _core.allreduce(buffers, "mean", 0, held.labels)
        return
    kinds = known | {id(t): kind for t, kind in zip(asked.tensors, agreed, strict=True)}
    _average_dense(held.only(lambda t: kinds[id(t)] == DENSE))
    for tensor in held.tensors:
        if kinds[id(tensor)] > DENSE:
            mean = _sparse_mean(tensor, kinds[id(tensor)] - SPARSE)
            if holds_gradient(tensor):
                tensor.grad = mean
            else:
                tensor.copy_(mean)


def _average_dense(held: Held) -> None:
    if not held.tensors:
        return
    if held.parameters:
        for parameter in held.tensors:
            if parameter.grad is None:
                parameter.grad = _dense_gradient(parameter)
        buffers = plain_buffers(held.tensors)
        if buffers is not None:
            _core.allreduce(buffers, "mean", 0, held.labels)
            return
    grads = [_dense_gradient(t) for t in held.tensors]
    memory = DenseMemory(grads, held.tensors)
    memory.allreduce("mean", held.labels)
    memory.store()
    for tensor, grad in zip(held.tensors, grads, strict=True):
        if holds_gradient(tensor):
            tensor.grad = grad


def _agree_on_kinds(held: Held, all_dense: bool) -> list[int]:
    """Return how each gradient is held by the rank that holds most."""
    if not held.tensors:
        return []
    mine = [DENSE] * len(held.tensors) if all_dense else [kind_of(t) for t in held.tensors]
    kinds = np.array(mine, dtype=np.int32)
    first, width = kinds.ctypes.data, kinds.itemsize
    try:
        _core.allreduce([(first, kinds.size, "int32")], "max", 0, [_WHICH + held.digest])
    except CommError as error:
        # All ranks are told. Where they meant the same call, they find out by which gradient they differ.
        if error.message.count(_WHICH) > 1:
            _core.allreduce([(first + i * width, 1, "int32") for i in range(len(mine))], "max", 0, held.labels)
        raise
    return list(kinds.tolist())


_WHICH = "the kinds of "


def _dense_gradient(tensor: Tensor) -> Tensor:
    if not holds_gradient(tensor):
        return tensor
    if tensor.grad is None:
        return torch.zeros_like(tensor, requires_grad=False)
    return tensor.grad.contiguous() if expanded(tensor.grad) else tensor.grad  # one memory cannot hold several means


def _sparse_mean(tensor: Tensor, sparse_dim: int) -> Tensor:
    """Return the mean of sparse gradients: its rows are the union of the ranks' rows."""
    grad = tensor.grad if holds_gradient(tensor) else tensor
    if grad is None:
        grad = torch.zeros(tensor.shape, dtype=tensor.dtype, layout=torch.sparse_coo)
    if not grad.is_sparse:
        grad = grad.to_sparse(sparse_dim)
    grad = grad.cpu().coalesce()
    # Sums of 16-bit floats are formed in 32 bits.
    wide = torch.float32 if grad.dtype in (torch.float16, torch.bfloat16) else grad.dtype
    mine = (grad.indices().numpy(), grad.values().to(wide).numpy())
    everyone = [pickle.loads(b) for b in _core.allgather_bytes(pickle.dumps(mine, protocol=5))]
    indices = torch.from_numpy(np.concatenate([i for i, _ in everyone if i.size] or [mine[0]], axis=1))
    values = torch.from_numpy(np.concatenate([v for i, v in everyone if i.size] or [mine[1]]))
    total = torch.sparse_coo_tensor(indices, values, tensor.shape, check_invariants=False).coalesce()
    mean = torch.sparse_coo_tensor(
        total.indices(), total.values() / get_nranks(), tensor.shape, is_coalesced=True, check_invariants=False
    )
    return mean.to(tensor.dtype).to(tensor.device)
