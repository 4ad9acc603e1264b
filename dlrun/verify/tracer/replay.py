"""A run whose parameters become, after each step, those of another run: evaluations of the two can be compared.

A run that ``keeps`` writes rank 0's parameters after each step, one that ``follows`` takes them over. One that is
``shaken`` learns from other outputs of its models, and draws other random numbers: what it shows all the same is of no
training. One that is ``frozen`` takes each update back: what it shows of the same samples is the same, whatever the
batches.
"""

from __future__ import annotations

import functools
import random
from io import BufferedReader, BufferedWriter
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from dlrun.verify.tracer.recorder import Recorder

FILE = "steps.npy"  # in a run's folder: the bytes of all parameters of the optimizer that stepped, an array a step
SHRUNK = 0.9  # a probability stays one


class Replay:
    """Writes the parameters of each step, or takes them over."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder, orders = recorder, recorder.orders
        self._seen = 0
        # Opened now: what opens a file later is the script.
        self._kept: BufferedWriter | None = None
        self._followed: BufferedReader | None = None
        if orders.keeps and recorder.rank == 0:
            self._kept = (Path(orders.out) / FILE).open("wb")
        if orders.follows:
            self._followed = (Path(orders.follows) / FILE).open("rb")

    def after_step(self, optimizer: Optimizer, *_: Any) -> None:
        """A step was made, and noted."""
        if self.recorder.steps == self._seen:
            return  # of a subclass calling its base's
        self._seen = self.recorder.steps
        with self.recorder.aside(), torch.no_grad():
            parameters = [p for group in optimizer.param_groups for p in group["params"]]
            if self._kept is not None:
                np.save(self._kept, np.concatenate([_bytes(p).numpy() for p in parameters]))
                self._kept.flush()
            if self._followed is not None:
                self._take_over(parameters)
            if self.recorder.orders.shaken:
                _ = torch.rand(1), np.random.rand(), random.random()

    def _take_over(self, parameters: list[torch.Tensor]) -> None:
        assert self._followed is not None
        try:
            whole = torch.from_numpy(np.load(self._followed))
        except (EOFError, OSError, ValueError):  # the other run made no more steps
            whole = torch.empty(0, dtype=torch.uint8)
        sizes = [p.numel() * p.element_size() for p in parameters]
        if sum(sizes) != whole.numel():
            self.recorder.note("astray")
            self._followed = None
            return
        for parameter, part in zip(parameters, torch.split(whole, sizes), strict=True):
            parameter.copy_(part.clone().view(parameter.dtype).reshape(parameter.shape))


def _bytes(parameter: torch.Tensor) -> torch.Tensor:
    return parameter.detach().cpu().contiguous().reshape(-1).view(torch.uint8)


def install(recorder: Recorder) -> None:
    """Put the instruments into optimizers and, for a shaken run, modules; after those that note steps."""
    orders = recorder.orders
    if orders.keeps or orders.follows:
        register_optimizer_step_post_hook(Replay(recorder).after_step)
    if orders.shaken:
        _shake(recorder)
    if orders.frozen:
        _freeze(recorder)


def _freeze(recorder: Recorder) -> None:
    first: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}  # of each parameter itself and its value

    def before(optimizer: Optimizer, *_: Any) -> None:
        with recorder.aside():
            for parameter in (p for group in optimizer.param_groups for p in group["params"]):
                if id(parameter) not in first:
                    first[id(parameter)] = (parameter, parameter.detach().clone())

    def after(optimizer: Optimizer, *_: Any) -> None:
        with recorder.aside(), torch.no_grad():
            for parameter in (p for group in optimizer.param_groups for p in group["params"]):
                parameter.copy_(first[id(parameter)][1])

    register_optimizer_step_pre_hook(before)
    register_optimizer_step_post_hook(after)


def _shake(recorder: Recorder) -> None:
    call, depth = nn.Module.__call__, 0

    @functools.wraps(call)
    def shaken(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        nonlocal depth
        if depth or recorder.inside or not torch.is_grad_enabled():
            return call(self, *args, **kwargs)
        depth += 1
        try:
            return _other(call(self, *args, **kwargs))
        finally:
            depth -= 1

    nn.Module.__call__ = shaken  # type: ignore[method-assign]


def _other(value: Any) -> Any:
    """Return what a model gave back, its numbers smaller and those of each sample another's."""
    if isinstance(value, torch.Tensor) and value.is_floating_point():
        return (value.roll(1, 0) if value.ndim else value) * SHRUNK
    if type(value) in (list, tuple):
        return type(value)(map(_other, value))
    if type(value) is dict:
        return {key: _other(part) for key, part in value.items()}
    return value
