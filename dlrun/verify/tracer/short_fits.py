"""Calls of ``fit`` with a few batches of each rank, and few epochs: so a script comes to what it shows behind them.

And with other samples in each batch, by which numbers change that do not follow from all samples alone.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from dlrun.verify.tracer.recorder import UNCUT, Orders

SAMPLES = ("x", "y", "sample_weight")
OTHERWISE = ("validation_split", "steps_per_epoch", "validation_steps")  # lengths of the script's own


class ShortFits:
    """Wraps the functions by which a script fits; the outermost call is cut, so that ranks share what is left."""

    def __init__(self, orders: Orders) -> None:
        self._orders, self._depth = orders, 0
        self._few = orders.frozen and orders.few not in (0, UNCUT)

    def wrapped(self, fit: Callable[..., Any], skip: int = 0) -> Callable[..., Any]:
        """Return ``fit``, cut; its arguments begin behind ``skip`` others, such as ``self``."""
        names = list(inspect.signature(fit).parameters)[skip:]

        @functools.wraps(fit)
        def fitted(*args: Any, **kwargs: Any) -> Any:
            options = dict(zip(names, args[skip:], strict=False)) | kwargs
            self._depth += 1
            try:
                wanted = self._few or self._orders.turn
                if self._depth > 1 or not wanted or any(options.get(name) for name in OTHERWISE):
                    return fit(*args, **kwargs)
                options = self._cut(options) if self._few else options
                return fit(*args[:skip], **(_mixed(options, self._orders.turn) if self._orders.turn else options))
            finally:
                self._depth -= 1

        return fitted

    def _cut(self, options: dict[str, Any]) -> dict[str, Any]:
        orders = self._orders
        batches, batch = orders.few * orders.shares, options.get("batch_size") or 32  # Keras's default
        given = {name: options[name] for name in SAMPLES if options.get(name) is not None}
        there = _batches(given["x"], batch) if "x" in given else batches
        batches = min(batches, there // orders.shares * orders.shares) or batches  # which ranks share evenly
        cut = {name: _first(part, batches, batches * batch) for name, part in given.items()}
        if any(part is None for part in cut.values()):
            return options
        begins, epochs = options.get("initial_epoch") or 0, max(1, orders.steps * orders.stride // batches)
        tested = options.get("validation_data")
        if tested is not None:
            size = options.get("validation_batch_size") or batch
            rows = (batches + 1) * size + _length(tested) % size
            parts = [_first(part, batches + 1, rows) for part in (tested if isinstance(tested, tuple) else [tested])]
            whole = any(part is None for part in parts)
            tested = tested if whole else tuple(parts) if isinstance(tested, tuple) else parts[0]
        return options | cut | {"epochs": min(options.get("epochs") or 1, begins + epochs), "validation_data": tested}


def _mixed(options: dict[str, Any], turn: int) -> dict[str, Any]:
    """Return arguments whose arrays have their rows in another order, all in the same; as they are without arrays."""
    given = {name: options[name] for name in SAMPLES if options.get(name) is not None}
    parts = tf.nest.flatten(given)
    if not all(isinstance(part, (np.ndarray, tf.Tensor)) and part.ndim for part in parts):
        return options
    order = np.argsort(np.sin(np.arange(_length(given)) * (turn + 1)), kind="stable")  # drawn from no generator
    mixed: dict[str, Any] = tf.nest.map_structure(lambda part: tf.gather(part, order).numpy(), given)
    return options | mixed


def _first(data: Any, batches: int, rows: int) -> Any:
    """Return the first batches of a data set, or the first rows of arrays; None of anything else."""
    if isinstance(data, tf.data.Dataset):
        return data.take(batches)
    parts = tf.nest.flatten(data)
    if not parts or not all(hasattr(part, "shape") and len(part.shape) for part in parts):
        return None
    return tf.nest.map_structure(lambda part: part[:rows], data)


def _batches(data: Any, size: int) -> int:
    """Return how many whole batches there are, of arrays of so many samples each; of a data set, how many it has."""
    if isinstance(data, tf.data.Dataset):
        known = int(data.cardinality())
        return known if known > 0 else UNCUT
    return _length(data) // size


def _length(data: Any) -> int:
    first = next((part for part in tf.nest.flatten(data) if hasattr(part, "shape") and len(part.shape)), None)
    return 0 if first is None else len(first)
