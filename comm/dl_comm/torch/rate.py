"""Warm-up that composes with schedulers, decay over the epochs, and layers with rates of their own."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar

import torch

from dl_comm.ranks import parts
from dl_comm.rate import decay_factor, warm_factor
from dl_comm.torch.step_hooks import keep_step_hooks

Opt = TypeVar("Opt", bound=torch.optim.Optimizer)


class _Exchanged:
    """Values of parameter groups that are other ones during a step."""

    def __init__(self, key: str) -> None:
        self._key = key
        self._own: list[tuple[dict[str, Any], Any]] = []

    def exchange(self, group: dict[str, Any], value: Any) -> None:
        """Put ``value`` in, for the step."""
        self._own.append((group, group[self._key]))
        group[self._key] = value

    def restore(self) -> None:
        """Give the groups back their own."""
        for group, value in self._own:
            group[self._key] = value
        self._own.clear()


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
    full = _Exchanged("lr")

    def before(optimizer: Any, args: Any, kwargs: Any) -> None:
        full.restore()  # a step that raised never came to ``after``
        factor = warm_factor(done, steps)
        for group in optimizer.param_groups:
            full.exchange(group, group["lr"] * factor)

    def after(optimizer: Any, args: Any, kwargs: Any) -> None:
        nonlocal done
        full.restore()
        done += 1
        if done == steps:
            for hook in hooks:
                hook.remove()

    keep_step_hooks(type(optimizer))
    hooks = [optimizer.register_step_pre_hook(before), optimizer.register_step_post_hook(after)]


def decay(optimizer: Any, epoch: int, at: Iterable[int], factor: float = 0.1) -> None:
    """Multiply the learning rate by ``factor`` from each of the epochs ``at`` on. Call it first in every epoch.

    ``epoch`` counts from 0. With ``at=(30, 60, 80)`` this is the schedule of Goyal et al. (arXiv 1706.02677, section
    5.1). The rate follows from the epoch's number, and what is done is noted in the parameter groups, which checkpoints
    hold: a run that is resumed goes on rightly, whether or not it restores the optimizer. On 1 rank nothing happens:
    the script keeps its own rate. Raises ``ValueError`` for a factor outside 0 to 1.
    """
    wanted = decay_factor(epoch, at, factor)
    for group in optimizer.param_groups if parts() > 1 else ():
        group["lr"] = group["lr"] * (wanted / group.get("decayed", 1.0))
        group["decayed"] = wanted


def lars(optimizer: Opt, trust: float = 0.001) -> Opt:
    """Give every layer a rate of its own, as large as its weights allow; return the optimizer, a ``torch.optim.SGD``.

    LARS (You et al., arXiv 1708.03888, algorithm 1): before each step the gradient g of a tensor of weights w becomes
    ``trust * |w| / (|g| + wd * |w|) * (g + wd * w)``, with 2-norms and the group's weight decay wd; SGD then applies
    its rate and momentum. Biases and the parameters of normalization (fewer than 2 dimensions) keep SGD's own step, as
    does a tensor whose weights or gradient are all 0. The gradients must be the means over the ranks by then. The rates
    that suit it are far above SGD's, as ``trust`` lowers them. On 1 rank nothing happens.

    Raises ``TypeError`` for another optimizer, ``ValueError`` for one with ``maximize`` or ``fused``, and at a step
    with a closure.
    """
    if not isinstance(optimizer, torch.optim.SGD):
        raise TypeError(f"lars() got {type(optimizer).__name__}; it takes a torch.optim.SGD")
    for option in ("maximize", "fused"):
        if any(group.get(option) for group in optimizer.param_groups):
            raise ValueError(f"lars() got an SGD with {option}=True, which it cannot work with; leave that out")
    if parts() == 1:
        return optimizer
    decays = _Exchanged("weight_decay")

    def before(optimizer: Any, args: Any, kwargs: Any) -> None:
        decays.restore()  # a step that raised never came to ``after``
        if any(callable(a) for a in (*args[1:], kwargs.get("closure"))):
            raise ValueError("lars() needs the gradients before the step; call step() without a closure")
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    _adapt(parameter, group["weight_decay"], trust)
            decays.exchange(group, 0.0)  # it is in the gradients

    keep_step_hooks(type(optimizer))
    optimizer.register_step_pre_hook(before)
    optimizer.register_step_post_hook(lambda *_: decays.restore())
    return optimizer


@torch.no_grad()
def _adapt(parameter: torch.Tensor, weight_decay: float, trust: float) -> None:
    """Put the weight decay into a gradient, and scale that of a layer's weights."""
    gradient = parameter.grad
    assert gradient is not None
    if gradient.is_sparse:
        gradient = parameter.grad = gradient.to_dense()
    if parameter.ndim < 2:
        gradient.add_(parameter, alpha=weight_decay)
        return
    size, slope = parameter.norm(), gradient.norm()
    ratio = torch.where((size > 0) & (slope > 0), trust * size / (slope + weight_decay * size), 1.0)
    gradient.add_(parameter, alpha=weight_decay).mul_(ratio)
