"""What the ranks make one of: sums, means, extremes and gathered entries of numbers and tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from dl_comm import CommError
from dl_comm.ranks import get_nranks
from dl_comm.reduction.calls import Reductions
from dl_comm.reduction.exchange import meant_alike, shown
from dl_comm.reduction.folding import NAMES
from dl_comm.reduction.leaves import Tensors
from dl_comm.torch import gpu
from dl_comm.torch.memory import DenseMemory, dtype_name, label


class TorchTensors(Tensors):
    """Tensors of PyTorch."""

    def holds(self, value: Any) -> bool:
        """Tell whether it is one."""
        return isinstance(value, Tensor)

    def described(self, value: Any) -> tuple[str, str]:
        """Return its dtype and place."""
        return dtype_name(value), value.device.type

    def array(self, value: Any) -> np.ndarray[Any, Any]:
        """Return what it holds."""
        own = value.detach().to_dense()
        own = own.float() if own.dtype in _LACKING else own
        array: np.ndarray[Any, Any] = own.resolve_conj().resolve_neg().numpy(force=True)
        return np.ascontiguousarray(array).reshape(array.shape)

    def tensor(self, array: np.ndarray[Any, Any], dtype: str, place: str, like: Any) -> Tensor:
        """Return one that holds the array."""
        made = torch.from_numpy(np.array(array)).to(getattr(torch, dtype))
        if like is not None:
            return made.to(like.device)
        return made if place in ("", "cpu", "meta") else made.to(place)  # cuda: the current one, this rank's

    def mean_dtype(self, dtype: str) -> str:
        """Return the dtype of the means of integers."""
        return str(torch.get_default_dtype()).removeprefix("torch.")


# Those that NumPy has not.
_LACKING = {getattr(torch, name) for name in ("bfloat16", "float8_e4m3fn", "float8_e5m2") if hasattr(torch, name)}


class _Reductions(Reductions):
    """The reductions of numbers and tensors, and the means of what modules keep."""

    @torch.no_grad()
    def average(self, *values: Any, over: Any = None) -> Any:
        """Return the means."""
        modules = [value for value in values if isinstance(value, nn.Module)]
        if not modules:
            return super().average(*values, over=over)
        if not self.leaves_alone(over, repeats=False):
            for module in modules:
                _average_buffers(module)
        others = [value for value in values if not isinstance(value, nn.Module)]
        found = iter(self.reduced(others, "mean", over))
        made = tuple(value if isinstance(value, nn.Module) else next(found) for value in values)
        return made[0] if len(made) == 1 else made

    average.__doc__ = f"""{Reductions.average.__doc__.rstrip() if Reductions.average.__doc__ else ""}

        Of a module the floating-point buffers are averaged, in place: the statistics of BatchNorm, before the ranks
        evaluate or save it.
        """

    @torch.no_grad()
    def exchanged(self, values: Sequence[Any], op: str) -> Sequence[Any]:
        """Reduce; a single tensor on a GPU stays there, and no call waits for it."""
        first: Any = values[0] if values else None
        floating = isinstance(first, Tensor) and (first.is_floating_point() or first.is_complex())
        if len(values) != 1 or not floating or not gpu.is_on_gpu(first) or first.layout != torch.strided:
            return super().exchanged(values, op)
        try:
            return [_on_gpu(first, op)]
        except CommError as error:
            if not meant_alike(error, f"{NAMES[op]} of"):
                raise
        return shown(values, op, self.tensors)


def _on_gpu(value: Tensor, op: str) -> Tensor:
    found = value.detach().clone(memory_format=torch.contiguous_format)
    memory = DenseMemory([found])
    memory.allreduce(op, [label(f"{NAMES[op]} of", found)])
    memory.store()
    return found


def _average_buffers(module: nn.Module) -> None:
    named = [(name, b) for name, b in module.named_buffers() if b.is_floating_point() and b.layout == torch.strided]
    if named and get_nranks() > 1:
        memory = DenseMemory([buffer for _, buffer in named])
        memory.allreduce("mean", [label(name, buffer) for name, buffer in named])
        memory.store()


_reductions = _Reductions(TorchTensors())
average, gather, total = _reductions.average, _reductions.gather, _reductions.total
maximum, minimum = _reductions.maximum, _reductions.minimum
