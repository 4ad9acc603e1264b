"""The calls of dl_comm.torch: what every rank gave, what it got, and where it waits."""

from __future__ import annotations

import os
import sys
from types import ModuleType
from typing import Any

import torch
from torch.utils.data import DataLoader

from dlrun.sandbox.imports import AfterImport
from dlrun.sandbox.loose import own
from dlrun.verify.tracer import generators
from dlrun.verify.tracer.followed import CALLS
from dlrun.verify.tracer.importing import changed, followed, number_of, showing
from dlrun.verify.tracer.loaders import Loaders
from dlrun.verify.tracer.recorder import Recorder
from dlrun.verify.tracer.stretches import stretch_note
from dlrun.verify.tracer.tensors import named_tensors, tensor_note, tensors_in
from dlrun.verify.tracer.told import tell, tell_of_mpi
from dlrun.verify.tracer.totals import divided
from dlrun.verify.tracer.training import Training

FACE = "dl_comm.torch"
# Prints and questions are not followed.
FOLLOWED = (*CALLS, "save", "load")


class Fewer(int):
    """A number of steps that dl.steps() has made."""


class Averaging:
    """Wraps the functions of ``dl_comm.torch`` when the script imports it."""

    def __init__(self, recorder: Recorder, training: Training, loaders: Loaders) -> None:
        self.recorder, self.training, self.loaders = recorder, training, loaders
        self._shards = 0

    def wrap(self, face: ModuleType) -> None:
        """Put a wrapper around each function that a port calls."""
        self.recorder.note("face")
        vars(face)["print"] = showing(self.recorder, vars(face)["print"])
        tell(self.recorder, face)
        parts = [module for name, module in sys.modules.items() if name.startswith(f"{FACE}.")]
        for name in FOLLOWED:
            if function := getattr(face, name, None):
                wrapped = followed(self.recorder, name, function, getattr(self, f"_{name}", None))
                for module in (face, *parts):  # DistributedOptimizer calls gradients() under its module's name
                    if vars(module).get(name) is function:
                        setattr(module, name, wrapped)

    def _broadcast(self, function: Any, *things: Any, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        for tensor in tensors_in(list(things)):
            self.training.broadcast |= {id(tensor), tensor.data_ptr()}
        result = function(*things, **kwargs)
        self.training.averaged_statistics(things)
        return result, {"statistics": self.recorder.statistics()}

    def _gradients(self, function: Any, what: Any, *args: Any, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        known = isinstance(what, (torch.Tensor, torch.nn.Module, torch.optim.Optimizer))
        if not known and hasattr(what, "__iter__"):
            what = list(what)
        elif not known:  # an object of the script's own that steps an optimizer
            what = [part for part in vars(what).values() if isinstance(part, torch.optim.Optimizer)]
        tensors = list(what.parameters() if isinstance(what, torch.nn.Module) else tensors_in(what))
        given = [tensor_note(_gradient(t)) for t in tensors]
        weight = sys.modules["dl_comm.parts"].weight_of_gradients()
        before = given if weight == 1 else [tensor_note(_weighed(t, weight)) for t in tensors]
        kept = self.recorder.orders.own_gradients
        own = [g.detach().clone() if kept and g is not None else None for g in map(_gradient, tensors)]
        result = function(what, *args, **kwargs)
        for gradient, mine in zip(map(_gradient, tensors), own, strict=True):
            if gradient is not None and mine is not None:
                gradient.data.copy_(mine)
            elif gradient is not None and self.recorder.orders.sums:
                gradient.mul_(int(os.environ["DLRUN_SIZE"]))
        after = [tensor_note(_gradient(t)) for t in tensors]
        self.training.by_hand.look()
        self.training.averaged = True
        made = [changed(self.training.made.get(id(t)), note) for t, note in zip(tensors, given, strict=True)]
        ids = [self.training.number(t) for t in tensors]
        return result, {"ids": ids, "made": made, "before": before, "after": after}

    def _save(self, function: Any, what: Any, *args: Any, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        tensors = {name: {"kind": "saved", "note": tensor_note(t)} for name, t in named_tensors("", what)}
        self.recorder.note("saved", tensors=tensors, **self.training.statistics_in(what))
        file = args[0] if args else kwargs.get("f")
        if self.recorder.rank == 0 and isinstance(file, (str, os.PathLike)):  # save() goes where a link leads
            own(file, self.recorder.orders.scratch)
        return function(what, *args, **kwargs), {}

    def _reseed(self, function: Any, *args: Any, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        """Leave the ranks' random numbers alike where each takes its part of the same noise."""
        alike = kwargs.get("alike", False)
        if not alike and not args:
            self.training.turns.reseeded()
        elif not alike:
            self.training.turns.reseeded_own()
        own = [number for each in args if (number := generators.number_of(each)) is not None]
        result = None if self.recorder.orders.quiet and not alike else function(*args, **kwargs)
        return result, {"generators": own} if own else {}

    def _lr_scale(self, function: Any, lr: float = 1.0, *args: Any, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        result = lr if self.recorder.orders.global_batch else function(lr, *args, **kwargs)
        rule = args[0] if args else kwargs.get("rule", "linear")
        return result, {"lr": number_of(lr), "result": number_of(result), "rule": rule}

    def _warmup(self, function: Any, optimizer: Any, *args: Any, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        rates = [float(group["lr"]) for group in optimizer.param_groups if "lr" in group]
        if self.recorder.orders.global_batch:
            return None, {"lr": rates}
        return function(optimizer, *args, **kwargs), {"lr": rates}

    def _decay(self, function: Any, optimizer: Any, *args: Any, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        """Leave the serial rule alone where the serial global batch is kept."""
        return (optimizer if self.recorder.orders.global_batch else function(optimizer, *args, **kwargs)), {}

    _lars = _decay

    def _steps(self, function: Any, count: int) -> tuple[Any, dict[str, Any]]:
        result = count if self.recorder.orders.global_batch else function(count)
        facts = {"count": number_of(count), "result": number_of(result), "again": isinstance(count, Fewer)}
        facts |= {"follows": True} if callable(count) else {}
        return Fewer(result) if type(result) is int else result, facts

    def _serial_steps(self, function: Any, count: int, *args: Any, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        """Count what ranks have evaluated together as theirs, also where they repeat the training.

        So not the length of a loader that they train on, which a line behind an evaluation may show: all have it whole.
        """
        evaluated = self.loaders.totals.evaluates and not self.loaders.is_length_of_trained(count)
        with divided(evaluated and self.recorder.orders.training_shards is not None):
            result = count if self.recorder.orders.global_batch else function(count, *args, **kwargs)
        return result, {"count": number_of(count), "result": number_of(result)}

    def _compound(self, function: Any, decay: float) -> tuple[Any, dict[str, Any]]:
        result = decay if self.recorder.orders.global_batch else function(decay)
        return result, {"count": number_of(decay), "result": number_of(result)}

    def _shard(self, function: Any, what: Any, *args: Any, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        number, self._shards = self._shards, self._shards + 1
        kept = self.recorder.orders.training_shards
        with divided(kept is not None and number not in kept):
            result = function(what, *args, **kwargs)
        loaders = {self.loaders.number(x) for x in (what, result) if isinstance(x, DataLoader)}
        if kept is not None and number in kept:
            self.loaders.totals.trained |= loaders
        self.loaders.shared |= {self.loaders.number(result)} if isinstance(result, DataLoader) else set()
        facts = {"shard": number, "loaders": sorted(loaders), "type": type(what).__name__}
        return result, facts | ({"through": [len(what), what.stop]} if isinstance(what, range) else {})

    def _stretch(self, function: Any, data: Any, axis: int = 0, multiple: int = 1) -> tuple[Any, dict[str, Any]]:
        result = function(data, axis, multiple)
        return result, stretch_note(data, result, axis)

    def _total(self, function: Any, *values: Any, **options: Any) -> tuple[Any, dict[str, Any]]:
        attached = _are_attached(values)
        result, facts = self.loaders.totals.total(function, *values, **options)
        self._handed_on(values, result)
        return result, facts | attached

    _maximum = _minimum = _gather = _total

    def _average(self, function: Any, *values: Any, **options: Any) -> tuple[Any, dict[str, Any]]:
        local, attached = number_of(values[0]) if len(values) == 1 else None, _are_attached(values)
        result = function(*values, **options)
        self._handed_on(values, result)
        self.training.averaged_statistics(values)
        facts = {"local": local, "mean": number_of(result), "statistics": self.recorder.statistics()}
        return result, facts | attached

    def _handed_on(self, values: tuple[Any, ...], result: Any) -> None:
        for value, made in zip(values, [result] if len(values) == 1 else result, strict=True):
            self.training.lineage.handed_on(value, made)


def _are_attached(values: tuple[Any, ...]) -> dict[str, bool]:
    """Return that one of several values has a gradient, which what dl_comm makes of it has not."""
    return {"attached": True} if any(getattr(value, "grad_fn", None) is not None for value in values) else {}


def _gradient(tensor: torch.Tensor) -> torch.Tensor | None:
    """Return a parameter's gradient; a tensor that is no parameter is a gradient itself."""
    return tensor.grad if tensor.is_leaf and (tensor.requires_grad or tensor.grad is not None) else tensor


def _weighed(tensor: torch.Tensor, weight: float) -> torch.Tensor | None:
    """Return what goes into the mean where ranks have parts of a batch that differ in size."""
    gradient = _gradient(tensor)
    return None if gradient is None else gradient.detach() * weight


def install(recorder: Recorder, training: Training, loaders: Loaders) -> None:
    """Wait for the script to import ``dl_comm.torch``."""
    tell_of_mpi(recorder)
    sys.meta_path.insert(0, AfterImport(FACE, Averaging(recorder, training, loaders).wrap))
