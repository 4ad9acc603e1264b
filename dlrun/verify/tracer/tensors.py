"""A tensor in a trace: a hash of all its bits, and a sample to tell how large a difference is."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterable
from hashlib import blake2b
from typing import Any

import numpy as np
import torch

SAMPLE = 1024  # elements kept of each tensor, at an even stride
ROWS = 20_000  # of a model's input that are told apart at most
COLUMNS = 1_000  # likewise: more are no samples
PARTS, LARGE = 8, 20_000_000  # tensors of a data set that are looked at, and elements of one, at most


def digest(tensor: torch.Tensor) -> str:
    """Return a hash of the tensor's shape, dtype and bits; -0.0 counts as 0.0."""
    return _digest(_plain(tensor))


def tensor_note(tensor: torch.Tensor | None) -> dict[str, Any] | None:
    """Return hash, L2 norm and sample (base64 of float32 or float64) of a tensor; None of None."""
    if tensor is None:
        return None
    plain = _plain(tensor)
    flat = plain.view(-1)
    kind = torch.float64 if flat.dtype in (torch.float64, torch.int64) else torch.float32
    sample = flat[:: max(1, flat.numel() // SAMPLE)][: 2 * SAMPLE].to(kind)
    return {
        "hash": _digest(plain),
        "norm": float(torch.linalg.vector_norm(flat.to(torch.float64))),
        "type": str(flat.dtype).removeprefix("torch."),
        "sample": b64encode(sample.numpy().tobytes()).decode(),
    }


def tensors_in(value: Any) -> Iterable[torch.Tensor]:
    """Yield the tensors in nested lists, tuples, dicts, modules and optimizers, in their order."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, torch.nn.Module):
        yield from value.parameters()
        yield from value.buffers()
    elif isinstance(value, torch.optim.Optimizer):
        for group in value.param_groups:
            yield from group["params"]
    elif isinstance(value, dict):
        for item in value.values():
            yield from tensors_in(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from tensors_in(item)


def named_tensors(name: str, value: Any) -> Iterable[tuple[str, torch.Tensor]]:
    """Yield the tensors in nested dicts, lists and modules, each with the way to it."""
    if isinstance(value, torch.Tensor):
        yield name, value
    elif isinstance(value, torch.nn.Module):
        yield from named_tensors(name, value.state_dict())
    elif isinstance(value, (dict, list, tuple)):
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            yield from named_tensors(f"{name}.{key}" if name else str(key), item)


def rows(args: Any, kwargs: Any, axis: int = 0) -> dict[str, list[int]]:
    """Return a number for each row of the tensors a model is given, made from its content; along axis 1 each column.

    What a model has computed, as a loss that is a module is given, is left out: dropout alone makes it differ.
    """
    given = {f"input {i}": value for i, value in enumerate(args, 1)} | kwargs
    found = {name: value for name, value in given.items() if isinstance(value, torch.Tensor) and value.dim() > axis}
    computed = {name for name, value in found.items() if any(isinstance(p, torch.nn.Parameter) for p in leaves(value))}
    tensors = {name: value for name, value in found.items() if name not in computed}
    few = {name: value for name, value in tensors.items() if value.shape[axis] <= (COLUMNS if axis else ROWS)}
    return {name: [_number(row) for row in _plain(value).movedim(axis, 0).contiguous()] for name, value in few.items()}


def lengths(args: Any, kwargs: Any) -> dict[str, list[int]]:
    """Return the shape of a row of each tensor that a model is given: of other batches they may be padded further."""
    given = {f"input {i}": value for i, value in enumerate(args, 1)} | kwargs
    return {name: list(value.shape[1:]) for name, value in given.items() if isinstance(value, torch.Tensor)}


def held_by(dataset: Any) -> dict[str, torch.Tensor]:
    """Return the tensors and arrays in which a data set holds a row for each sample, by name; none of large ones."""
    found: dict[str, torch.Tensor] = {}
    try:
        samples = len(dataset)
    except TypeError:
        return found  # a stream of samples
    for name, value in getattr(dataset, "__dict__", {}).items():
        parts = value if isinstance(value, (tuple, list)) and len(value) <= PARTS else [value]
        for number, part in enumerate(parts):
            numbers = isinstance(part, np.ndarray) and part.dtype.kind in "biuf" and part.dtype.isnative
            tensor = torch.tensor(part) if numbers and part.size <= LARGE else part
            if isinstance(tensor, torch.Tensor) and tensor.dim() and tensor.numel() <= LARGE:
                found |= {f"{name}[{number}]" if len(parts) > 1 else name: tensor} if len(tensor) == samples else {}
    return found


def leaves(roots: Any) -> Iterable[torch.Tensor]:
    """Yield the tensors whose gradients a backward from a tensor, or several, makes, each once."""
    seen: set[Any] = set()
    given = roots if isinstance(roots, (list, tuple)) else [roots]
    todo = [root.grad_fn for root in given if isinstance(root, torch.Tensor)]
    while todo:
        node = todo.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        variable = getattr(node, "variable", None)
        if variable is not None:
            yield variable
        todo += [following for following, _ in node.next_functions]


def _number(row: torch.Tensor) -> int:
    return int.from_bytes(blake2b(_bits(row).tobytes(), digest_size=6).digest(), "big")


def _digest(plain: torch.Tensor) -> str:
    made = blake2b(f"{tuple(plain.shape)}{plain.dtype}".encode(), digest_size=8)
    made.update(_bits(plain).data)
    return made.hexdigest()


def _bits(plain: torch.Tensor) -> Any:
    """Return a tensor's bytes; one row may have any stride and counts as contiguous."""
    return plain.reshape(-1).clone(memory_format=torch.contiguous_format).view(torch.uint8).numpy()


def is_parameter(tensor: torch.Tensor) -> bool:
    """Tell whether a tensor is trained: its value comes from averaged gradients."""
    try:
        return isinstance(tensor, torch.nn.Parameter) or (tensor.is_leaf and tensor.requires_grad)
    except RuntimeError:  # a part of one, changed in place without gradients
        return False


def batch_digest(batch: Any) -> str:
    """Return a hash of all tensors in a batch."""
    made = blake2b(digest_size=8)
    for tensor in tensors_in(batch):
        made.update(digest(tensor).encode())
    return made.hexdigest()


def _plain(tensor: torch.Tensor) -> torch.Tensor:
    """Return a dense, contiguous copy in main memory, of no subclass, without gradient, complex numbers as pairs."""
    with torch.no_grad(), torch._C.DisableTorchFunctionSubclass():
        plain = tensor.detach()
        if plain.layout != torch.strided:
            plain = plain.to_dense()
        if plain.is_complex():
            plain = torch.view_as_real(plain.resolve_conj())
        if plain.dtype == torch.bool:
            plain = plain.to(torch.uint8)
        return (plain.cpu() + 0).contiguous()
