"""Warm-up, decay over the epochs, and layers with rates of their own, for the optimizers of Keras in loops by hand."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar

import tensorflow as tf

from dl_comm.ranks import parts
from dl_comm.rate import decay_factor

Opt = TypeVar("Opt")


def warmup(optimizer: Any, steps: int) -> None:
    """Ramp the learning rate linearly from lr / n to lr over the first ``steps`` steps of an optimizer of Keras.

    Step k (from 0, by ``optimizer.iterations``) uses ``lr * (1/n + (1 - 1/n) * k / steps)`` (the gradual warm-up of
    Goyal et al., arXiv 1706.02677, section 2.2), eagerly and in a ``tf.function``. The reduced rate is put in before
    each step and taken out after it. Call it before the first step. On 1 rank nothing happens.

    Raises ``TypeError`` for an optimizer of TensorFlow 1, or one whose rate is a schedule; ``ValueError`` for negative
    ``steps``.
    """
    if steps < 0:
        raise ValueError(f"warmup() got {steps} steps; give 0 or more")
    inner = _of_keras(optimizer, "warmup")
    n = parts()
    if n == 1 or steps == 0:
        return
    name = "apply" if hasattr(inner, "stateless_apply") else "apply_gradients"  # Keras 3, Keras 2.15
    plain = getattr(inner, name)

    def warm(*args: Any, **kwargs: Any) -> Any:
        rate = inner.learning_rate
        full = tf.convert_to_tensor(rate)
        done = tf.minimum(tf.cast(tf.convert_to_tensor(inner.iterations), full.dtype) / steps, 1)
        rate.assign(full * (1 / n + (1 - 1 / n) * done))
        applied = plain(*args, **kwargs)
        rate.assign(full)
        return applied

    setattr(inner, name, warm)


def decay(optimizer: Any, epoch: int, at: Iterable[int], factor: float = 0.1) -> None:
    """Multiply the learning rate of an optimizer of Keras by ``factor`` in each of the epochs ``at``, from 0.

    Call it first in every epoch. With ``at=(30, 60, 80)`` this is the schedule of Goyal et al. (arXiv 1706.02677,
    section 5.1). A run that is resumed is taken to have restored the optimizer, and its rate with it. On 1 rank nothing
    happens: the script keeps its own rate. Raises ``TypeError`` for an optimizer of TensorFlow 1, or one whose rate is
    a schedule; ``ValueError`` for a factor outside 0 to 1.
    """
    at = tuple(at)
    decay_factor(epoch, at, factor)
    inner = _of_keras(optimizer, "decay")
    if parts() > 1 and epoch in at:
        inner.learning_rate.assign(inner.learning_rate * factor)


def lars(opt: Opt, trust: float = 0.001) -> Opt:
    """Give every layer a rate of its own: ``dl_comm.keras.lars``, for an ``SGD`` of Keras."""
    from dl_comm.keras.lars import lars as of_keras

    return of_keras(opt, trust)


def _of_keras(optimizer: Any, caller: str) -> Any:
    """Return the optimizer that holds the rate; raises TypeError where that is no number to be set."""
    while hasattr(optimizer, "inner_optimizer"):  # of a LossScaleOptimizer
        optimizer = optimizer.inner_optimizer
    if not hasattr(optimizer, "iterations"):
        raise TypeError(f"{caller}() got {type(optimizer).__name__}; it takes an optimizer of Keras")
    if not hasattr(getattr(optimizer, "_learning_rate", optimizer.learning_rate), "assign"):
        raise TypeError(f"{caller}() got an optimizer whose rate is a schedule: put it into the schedule")
    return optimizer
