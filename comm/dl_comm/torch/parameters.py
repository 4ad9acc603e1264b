"""Which tensors hold gradients, what they are called, and how a rank holds each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from operator import is_
from typing import Any
from weakref import WeakKeyDictionary

from torch import Tensor, nn
from torch.utils.weak import WeakTensorKeyDictionary

from dl_comm.torch.memory import label

# How a rank holds one gradient. Sparse ones add their number of sparse dimensions: SPARSE + 1 for an embedding's.
# The greater is the stronger: it is what all ranks take the gradient for. DONE needs nothing any more.
DONE, ABSENT, DENSE, SPARSE = -1, 0, 1, 1

# Names of parameters met in modules, so that an error about an optimizer's parameter can say which one it is.
_names: WeakTensorKeyDictionary = WeakTensorKeyDictionary()

# Plain tensors that an optimizer steps: their gradient is their .grad, also while they are frozen and have none.
_stepped: WeakTensorKeyDictionary = WeakTensorKeyDictionary()


@dataclass(frozen=True, eq=False)
class Held:
    """Tensors that hold or are gradients, each once, and what all ranks compare of them: name, shape, dtype, strides.

    ``parameters`` says that each is an ``nn.Parameter``, whose gradient is its ``.grad``.
    """

    tensors: list[Tensor]
    labels: list[str]
    parameters: bool

    @cached_property
    def digest(self) -> str:
        """A short text that is the same where the labels are."""
        text = "\n".join(self.labels).encode()
        return f"{len(self.labels)} gradients, first {self.labels[0]} ({blake2b(text, digest_size=8).hexdigest()})"

    def only(self, wanted: Callable[[Tensor], bool]) -> Held:
        """Those of the tensors that are wanted."""
        pairs = [(t, text) for t, text in zip(self.tensors, self.labels, strict=True) if wanted(t)]
        return Held([t for t, _ in pairs], [text for _, text in pairs], self.parameters)


# What was found in an optimizer the last time; it is looked through again when its parameters are others.
_held: WeakKeyDictionary[Any, tuple[list[Tensor], Held]] = WeakKeyDictionary()


def held_by(what: Any) -> Held:
    """Return what holds gradients in ``what``. Of an optimizer it is remembered from call to call."""
    remembers = hasattr(what, "param_groups")
    now = [p for group in what.param_groups for p in group["params"]] if remembers else []
    if remembers and what in _held:
        before, held = _held[what]
        if len(before) == len(now) and all(map(is_, before, now)):
            return held
    found = holders(what)
    tensors = [tensor for _, tensor in found]
    held = Held(tensors, [label(name, t) for name, t in found], all(isinstance(t, nn.Parameter) for t in tensors))
    if remembers:
        _held[what] = now, held
    return held


def kind_of(tensor: Tensor) -> int:
    """Return how this rank holds the gradient: ``ABSENT``, ``DENSE``, or ``SPARSE`` plus its sparse dimensions."""
    grad = tensor.grad if holds_gradient(tensor) else tensor
    if grad is None:
        return ABSENT
    return SPARSE + grad.sparse_dim() if grad.is_sparse else DENSE


def holds_gradient(tensor: Tensor) -> bool:
    """Whether the gradient is ``tensor.grad``; otherwise ``tensor`` itself is one."""
    known = tensor.requires_grad or isinstance(tensor, nn.Parameter) or tensor.grad is not None
    return tensor.is_leaf and (known or tensor in _stepped)


def holders(what: Any) -> list[tuple[str, Tensor]]:
    """Return (name, tensor) of every tensor in ``what`` that holds or is a gradient, each once, in a fixed order."""
    found: dict[int, tuple[str, Tensor]] = {}
    for name, tensor in _walk(what):
        if not isinstance(tensor, Tensor):
            raise TypeError(
                f"gradients() got {type(tensor).__name__} {name!r}; it takes an optimizer, a module, or parameters"
            )
        found.setdefault(id(tensor), (_names.get(tensor, name), tensor))
    if not found:
        raise TypeError(f"gradients() got a {type(what).__name__} without parameters (a generator yields only once)")
    return list(found.values())


def _walk(what: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(what, Tensor):
        yield "tensor", what
    elif isinstance(what, nn.Module):
        remember_names(what)
        yield from what.named_parameters()
    elif hasattr(what, "param_groups"):
        for g, group in enumerate(what.param_groups):
            given = group.get("param_names")
            for i, parameter in enumerate(group["params"]):
                if isinstance(parameter, Tensor) and not isinstance(parameter, nn.Parameter):
                    _stepped[parameter] = True
                yield (given[i] if given else f"parameter {i} of group {g}"), parameter
    elif isinstance(what, Mapping):
        yield from what.items()
    elif isinstance(what, Iterable) and not isinstance(what, (str, bytes)):
        for i, item in enumerate(what):
            if isinstance(item, tuple) and len(item) == 2 and isinstance(item[0], str):
                yield item  # model.named_parameters()
            elif item is None or isinstance(item, Tensor):
                yield from () if item is None else [(f"tensor {i}", item)]
            else:
                yield from _walk(item)
    elif held := optimizers_in(what):
        yield from _walk(list(held.values()))
    else:
        yield "", what


def optimizers_in(what: Any) -> dict[str, Any]:
    """Return the optimizers that an object of a script's own holds, which steps them in its own way: ``NoamOpt``."""
    return {name: part for name, part in getattr(what, "__dict__", {}).items() if hasattr(part, "param_groups")}


def remember_names(module: nn.Module) -> None:
    """Note what the module calls its parameters, for the labels and errors of later calls."""
    for name, parameter in module.named_parameters():
        _names[parameter] = name
