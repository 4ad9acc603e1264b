"""Whether all ranks hold the same parameters before these are updated for the first time."""

from __future__ import annotations

import warnings
from weakref import WeakSet

import numpy as np
import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from dl_comm import _core
from dl_comm.ranks import is_rank0
from dl_comm.torch.parameters import Held

_ROUNDING = 1e-9  # of what the absolute entries of a parameter add up to: ranks may add them up in another order
_known: WeakSet[Held] = WeakSet()
_seen: WeakTensorKeyDictionary = WeakTensorKeyDictionary()


def compare_once(held: Held) -> None:
    """Warn on rank 0 where a parameter that has not been averaged before differs between the ranks; collective.

    Means of gradients keep parameters alike that begin alike, and no others: ``broadcast`` makes them so. Compared
    are the sums of their entries, in one exchange the first time.
    """
    if held in _known or not held.parameters:
        return
    _known.add(held)  # which an optimizer keeps from step to step
    new = [i for i, tensor in enumerate(held.tensors) if tensor not in _seen]
    if not new:
        return
    _seen.update((held.tensors[i], True) for i in new)
    sums = [_sums(held.tensors[i]) for i in new]
    own = np.array([total for total, _ in sums])
    bounds = np.concatenate([own, -own])
    _core.allreduce([(bounds.ctypes.data, bounds.size, "float64")], "max", 0, ["sums of parameters"])
    greatest, least = bounds[: len(own)], -bounds[len(own) :]
    for i, most, fewest, (_, size) in zip(new, greatest, least, sums, strict=True):
        if most - fewest > _ROUNDING * size and is_rank0():
            warnings.warn(
                f"before its first update, {held.labels[i]} differs between the ranks (its entries add up "
                f"to {fewest:.6g} on one, to {most:.6g} on another), and the mean of the gradients keeps it so: call "
                "broadcast(model, optimizer) before the first step",
                RuntimeWarning,
                stacklevel=4,
            )
            return


def _sums(tensor: Tensor) -> tuple[float, float]:
    """Return the sum of a parameter's entries, and a bound of that of their absolute values; no copy is made."""
    entries = torch.view_as_real(tensor) if tensor.is_complex() else tensor
    plain = entries.is_floating_point() and entries.dtype.itemsize > 1 and entries.layout == torch.strided
    if not plain or not entries.numel():
        return 0.0, 0.0
    total = entries.sum(dtype=torch.float64).item()
    size = entries.numel() * max(abs(bound.item()) for bound in entries.aminmax())
    return (total, size) if np.isfinite(total) else (0.0, 0.0)
