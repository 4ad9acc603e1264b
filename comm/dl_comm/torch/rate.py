"""Learning rates and step counts that follow the number of ranks."""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor

from dl_comm.torch.ranks import parts

_RULES = {
    "linear": lambda lr, n: lr * n,
    "sqrt": lambda lr, n: lr * math.sqrt(n),
    "none": lambda lr, n: lr,
}


def lr_scale(lr: Any = 1.0, rule: str = "linear") -> Any:
    """Return the learning rate for a global batch that is n times as large on n ranks.

    ``rule`` is ``"linear"`` (lr * n, the linear scaling rule of Goyal et al., arXiv 1706.02677), ``"sqrt"``
    (lr * sqrt(n), usual for Adam and its kin) or ``"none"``. ``lr`` is a float, an int or a tensor, or a list of
    these (one per parameter group). On 1 rank it is returned unchanged. Raises ``ValueError`` for another rule and
    ``TypeError`` for another type.
    """
    if rule not in _RULES:
        raise ValueError(f"lr_scale() has no rule {rule!r}; it knows {', '.join(map(repr, _RULES))}")
    if isinstance(lr, (list, tuple)):
        return type(lr)(lr_scale(each, rule) for each in lr)
    if isinstance(lr, bool) or not isinstance(lr, (int, float, Tensor)):
        raise TypeError(f"lr_scale() got {type(lr).__name__} {lr!r}; a learning rate is a float, an int or a tensor")
    n = parts()
    return lr if n == 1 else _RULES[rule](lr, n)


def steps(count: Any) -> Any:
    """Return how many of ``count`` optimizer steps are left when n ranks share the work: ceil(count / n).

    For constants that count steps of the serial script: loop bounds, decay steps, warm-up steps. What is derived from
    ``len(loader)`` of a sharded loader already is right. ``None``, infinity, zero and negative numbers, which say "no
    limit" or "off", come back unchanged, as does everything on 1 rank.
    """
    n = parts()
    if n == 1 or count is None or count <= 0 or count == math.inf:
        return count
    return math.ceil(count / n)


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
    n = parts()
    if n == 1 or steps == 0:
        return
    done = 0
    full: list[tuple[dict[str, Any], Any]] = []

    def restore() -> None:
        for group, lr in full:
            group["lr"] = lr
        full.clear()

    def before(optimizer: Any, args: Any, kwargs: Any) -> None:
        restore()  # a step that raised never came to ``after``
        factor = 1 / n + (1 - 1 / n) * done / steps
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
