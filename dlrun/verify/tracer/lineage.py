"""What training computes in one step and uses in a later one, besides parameters: class centers, queues, shadows.

A rank's parameters come from averaged gradients; a tensor that the script keeps from step to step does not. So each
operation of PyTorch's is followed, from values to what is made of them, and when a loss goes backward it is known
which values of earlier steps are in it: they are noted under the names that the script has for them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils.weak import WeakTensorKeyDictionary

from dlrun.verify.tracer.recorder import Recorder, is_of_user, running
from dlrun.verify.tracer.tensors import digest, tensor_note
from dlrun.verify.tracer.told import is_part
from dlrun.verify.tracer.values import NAMED, Value, keep_names, line, made, note_carried

MOVES = {
    "__getitem__",
    "__setitem__",
    "cat",
    "concat",
    "stack",
    "roll",
    "clone",
    "detach",
    "to",
    "float",
    "cpu",
    "reshape",
    "contiguous",
    "gather",
    "index_select",
    "take",
    "split",
    "chunk",
    "copy_",
    "index_copy_",
    "flip",
    "masked_scatter_",
    "where",
    "repeat",
    "index_put_",
    "cuda",
}
RENEWS = {"zero_", "fill_", "copy_", "normal_", "uniform_", "set_"}  # nothing of the old value stays
DRAWS = {
    "rand",
    "rand_like",
    "randn",
    "randn_like",
    "normal",
    "normal_",
    "uniform_",
    "bernoulli",
    "bernoulli_",
    "exponential_",
    "log_normal_",
    "poisson",
}
REDUCES = {
    "mean",
    "sum",
    "median",
    "std",
    "var",
    "amax",
    "amin",
    "nanmean",
    "nansum",
    "logsumexp",
    "index_add",
    "index_add_",
    "scatter_add",
    "scatter_add_",
    "index_reduce",
    "index_reduce_",
    "scatter_reduce",
    "scatter_reduce_",
}


class Lineage(TorchFunctionMode):
    """Follows values through PyTorch's functions. ``round`` counts how often all optimizers have stepped."""

    def __init__(self, recorder: Recorder, is_parameter: Callable[[torch.Tensor], bool]) -> None:
        super().__init__()
        self.recorder, self._is_parameter = recorder, is_parameter
        self.round, self.paused = 0, False
        self.spaces: list[dict[str, Any]] = []  # what the script had names for at its last step, plain tensors left out
        self._values: Any = WeakTensorKeyDictionary()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call the function, and keep what its result is made of."""
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if not (self.paused or self.recorder.inside):
            self._follow(getattr(func, "__name__", ""), args, kwargs, result)
        return result

    def of(self, tensor: torch.Tensor) -> Value | None:
        """Return what is known of a tensor's value; None of a parameter, and of what no function has made."""
        found: Value | None = self._values.get(tensor)
        return found

    def handed_on(self, value: Any, result: Any) -> None:
        """What dl_comm makes of a value has in it what the value has."""
        if isinstance(value, torch.Tensor) and isinstance(result, torch.Tensor) and (known := self.of(value)):
            self._values[result] = known

    def given(self, inputs: Iterable[Any]) -> None:
        """A model is called with these."""
        for value in map(self.of, _tensors(inputs)):
            if value is not None:
                value.given = True

    def _follow(self, name: str, args: Any, kwargs: Any, result: Any) -> None:
        given = [*args, *kwargs.values()]
        if is_part(name, args, result):
            self.recorder.note("ranks in a loss", many=result.dim() > 0)
        inputs = [t for t in _tensors(given) if not self._is_parameter(t)]
        known = [value for t in inputs if (value := self._values.get(t)) is not None]
        target = args[0] if args and isinstance(args[0], torch.Tensor) else None
        if name == "__setitem__" or (name.endswith("_") and not name.endswith("__") and result is target is not None):
            if target is not None and not self._is_parameter(target):
                self._changed(name, target, known, kwargs)
            return
        for output in _tensors([result]):
            if self._is_parameter(output) or any(output is t for t in inputs):
                continue
            source = next((t for t in inputs if _shares(output, t)), None)
            if source is not None:
                self._values[output] = self._values.setdefault(source, Value(self.round, self.round))
                continue
            if output.dim() == 0 and output.requires_grad and any(t.dim() for t in inputs):
                output.register_hook(functools.partial(self._weigh, line()))  # type: ignore[no-untyped-call]
            value = self._values[output] = made(self.round, known, name in MOVES, _over_samples(name, args, kwargs))
            value.noise = self._noise(name, known, output, kwargs)
            value.accumulates = value.generation > 1
            value.at = line() if value.made_of or value.reduced else ""

    def _weigh(self, made: str, gradient: torch.Tensor) -> None:
        """Note how much a number made of many, as a loss is, counts in what goes backward."""
        with suppress(RuntimeError):  # a function transform's has no value
            self.recorder.note("weight", made=made, weight=gradient.detach().item())

    def _changed(self, name: str, target: torch.Tensor, known: list[Value], kwargs: Any) -> None:
        """Note that a tensor was changed in place."""
        value = self._values.setdefault(target, Value(self.round, self.round))
        change = made(self.round, [v for v in known if v is not value], name in MOVES, name in REDUCES)
        value.change(change, name in MOVES, name in RENEWS)
        value.noise = self._noise(name, known, target, kwargs)

    def _noise(self, name: str, known: list[Value], output: torch.Tensor, kwargs: Any) -> frozenset[tuple[str, str]]:
        """Return the draws in an output; numbers that count something, such as an order, are none."""
        if not (output.is_floating_point() or output.dtype == torch.bool) or name == "__getitem__":
            return frozenset()
        found: frozenset[tuple[str, str]] = frozenset().union(*(v.noise for v in known if v.round == self.round))
        if (kwargs.get("generator") is not None or name in DRAWS) and output.is_floating_point():
            found |= {(line(), digest(output))}
        return found

    def stepped(self, round: int) -> None:
        """After a step: keep the names and contents of what the script has kept."""
        self.round = round
        self.spaces = [{k: v for k, v in names.items() if not isinstance(v, torch.Tensor)} for names in running()]
        keep_names(self._values.get, _below, tensor_note)

    def backward(self, roots: Any) -> None:
        """A loss goes backward: note what is in it of earlier rounds, and what was drawn for it."""
        given = roots if isinstance(roots, (list, tuple)) else [roots]
        losses = [value for root in given if isinstance(root, torch.Tensor) and (value := self._values.get(root))]
        note_carried(self.recorder, losses, self.round)


def _below(name: str, value: Any, depth: int) -> Iterator[tuple[str, torch.Tensor]]:
    if isinstance(value, torch.Tensor):
        yield name, value
    elif depth and isinstance(value, (list, tuple)) and len(value) <= NAMED:
        for i, item in enumerate(value):
            yield from _below(f"{name}[{i}]", item, depth - 1)
    elif depth and isinstance(value, dict) and len(value) <= NAMED:
        for key, item in value.items():
            yield from _below(f"{name}[{key!r}]", item, depth - 1)
    elif isinstance(value, torch.nn.Module):
        for key, buffer in value.named_buffers():
            yield f"{name}.{key}", buffer
        for prefix, part in value.named_modules():
            for key, item in vars(part).items():
                if isinstance(item, torch.Tensor):
                    yield ".".join(word for word in (name, prefix, key) if word), item
    elif depth and hasattr(value, "__dict__") and is_of_user(value):
        for key, item in list(vars(value).items()):
            yield from _below(f"{name}.{key}", item, depth - 1)


def _tensors(values: Iterable[Any], depth: int = 2) -> Iterator[torch.Tensor]:
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif depth and isinstance(value, (list, tuple)):
            yield from _tensors(value, depth - 1)


def _shares(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors are views of the same memory."""
    try:
        return bool(one.untyped_storage()._cdata == other.untyped_storage()._cdata)
    except (RuntimeError, NotImplementedError):  # sparse ones, and those of function transforms
        return False


def _over_samples(name: str, args: Any, kwargs: Any) -> bool:
    """Whether a function reduces along the first axis, where the samples are."""
    dim = kwargs.get("dim", args[1] if len(args) > 1 else None)
    axes = dim if isinstance(dim, (tuple, list)) else [dim]
    return name in REDUCES and any(axis is None or (isinstance(axis, int) and axis == 0) for axis in axes)
