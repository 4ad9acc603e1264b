"""PyTorch's compiler, which every optimizer loads to be left alone by it, and which takes as long to load as torch."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.optim.optimizer import Optimizer


def leave_out() -> None:
    """Keep optimizers from loading it, where it is switched off anyway."""
    for method in vars(Optimizer).values():
        if inner := getattr(method, "__wrapped__", None):
            inner.__dynamo_disable = inner
    for kind in (k for k in vars(torch.optim).values() if isinstance(k, type) and "step" in vars(k)):
        step = vars(kind)["step"]
        if getattr(step, "__code__", None) and step.__code__.co_name == "_use_grad":
            kind.step = _differentiable(step.__wrapped__)  # type: ignore[attr-defined]


def _differentiable(step: Callable[..., Any]) -> Callable[..., Any]:
    """Return an optimizer's step that records its arithmetic if it was asked to, and tells no compiler."""

    @functools.wraps(step)
    def made(self: Optimizer, *args: Any, **kwargs: Any) -> Any:
        with torch.set_grad_enabled(self.defaults["differentiable"]):
            return step(self, *args, **kwargs)

    return made
