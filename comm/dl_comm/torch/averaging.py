"""Means over ranks: of gradients, and of anything that is a number."""

from __future__ import annotations

import pickle
from copy import copy
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from dl_comm import CommError, _core
from dl_comm.entrywise import has_entries, total_of_entries
from dl_comm.ranks import get_nranks, parts
from dl_comm.shares import check_fits
from dl_comm.torch.memory import DenseMemory, dtype_name, expanded, label, plain_buffers
from dl_comm.torch.overlap import finish_overlapped
from dl_comm.torch.parameters import DENSE, SPARSE, Held, held_by, holds_gradient, kind_of


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
    """
    held = held_by(what)
    if get_nranks() == 1:
        return
    known = finish_overlapped(held.tensors)
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


@torch.no_grad()
def average(value: Any) -> Any:
    """Return the mean of ``value`` over the ranks: of a metric, a loss, a tensor, a NumPy array.

    A float stays a float, a tensor a tensor (same dtype and device, detached), an array an array. Integers and
    booleans become floating point, as in a true division, on more than one rank; an int that is the mean stays one: a
    count that all ranks share. Of a tuple, list or dict each entry is averaged, in a dict those of one name; a dict's
    texts stay rank by rank. The argument is not changed.
    Of a module the floating-point buffers are averaged, in place: the statistics of BatchNorm, before the ranks
    evaluate or save it.

    Raises ``TypeError`` for other types, ``dl_comm.CommError`` when shapes or dtypes differ between ranks.
    """
    return _average_buffers(value) if isinstance(value, nn.Module) else _average(value, "average of")


def _average(value: Any, name: str) -> Any:
    if type(value) is list and len(value) > 1 and all(type(entry) in (int, float) for entry in value):
        means = _average(np.array(value, dtype=np.float64), name).tolist() if get_nranks() > 1 else value
        return [own if type(own) is int and own == mean else mean for own, mean in zip(value, means, strict=True)]
    if type(value) in (tuple, list):
        return type(value)(_average(entry, name) for entry in value)
    if isinstance(value, dict):  # by name: the ranks may have filled it in different orders
        kept = {key for key, entry in value.items() if isinstance(entry, (str, type(None)))}
        means = {key: _average(value[key], f"{name} {key!r}") for key in sorted(value.keys() - kept, key=repr)}
        made = copy(value)  # a defaultdict stays one
        made.update(means)
        return made
    if not isinstance(value, (bool, int, float, Tensor, np.ndarray, np.generic)):
        raise TypeError(f"average() got {type(value).__name__}; it takes a number, a tensor, an array or a module")
    if get_nranks() == 1:
        return value
    if isinstance(value, Tensor):
        return _average_tensor(value, name)
    if isinstance(value, (np.ndarray, np.generic)):
        array = np.array(value)
        if array.dtype.kind not in "fc":
            array = array.astype(np.float64)
        mean = _average_tensor(torch.from_numpy(array), name).numpy()
        return mean if isinstance(value, np.ndarray) else mean[()]
    number = _average_tensor(torch.tensor(float(value), dtype=torch.float64), name).item()
    return value if type(value) is int and number == value else number


_LOW = 2**32 - 1


@torch.no_grad()
def total(value: Any) -> Any:
    """Return the sum of ``value`` over the ranks: of counts, of losses that are sums.

    Its kind stays: a float is a float, an int an int, a tensor a tensor of the same dtype and device (detached;
    booleans count, as int64), an array an array. Of a list, a tuple or a dict of numbers each entry is added up, in a
    dict those of one name. The argument is not changed; on one rank, and where all repeat the serial run
    (``DL_COMM_REPLICATE``), it comes back itself.

    Raises ``TypeError`` for other types, ``dl_comm.CommError`` when shapes or dtypes differ between ranks, or when the
    sum does not fit the dtype.
    """
    if not has_entries(value) and not isinstance(value, (bool, int, float, Tensor, np.ndarray, np.generic)):
        raise TypeError(f"total() got {type(value).__name__}; it takes a number, a tensor, an array, or a list or dict "
                        "of numbers")  # fmt: skip
    if parts() == 1:
        return value
    if has_entries(value):
        return total_of_entries(value)
    if isinstance(value, Tensor):
        return _sum_tensor(value)
    if isinstance(value, (np.ndarray, np.generic)):
        total = _sum_tensor(torch.from_numpy(np.array(value))).numpy()
        return total if isinstance(value, np.ndarray) else total[()]
    exact = torch.float64 if isinstance(value, float) else torch.int64
    return _sum_tensor(torch.tensor(value, dtype=exact)).item()


def _sum_tensor(value: Tensor) -> Tensor:
    floating = value.is_floating_point() or value.is_complex()
    if dtype_name(value) in ("int64", "uint64"):
        return _sum_of_wide(value.to_dense())
    total = _summed((value.detach() if floating else value.to(torch.int64)).to_dense(), value)
    if floating or value.dtype == torch.bool:
        return total
    check_fits(total.numpy(force=True), dtype_name(value))
    return total.to(value.dtype)


def _sum_of_wide(value: Tensor) -> Tensor:
    """Return the sum of integers of 64 bits, by halves of 32 bits, none of whose sums can wrap."""
    bits, signed = value.to(torch.int64), value.dtype == torch.int64
    high, low = _summed(torch.stack([bits >> 32 if signed else bits >> 32 & _LOW, bits & _LOW]), value)
    high, low = high + (low >> 32), low & _LOW
    beyond = (high < -(2**31)) | (high >= 2**31) if signed else high > _LOW
    whole = high[beyond].numpy(force=True).astype(object) * 2**32 + low[beyond].numpy(force=True)
    check_fits(np.asarray(whole, dtype=object), dtype_name(value))
    total: Tensor = (high << 32) + low
    return total.to(value.dtype)


def _summed(exact: Tensor, value: Tensor) -> Tensor:
    total = exact.clone(memory_format=torch.contiguous_format)
    memory = DenseMemory([total])
    memory.allreduce("sum", [label("total of", value)])
    memory.store()
    return total


def _average_buffers(module: nn.Module) -> nn.Module:
    named = [(name, b) for name, b in module.named_buffers() if b.is_floating_point() and b.layout == torch.strided]
    if named and get_nranks() > 1:
        memory = DenseMemory([buffer for _, buffer in named])
        memory.allreduce("mean", [label(name, buffer) for name, buffer in named])
        memory.store()
    return module


def _average_tensor(value: Tensor, name: str) -> Tensor:
    exact = value.detach() if value.is_floating_point() or value.is_complex() else value.to(torch.float64)
    mean = exact.to_dense().clone(memory_format=torch.contiguous_format)
    memory = DenseMemory([mean])
    memory.allreduce("mean", [label(name, mean)])
    memory.store()
    return mean if exact.dtype == value.dtype else mean.to(torch.get_default_dtype())
