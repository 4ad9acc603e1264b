"""A rank's share of what can be indexed: tensors, arrays, lists, data frames, map-style data sets."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import Tensor
from torch.utils.data import Subset

from dl_comm import streams
from dl_comm.reduction.layout import Layout, note
from dl_comm.shares import positions, tell_padded

# What autograd calls a tensor that collects gradients, and what copies or reshapes one.
_LEAF = "torch::autograd::AccumulateGrad"
_COPIES = {
    f"{name}Backward0"
    for name in (
        "ToCopy",
        "Clone",
        "View",
        "Slice",
        "Select",
        "Unsqueeze",
        "Squeeze",
        "T",
        "Transpose",
        "AsStrided",
        "ReshapeAlias",
    )
}


class Share(Subset[Any]):
    """A rank's part of a data set."""


def shard_sequence(data: Any, rank: int, n: int, batch: str = "local", equal: bool = True) -> Any:
    """Return the entries of ``data`` that are rank ``rank``'s."""
    check_equal_lengths(data)
    if not isinstance(data, (Tensor, np.ndarray, list, tuple, range)) and not hasattr(data, "iloc"):
        mine = positions(len(data), rank, n)
        return note(Share(data, mine), Layout("entries", len(data), len(mine)))
    mine = positions(len(data), rank, n, batch, equal)
    if isinstance(data, range) and batch == "local" and equal:
        tell_padded(len(data), n)
    share: Any
    if isinstance(data, Tensor):
        share = _as_before(data, data[mine])
    elif isinstance(data, np.ndarray):
        share = data[mine]
    else:
        share = data.iloc[mine] if hasattr(data, "iloc") else [data[i] for i in mine]
    return note(share, Layout("entries", len(data), len(mine)))


def _as_before(data: Tensor, share: Tensor) -> Tensor:
    """Return ``share``, cut out of ``data``: as an input with gradients of its own, where ``data`` is one.

    Each of many backward passes could go through the cut only once.
    """
    return share.detach().requires_grad_() if data.requires_grad and _is_input(data) else share


def _is_input(data: Tensor) -> bool:
    """Tell whether ``data`` is a leaf, a part of one, or such in another type or shape: ``x.float()[:, :1]``."""
    made = data if data._base is None else data._base
    step = made.grad_fn
    while step is not None and step.name() in _COPIES:
        step = step.next_functions[0][0]
    return step is None or (step is not made.grad_fn and step.name() == _LEAF)


def check_equal_lengths(data: Any) -> None:
    """Raise on every rank when the ranks hold data of different lengths: they would do different numbers of steps."""
    streams.check_equal_lengths(type(data).__name__, str(len(data)) if hasattr(data, "__len__") else "unknown", "shard")
