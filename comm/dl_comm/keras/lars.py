"""Layers with rates of their own, for Keras 3 on any backend and for Keras 2.15."""

from __future__ import annotations

from typing import Any, TypeVar

import keras

from dl_comm.ranks import parts

Opt = TypeVar("Opt")


def lars(opt: Opt, trust: float = 0.001) -> Opt:
    """Give every layer a rate of its own, as large as its weights allow; return the optimizer, an ``SGD`` of Keras.

    LARS (You et al., arXiv 1708.03888, algorithm 1): before SGD applies its rate and momentum, the gradient g of a
    tensor of weights w becomes ``trust * |w| / |g| * g``, with 2-norms. A weight decay belongs into the loss (a
    regularizer), from where it comes in g. Biases and the parameters of normalization (fewer than 2 dimensions) keep
    SGD's own step, as does a tensor whose weights or gradient are all 0. Call it before ``distribute`` or
    ``DistributedOptimizer``, so that g is the mean over the ranks. The rates that suit it are far above SGD's, as
    ``trust`` lowers them. On 1 rank nothing happens.

    Raises ``TypeError`` for another optimizer; ``ValueError`` for one that clips or has a ``weight_decay`` of its own
    (both come after LARS), or that averages already.
    """
    inner: Any = opt
    while hasattr(inner, "inner_optimizer"):  # of a LossScaleOptimizer
        inner = inner.inner_optimizer
    if not isinstance(inner, _sgd()):
        raise TypeError(f"lars() got {type(inner).__name__}; it takes an SGD of Keras")
    for option in ("clipnorm", "clipvalue", "global_clipnorm", "weight_decay"):
        if getattr(inner, option, None):
            raise ValueError(f"lars() got an SGD with {option}={getattr(inner, option)}, which would act after it")
    if parts() == 1 or hasattr(inner, "_dl_comm_lars"):
        return opt
    if hasattr(inner, "_dl_comm_averages"):
        raise ValueError("lars() got an optimizer that averages already: call it before distribute()")
    if hasattr(inner, "stateless_apply"):  # Keras 3
        apply = inner.apply

        def adapted_apply(grads: Any, trainable_variables: Any = None) -> Any:
            weights = inner._trainable_variables if trainable_variables is None else trainable_variables
            pairs = zip(grads, weights, strict=True)
            return apply([_adapted(g, w, keras.ops, trust) for g, w in pairs], trainable_variables)

        inner.apply = adapted_apply
    else:
        import tensorflow as tf

        apply_gradients = inner.apply_gradients

        def adapted_apply_gradients(grads_and_vars: Any, *args: Any, **kwargs: Any) -> Any:
            pairs = [(_adapted(g, w, tf, trust), w) for g, w in grads_and_vars]
            return apply_gradients(pairs, *args, **kwargs)

        inner.apply_gradients = adapted_apply_gradients
    inner._dl_comm_lars = True
    return opt


def _sgd() -> tuple[Any, ...]:
    legacy = getattr(keras.optimizers, "legacy", None)
    return tuple(kind for kind in (keras.optimizers.SGD, getattr(legacy, "SGD", None)) if kind is not None)


def _adapted(gradient: Any, weights: Any, ops: Any, trust: float) -> Any:
    """Return the scaled gradient of a layer's weights; ``ops`` holds the functions norm() and where()."""
    if gradient is None or len(weights.shape) < 2:
        return gradient
    gradient, weights = ops.convert_to_tensor(gradient), ops.convert_to_tensor(weights)
    size, slope = ops.norm(weights), ops.norm(gradient)
    one = ops.ones_like(slope)
    known = (size > 0) & (slope > 0)
    return gradient * ops.where(known, trust * size / ops.where(known, slope, one), one)
