"""Functions that run before and after each step of an optimizer, also beside PyTorch's compiler."""

from __future__ import annotations

from typing import Any

import torch
from torch.optim import Optimizer

# torch/_dynamo/eval_frame.py of 2.1 and 2.2, TorchPatcher.patch
_TAKEN_OFF = tuple(map(int, torch.__version__.split(".")[:2])) < (2, 3)


def keep_step_hooks(kind: type[Optimizer]) -> None:
    """Make the step hooks of this class of optimizers run whatever ``torch.compile`` does.

    The first compilation of PyTorch 2.1 and 2.2 takes them off every class of ``torch.optim``, for good and without a
    word: it puts back the step that the hooked one says it wraps. So the hooked one no longer says so. Later releases
    leave the hooks alone, and nothing is done.
    """
    if not _TAKEN_OFF:
        return
    step: Any = kind.step
    hooked: Any = Optimizer.profile_hook_step(step)
    if getattr(step, "__code__", None) is not hooked.__code__:  # a compilation has been before
        hooked.hooked = True
        kind.step = step = hooked  # type: ignore[method-assign]
    vars(step).pop("__wrapped__", None)
