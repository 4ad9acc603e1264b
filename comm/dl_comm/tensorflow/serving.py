"""Models that load where dl_comm is not installed."""

from __future__ import annotations

from typing import Any

import tensorflow as tf


def serving_module(module: Any, **functions: Any) -> Any:
    """Return a ``tf.Module`` with the variables of ``module`` and these functions only, for ``tf.saved_model.save``.

    A module that also holds its training step as a ``tf.function`` would save it, and with it the op that averages
    gradients, which a process without dl_comm cannot load. ``serving_module(model, serve=model.serve)``: each
    function is a ``tf.function`` with an input signature, and must not communicate.
    """
    exported = tf.Module()
    exported.served_variables = list(module.variables)
    for name, function in functions.items():
        setattr(exported, name, function)
    return exported
