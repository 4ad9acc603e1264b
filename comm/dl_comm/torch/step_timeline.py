"""What only PyTorch knows of a step: backward, packing, the optimizer's update, checkpoints. On request alone.

Nothing is changed unless the timeline records or somebody counts steps; results never change.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from dl_comm import step_count, timeline
from dl_comm.torch.memory import DenseMemory
from dl_comm.torch.overlap import Overlap
from dl_comm.torch.step_hooks import keep_step_hooks

_begun: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
_numbers: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()


def watch() -> None:
    """Tell ``stepping`` and ``timeline`` what they want to know."""
    if step_count.wanted():
        for kind in vars(torch.optim).values():
            if isinstance(kind, type) and "step" in vars(kind):
                keep_step_hooks(kind)
        register_optimizer_step_pre_hook(_before_step)
        register_optimizer_step_post_hook(_after_step)
    if timeline.on():
        setattr(torch.autograd, "backward", _timed("backward", torch.autograd.backward))  # noqa: B010
        setattr(torch, "save", _timed("checkpoint", torch.save))  # noqa: B010
        setattr(torch, "load", _timed("checkpoint", torch.load))  # noqa: B010
        setattr(Overlap, "_copy", staticmethod(_packing(Overlap._copy)))  # noqa: B010
        setattr(Overlap, "finish", _unpacking(Overlap.finish))  # noqa: B010
        setattr(DenseMemory, "__init__", _copying("pack", DenseMemory.__init__))  # noqa: B010
        setattr(DenseMemory, "store", _copying("unpack", DenseMemory.store))  # noqa: B010
        timeline.add("import", "import torch", timeline.imported())


def _before_step(optimizer: Any, *_: Any) -> None:
    _begun[optimizer] = timeline.now()


def _after_step(optimizer: Any, *_: Any) -> None:
    timeline.add("step", type(optimizer).__name__, _begun.pop(optimizer, timeline.now()))
    # By its number, not by id(): an address is given to another object when its first owner is gone.
    step_count.stepped(("optimizer", _numbers.setdefault(optimizer, len(_numbers))))


def _timed(kind: str, plain: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(plain)
    def timed(*args: Any, **options: Any) -> Any:
        with timeline.phase(kind, plain.__name__):
            return plain(*args, **options)

    return timed


def _packing(plain: Callable[[Any], None]) -> Callable[[Any], None]:
    def copy(slot: Any) -> None:
        begin = timeline.now()
        plain(slot)
        timeline.add("pack", slot.name, begin)

    return copy


def _unpacking(plain: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def finish(self: Any) -> Any:
        planned = bool(self.buckets)
        left = plain(self)
        if planned:
            timeline.add("unpack", "gradients", timeline.last_wait())
        return left

    return finish


def _copying(kind: str, plain: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(plain)
    def copy(self: Any, *args: Any) -> Any:
        begin = timeline.now()
        plain(self, *args)
        if self._copies:
            timeline.add(kind, f"{len(self._copies)} tensors", begin)

    return copy
