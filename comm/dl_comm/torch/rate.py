"""Warm-up that composes with schedulers."""

from __future__ import annotations

from typing import Any

from dl_comm.ranks import parts
from dl_comm.rate import warm_factor


def warmup(optimizer: Any, steps: int) -> None:
    """Ramp the learning rate linearly from lr / n to lr over the next ``steps`` steps of the optimizer.

    Step k (from 0) uses ``lr * (1/n + (1 - 1/n) * k / steps)`` (the gradual warm-up of Goyal et al., arXiv
    1706.02677, section 2.2), where lr is what the parameter group says at that moment: the reduced rate is put in
    before each step and taken out after it, so schedulers, logs and checkpoints see the full rate and compose with
    the ramp. Steps that a GradScaler skips do not count. On 1 rank nothing happens.

    Raises ``TypeError`` for an optimizer without ``register_step_pre_hook``, ``ValueError`` for negative ``steps``.
    """
    if steps < 0:
        raise ValueError(f"warmup() got {steps} steps; give 0 or more")
    if not hasattr(optimizer, "register_step_pre_hook"):
        raise TypeError(f"warmup() got {type(optimizer).__name__}; it takes a torch.optim.Optimizer")
    if parts() == 1 or steps == 0:
        return
    done = 0
    full: list[tuple[dict[str, Any], Any]] = []

    def restore() -> None:
        for group, lr in full:
            group["lr"] = lr
        full.clear()

    def before(optimizer: Any, args: Any, kwargs: Any) -> None:
        restore()  # a step that raised never came to ``after``
        factor = warm_factor(done, steps)
        for group in optimizer.param_groups:
            full.append((group, group["lr"]))
            group["lr"] = group["lr"] * factor

    def after(optimizer: Any, args: Any, kwargs: Any) -> None:
        nonlocal done
        restore()
        done += 1
        if done == steps:
            for hook in hooks:
                hook.remove()

    hooks = [optimizer.register_step_pre_hook(before), optimizer.register_step_post_hook(after)]
