"""Cray's ``DistributedOptimizer``: an optimizer whose ``step`` averages first."""

from __future__ import annotations

import builtins
import time
from collections.abc import Callable
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import torch

import dl_comm.torch.overlap as overlapping
from dl_comm.ranks import get_nranks, get_rank
from dl_comm.torch.averaging import gradients
from dl_comm.torch.reducing import average
from dl_comm.torch.state import broadcast
from dl_comm.torch.step_hooks import keep_step_hooks

Opt = TypeVar("Opt", bound=torch.optim.Optimizer)


class _Averaging:
    """What is noted of one distributed optimizer: whether this step's gradients are averaged, and the time it took."""

    def __init__(self, verbosity: int, frequency: int) -> None:
        self.done = False
        self.calls = 0
        self.seconds = 0.0
        self.verbosity, self.frequency = verbosity, frequency

    def average(self, optimizer: Any) -> None:
        start = time.perf_counter()
        gradients(optimizer)
        self.seconds += time.perf_counter() - start
        if self.calls % self.frequency == 0 and self.verbosity > (0 if get_rank() == 0 else 1):
            builtins.print(
                f"Rank {get_rank()} has waited a total of {self.seconds:.6f} seconds for communication to complete "
                f"so far on team 0 (calls = {self.calls})"
            )
        self.calls += 1


distributed: WeakKeyDictionary[Any, _Averaging] = WeakKeyDictionary()


def DistributedOptimizer(  # noqa: N802
    opt: Opt,
    nteam: int = 1,
    nthread_per_team: int = 2,
    *,
    overlap: bool = False,
    verbosity: int = 0,
    frequency: int = 100,
) -> Opt:
    """Return ``opt`` itself, whose ``step()`` from now on averages the gradients over the ranks first.

    Parameters, options and state become rank 0's. A step with a closure averages after each evaluation, the loss as
    well as the gradients. With a ``GradScaler`` the scaled gradients are averaged before they are unscaled, so that
    an overflow on one rank skips the step on all. Clip gradients between ``gradients(opt)`` and ``step()``: calling
    it is allowed, ``step`` then finds identical gradients and averages them again. ``overlap`` calls ``overlap(opt)``.
    With ``verbosity`` 1 (rank 0) or 2 (all) every ``frequency``-th call prints the time waited so far. ``nteam`` and
    ``nthread_per_team`` are accepted for compatibility: one team serves all optimizers.
    """
    if opt in distributed:
        return opt
    broadcast(opt)
    state = distributed[opt] = _Averaging(verbosity, frequency)
    if get_nranks() == 1:
        return opt
    if overlap:
        overlapping.overlap(opt)
    watch_scalers()

    def before(optimizer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        closure = args[1] if len(args) > 1 else kwargs.get("closure")  # args[0] is the optimizer
        if closure is not None:
            averaged = _averaged_closure(closure, optimizer, state)
            if len(args) > 1:
                return (args[0], averaged, *args[2:]), kwargs
            return args, {**kwargs, "closure": averaged}
        if not state.done:
            state.average(optimizer)
        state.done = False
        return None

    keep_step_hooks(type(opt))
    opt.register_step_pre_hook(before)
    return opt


def _averaged_closure(closure: Callable[[], Any], optimizer: Any, state: _Averaging) -> Callable[[], Any]:
    def averaged() -> Any:
        loss = closure()
        state.average(optimizer)
        return average(loss) if loss is not None else None

    return averaged


def watch_scalers() -> None:
    """Make every GradScaler average a distributed optimizer's gradients before it looks at them."""
    scaler = getattr(torch.amp, "GradScaler", torch.cuda.amp.GradScaler)  # before PyTorch 2.3 there is the latter alone
    if hasattr(scaler.unscale_, "averages_first"):
        return
    # A fused optimizer unscales in its own step; its gradients are searched for overflows before that.
    for look in ("unscale_", "_check_inf_per_device"):
        setattr(scaler, look, _averaging_first(getattr(scaler, look)))
    plain = scaler.step

    def step(self: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return plain(self, optimizer, *args, **kwargs)
        finally:
            if optimizer in distributed:  # also where an overflow has skipped the step
                distributed[optimizer].done = False

    scaler.step = step  # type: ignore[method-assign]


def _averaging_first(plain: Callable[..., Any]) -> Callable[..., Any]:
    def look(self: Any, optimizer: Any) -> Any:
        state = distributed.get(optimizer)
        if state is not None and self.is_enabled():
            state.average(optimizer)
            state.done = True
        return plain(self, optimizer)

    look.averages_first = True  # type: ignore[attr-defined]
    return look
