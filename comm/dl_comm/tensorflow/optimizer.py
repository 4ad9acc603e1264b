"""An optimizer that averages its gradients first, of any generation."""

from __future__ import annotations

from typing import Any, TypeVar
from weakref import WeakSet

import tensorflow as tf

from dl_comm.overflow import averaged_outside
from dl_comm.ranks import get_nranks
from dl_comm.tensorflow.averaging import gradients

Opt = TypeVar("Opt")


def DistributedOptimizer(opt: Opt, team: int = 0) -> Opt:  # noqa: N802
    """Return ``opt`` itself, changed so that it averages gradients over the ranks.

    A ``tf.compat.v1`` optimizer averages in ``compute_gradients`` (so ``minimize`` works, and clipping between
    ``compute_gradients`` and ``apply_gradients`` sees the means); gradients that come from elsewhere are averaged in
    ``apply_gradients``. A Keras optimizer averages where it applies. What hands the loss of a graph to SciPy
    (``ScipyOptimizerInterface`` of TensorFlow 1's ``contrib.opt``, or a copy of it) hands on the means of the loss and
    of its gradient: all ranks make the same search. The class stays, so saved models know nothing of dl_comm.
    Broadcast the variables once they exist.
    """
    if get_nranks() == 1 or hasattr(opt, "_dl_comm_averages"):
        return opt
    if isinstance(opt, tf.compat.v1.train.Optimizer):
        _average_v1(opt, team)
    elif hasattr(opt, "_packed_loss_grad"):
        _average_external(opt, team)
    else:
        average_in_keras(opt, team)
    return opt


def _average_v1(opt: Any, team: int) -> None:
    compute, apply = opt.compute_gradients, opt.apply_gradients
    averaged: WeakSet[Any] = WeakSet()  # graphs whose gradients came from compute_gradients

    def compute_gradients(*args: Any, **kwargs: Any) -> Any:
        pairs = compute(*args, **kwargs)
        means = gradients([g for g, _ in pairs], team)
        averaged.add(tf.compat.v1.get_default_graph())
        return [(g, v) for g, (_, v) in zip(means, pairs, strict=True)]

    def apply_gradients(grads_and_vars: Any, *args: Any, **kwargs: Any) -> Any:
        pairs = list(grads_and_vars)
        if tf.compat.v1.get_default_graph() not in averaged:
            means = gradients([g for g, _ in pairs], team)
            pairs = [(g, v) for g, (_, v) in zip(means, pairs, strict=True)]
        return apply(pairs, *args, **kwargs)

    opt.compute_gradients, opt.apply_gradients = compute_gradients, apply_gradients
    opt._dl_comm_averages = True


def _average_external(opt: Any, team: int) -> None:
    """Change what hands a graph's loss to SciPy; constraints are taken to be of the weights, the same on all ranks."""
    loss, minimize = opt._loss, opt.minimize
    opt._loss, opt._packed_loss_grad = gradients([loss, opt._packed_loss_grad], team)

    def averaged_minimize(
        session: Any = None, feed_dict: Any = None, fetches: Any = None, *args: Any, **kwargs: Any
    ) -> Any:
        fetches = [opt._loss if fetched is loss else fetched for fetched in fetches or []]  # for a callback that shows
        return minimize(session, feed_dict, fetches, *args, **kwargs)

    opt.minimize = averaged_minimize
    opt._dl_comm_averages = True


def average_in_keras(opt: Any, team: int = 0) -> None:
    """Change a Keras optimizer (2.15, new or legacy, or 3) of the TensorFlow backend so that it averages first."""
    if hasattr(opt, "apply") and hasattr(opt, "stateless_apply"):  # Keras 3
        apply = opt.apply

        def averaged_apply(grads: Any, trainable_variables: Any = None) -> Any:
            return apply(list(grads) if averaged_outside(opt) else gradients(grads, team), trainable_variables)

        opt.apply = averaged_apply
    else:
        apply_gradients = opt.apply_gradients

        def averaged_apply_gradients(grads_and_vars: Any, *args: Any, **kwargs: Any) -> Any:
            pairs = list(grads_and_vars)
            grads = [g for g, _ in pairs]
            means = grads if averaged_outside(opt) else gradients(grads, team)
            return apply_gradients([(g, v) for g, (_, v) in zip(means, pairs, strict=True)], *args, **kwargs)

        opt.apply_gradients = averaged_apply_gradients
    opt._dl_comm_averages = True
