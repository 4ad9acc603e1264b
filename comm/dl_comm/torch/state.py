"""Everybody starts from the same state: parameters, buffers, optimizers, schedulers, counters."""

from __future__ import annotations

import io
import json
import pickle
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from dl_comm import CommError, _core
from dl_comm.generators import GENERATORS, set_state, state_of
from dl_comm.rank0 import Silence
from dl_comm.ranks import VALUES, get_nranks, get_rank
from dl_comm.torch.memory import DenseMemory, label
from dl_comm.torch.parameters import holders, optimizers_in, remember_names


@dataclass(frozen=True)
class Leaf:
    """One thing to be made equal: a ``tensor``, overwritten in place, or what ``capture`` gives and ``install`` takes.

    ``label`` says what it is; all ranks must say the same.
    """

    label: str
    tensor: Tensor | None = None
    capture: Callable[[], Any] = lambda: None
    install: Callable[[Any], Any] = lambda captured: None


@torch.no_grad()
def broadcast(*things: Any, root: int = 0) -> Any:
    """Give every rank what rank ``root`` has, bit for bit.

    Modules (parameters and buffers), tensors and NumPy arrays are overwritten in place; shapes and dtypes must agree.
    Optimizers get the root's parameters, the options of its groups (learning rates and all others) and its state, also
    state that so far exists on some ranks only. Schedulers, GradScalers and whatever else has ``state_dict`` and
    ``load_state_dict`` take over the root's, and so do the optimizers that other objects hold. Generators of random
    numbers (NumPy's ``Generator`` and ``RandomState``, ``random.Random``) go on as the root's. Lists and dicts of all
    these are walked through; ``None`` is skipped. Numbers and strings cannot be changed in place: use the returned
    value, ``epoch = dl.broadcast(epoch)``. A list's samples that hold such, or share memory, as windows of a series do,
    are replaced in the list by copies.

    Returns the thing, or a tuple of them when several are given. Call it after building, moving and restoring the
    model and before the first step. Raises ``TypeError`` for other things, and ``dl_comm.CommError`` on every rank
    when structures differ, naming the first difference.
    """
    values = list(things)
    leaves = [leaf for i in range(len(values)) for leaf in _leaves(values, i, f"argument {i}")]
    if get_nranks() > 1:
        if not 0 <= root < get_nranks():
            raise ValueError(f"broadcast() got root {root}; the ranks are 0 to {get_nranks() - 1}")
        _agree([leaf.label for leaf in leaves], root)
        _send(list({id(leaf.tensor): leaf.tensor for leaf in leaves if leaf.tensor is not None}.values()), root)
        others = [leaf for leaf in leaves if leaf.tensor is None]
        if others:
            captured = _share([leaf.capture() for leaf in others] if get_rank() == root else [], root)
            if get_rank() != root:
                for leaf, state in zip(others, captured, strict=True):
                    leaf.install(state)
    return values[0] if len(values) == 1 else tuple(values)


def _leaves(container: Any, key: Any, name: str) -> Iterator[Leaf]:
    """Yield what has to be made equal in ``container[key]``, in an order that depends on its structure only."""
    thing = container[key]
    if isinstance(thing, nn.Module):
        yield from _module_leaves(thing, name)
    elif isinstance(thing, (Tensor, np.ndarray)):
        tensor = thing if isinstance(thing, Tensor) else torch.from_numpy(thing)
        yield Leaf(label(name, tensor), tensor)
    elif _is_plain(thing):
        if isinstance(container, tuple):
            raise TypeError(f"broadcast() cannot replace {name} in a tuple; pass the values one by one")
        yield _replaced(container, key, f"{name}: a value")
    elif isinstance(thing, dict) and not _keeps_state(thing):
        for part in thing:
            yield from _leaves(thing, part, f"{name}[{part!r}]")
    elif isinstance(thing, (list, tuple)) and not _keeps_state(thing):
        yield from _sequence_leaves(thing, name)
    else:
        yield from _object_leaves(thing, name)


def _keeps_state(thing: Any) -> bool:
    return hasattr(thing, "param_groups") or (hasattr(thing, "state_dict") and hasattr(thing, "load_state_dict"))


def _module_leaves(module: nn.Module, name: str) -> Iterator[Leaf]:
    remember_names(module)
    for part, tensor in [*module.named_parameters(), *module.named_buffers()]:
        if nn.parameter.is_lazy(tensor):
            raise TypeError(f"{part} of {name} has no shape yet: run a batch through the model before broadcast()")
        yield Leaf(label(part, tensor), tensor)


def _sequence_leaves(sequence: list[Any] | tuple[Any, ...], name: str) -> Iterator[Leaf]:
    """Yield the leaves of a list or tuple; samples of a replay memory are replaced as values, entry by entry."""
    overlap = isinstance(sequence, list) and _overlap(sequence)
    for i, part in enumerate(sequence):
        if isinstance(sequence, list) and _is_sample(part) and (overlap or not all(map(_is_memory, _parts(part)))):
            yield _replaced(sequence, i, f"{name}[{i}]: a value")
        else:
            yield from _leaves(sequence, i, f"{name}[{i}]")


def _object_leaves(thing: Any, name: str) -> Iterator[Leaf]:
    """Yield the leaves of an optimizer, a random generator, or an object that knows its state or holds optimizers."""
    if hasattr(thing, "param_groups"):
        sizes = [len(group["params"]) for group in thing.param_groups]
        yield from (Leaf(label(part, parameter), parameter) for part, parameter in holders(thing))
        text = f"{name}: {type(thing).__name__} with groups of {sizes} parameters"
        yield Leaf(text, None, lambda: _optimizer_state(thing), lambda state: _set_optimizer_state(thing, state))
    elif isinstance(thing, GENERATORS):
        text = f"{name}: a generator of random numbers, {type(getattr(thing, 'bit_generator', thing)).__name__}"
        yield Leaf(text, None, lambda: state_of(thing), lambda state: set_state(thing, state))
    elif _keeps_state(thing):
        yield Leaf(f"{name}: {type(thing).__name__}", None, thing.state_dict, thing.load_state_dict)
    elif held := optimizers_in(thing):
        for part in held:
            yield from _leaves(held, part, f"{name}.{part}")
    else:
        raise TypeError(
            f"broadcast() got {type(thing).__name__} as {name}; it takes modules, optimizers, tensors, arrays, "
            "numbers, lists and dicts of them, and objects with state_dict() and load_state_dict()"
        )


def _is_plain(thing: Any) -> bool:
    """Tell whether ``thing`` is a value that is replaced as a whole: also what another rank has of rank 0's writer."""
    return isinstance(thing, (*VALUES, Silence)) or (isinstance(thing, tuple) and all(map(_is_plain, thing)))


def _replaced(container: Any, key: Any, text: str) -> Leaf:
    return Leaf(text, None, lambda: container[key], lambda value: container.__setitem__(key, value))


def _parts(thing: Any) -> list[Any]:
    return [x for part in thing for x in _parts(part)] if isinstance(thing, tuple) else [thing]


def _is_memory(thing: Any) -> bool:
    """Tell whether ``thing`` is data in memory, and nothing that is trained."""
    return isinstance(thing, np.ndarray) or (isinstance(thing, Tensor) and not thing.requires_grad)


def _is_sample(thing: Any) -> bool:
    return any(map(_is_memory, _parts(thing))) and all(_is_memory(x) or _is_plain(x) for x in _parts(thing))


def _overlap(things: list[Any]) -> bool:
    """Tell whether samples of a list share memory: values written into one would spoil another.

    Each is compared with the one that follows it in memory; parts of one column that only lie between another's do not.
    """
    parts = {id(x): x for thing in things if _is_sample(thing) for x in _parts(thing) if _is_memory(x)}
    arrays = [x if isinstance(x, np.ndarray) else x.numpy() for x in parts.values() if getattr(x, "is_cpu", True)]
    arrays = sorted((a for a in arrays if a.size), key=lambda a: int(a.__array_interface__["data"][0]))
    return any(np.may_share_memory(a, b) and np.shares_memory(a, b) for a, b in pairwise(arrays))


def _agree(labels: list[str], root: int) -> None:
    """Raise the same error on every rank when one of them has other things to broadcast than the root."""
    theirs: list[str] = json.loads(_core.broadcast_bytes(json.dumps(labels).encode(), root))
    complaint = ""
    if labels != theirs:
        for mine, other in zip(labels, theirs, strict=False):
            if mine != other:
                complaint = f"rank {get_rank()} has {mine!r} where rank {root} has {other!r}"
                break
        else:
            complaint = f"rank {get_rank()} has {len(labels)} parts where rank {root} has {len(theirs)}"
    complaints = [c for c in map(bytes.decode, _core.allgather_bytes(complaint.encode())) if c]
    if complaints:
        raise CommError(f"broadcast: {complaints[0]}", "Build the same model and optimizer on every rank.")


def _send(tensors: list[Tensor], root: int) -> None:
    memory = DenseMemory(tensors)
    memory.broadcast(root)
    if get_rank() != root:
        memory.store()


def _share(objects: list[Any], root: int) -> list[Any]:
    """Return the root's ``objects``: their structure pickled, the tensors in them sent apart and bit for bit."""
    file = io.BytesIO()
    pickler = _Pickler(file)
    if get_rank() == root:
        pickler.dump(objects)
    unpickler = _Unpickler(io.BytesIO(_core.broadcast_bytes(file.getvalue(), root)))
    if get_rank() != root:
        objects = unpickler.load()
    _send(list((pickler if get_rank() == root else unpickler).tensors.values()), root)
    return objects


class _Pickler(pickle.Pickler):
    """Pickles everything but dense tensors, which it collects and replaces by their description."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, protocol=5)
        self.tensors: dict[int, Tensor] = {}
        self._numbers: dict[int, int] = {}

    def persistent_id(self, obj: Any) -> Any:
        if not isinstance(obj, Tensor) or obj.layout != torch.strided or obj.is_quantized:
            return None
        number = self._numbers.setdefault(id(obj), len(self._numbers))
        self.tensors[number] = obj
        stride = torch.empty_like(obj, device="meta").stride()
        return number, tuple(obj.shape), stride, obj.dtype, obj.device.type


class _Unpickler(pickle.Unpickler):
    """Reads what ``_Pickler`` wrote, with fresh tensors in the places of the collected ones."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file)
        self.tensors: dict[int, Tensor] = {}

    def persistent_load(self, pid: Any) -> Tensor:
        number, shape, stride, dtype, device = pid
        if number not in self.tensors:
            self.tensors[number] = torch.empty_strided(shape, stride, dtype=dtype, device=device)
        return self.tensors[number]


def _optimizer_state(optimizer: Any) -> Any:
    """Return the groups' options and the state, with parameters named by their position."""
    position = {id(p): i for i, p in enumerate(_parameters(optimizer))}
    groups = [{k: v for k, v in group.items() if k != "params"} for group in optimizer.param_groups]
    of_parameters, of_others = {}, {}
    for key, value in getattr(optimizer, "state", {}).items():
        if id(key) in position:
            of_parameters[position[id(key)]] = value
        elif not isinstance(key, Tensor):
            of_others[key] = value
    return groups, of_parameters, of_others


def _set_optimizer_state(optimizer: Any, captured: Any) -> None:
    groups, of_parameters, of_others = captured
    for group, options in zip(optimizer.param_groups, groups, strict=True):
        for gone in group.keys() - options.keys() - {"params"}:
            del group[gone]
        group.update(options)
    if hasattr(optimizer, "state"):
        parameters = _parameters(optimizer)
        optimizer.state.clear()
        optimizer.state.update({parameters[i]: value for i, value in of_parameters.items()})
        optimizer.state.update(of_others)


def _parameters(optimizer: Any) -> list[Tensor]:
    return [p for group in optimizer.param_groups for p in group["params"]]
