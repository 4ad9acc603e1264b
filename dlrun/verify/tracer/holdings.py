"""What a PyTorch script holds besides the parameters it trains: optimizers' state, buffers, copies, earlier models.

Found by the names that the script has for them where it is stopped, so that ranks can be compared and a difference be
named. Plain tensors are left out: batches and losses are local.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from types import TracebackType
from typing import Any

import torch
from torch import nn
from torch.optim.optimizer import Optimizer

from dlrun.verify.tracer.recorder import is_of_user, spaces
from dlrun.verify.tracer.tensors import tensor_note
from dlrun.verify.tracer.training import NORMS, Training

STATISTICS = re.compile(r"(running|moving)_")  # of a batch norm of the script's own
DEPTH = 2  # of objects in objects
SHORT = 20  # entries of a list or dict
Held = tuple[str, str, torch.Tensor]  # name, kind (slot, trained, copy, statistics, memory, buffer), value


def note_held(training: Training, space: dict[str, Any], stopped: TracebackType | None) -> None:
    """Note what is held in the script's globals, and in the variables of the functions that it was stopped in.

    Where it came to its end, these are the functions that made the last step.
    """
    training.settle()
    every = spaces(space, stopped) + ([] if stopped else training.lineage.spaces)
    seen = training.stepped(last=True)
    held = {}
    for name, kind, value in (found for names in every for found in _in_names(names, training)):
        if id(value) not in seen:
            seen.add(id(value))
            held[name] = {"kind": kind, "note": tensor_note(value)}
    training.recorder.note("held", tensors=held)


def _in_names(names: dict[str, Any], training: Training) -> Iterator[Held]:
    for name, value in list(names.items()):
        yield from _in_object(name, value, training, DEPTH)


def _in_object(name: str, value: Any, training: Training, depth: int) -> Iterator[Held]:
    """Yield what is held in a value, in objects of the script's own that it is, and in short lists and dicts."""
    yield from _in_value(name, value, training)
    if not depth or isinstance(value, (nn.Module, Optimizer, type)):
        return
    parts: list[tuple[str, Any]] = []
    if isinstance(value, (dict, list, tuple)) and len(value) <= SHORT:
        items = value.items() if isinstance(value, dict) else enumerate(value)
        parts = [(f"{name}[{key!r}]", part) for key, part in items]
    elif is_of_user(value):
        parts = [(f"{name}.{key}", part) for key, part in getattr(value, "__dict__", {}).items()]
    for inner, part in parts:
        yield from _in_object(inner, part, training, depth - 1)


def _in_value(name: str, value: Any, training: Training) -> Iterator[Held]:
    if isinstance(value, nn.Module):
        yield from _in_module(name, value, training)
    elif isinstance(value, Optimizer):
        for parameter, state in value.state.items():
            for key, part in state.items() if isinstance(state, dict) else ():
                if isinstance(part, torch.Tensor):
                    yield f"{name}: {key} of {training.name_of(parameter)}", "slot", part
    elif isinstance(value, dict) and value and all(key in training.names for key in value):
        for key, part in value.items():  # the shadow of a moving average
            if isinstance(part, torch.Tensor):
                yield f"{name}[{key!r}]", "copy", part
    elif isinstance(value, (dict, list, tuple)) and training.is_shadow(value):
        for key, part in value.items() if isinstance(value, dict) else enumerate(value):
            yield f"{name}[{key!r}]", "copy", part


def _in_module(name: str, module: nn.Module, training: Training) -> Iterator[Held]:
    trained = training.stepped()
    for key, parameter in module.named_parameters():
        yield f"{name}.{key}", "trained" if id(parameter) in trained else "copy", parameter
    for prefix, part in module.named_modules():
        for key, buffer in part.named_buffers(recurse=False):
            statistics = isinstance(part, NORMS) or STATISTICS.match(key)
            kind = "statistics" if statistics else "memory" if training.is_memory(buffer) else "buffer"
            yield ".".join(word for word in (name, prefix, key) if word), kind, buffer
