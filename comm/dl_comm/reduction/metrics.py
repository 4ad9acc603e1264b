"""Metric objects of Keras, whose variables are sums over the samples: totals, counts, confusion tables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np


def is_metric(value: Any) -> bool:
    """Tell whether ``value`` is a metric object of Keras, or a dict or list of such alone."""
    if isinstance(value, (Mapping, list, tuple)):
        held = _held(value)
        return bool(held) and all(map(is_metric, held))
    return all(hasattr(value, name) for name in ("update_state", "result", "variables"))


def _held(value: Any) -> list[Any]:
    return list(value.values()) if isinstance(value, Mapping) else list(value)


def state_of(metric: Any) -> list[Any]:
    """Return what a metric's variables hold, as arrays; of several metrics one list each."""
    if isinstance(metric, (Mapping, list, tuple)):
        return [state_of(each) for each in _held(metric)]
    return [_value(variable) for variable in metric.variables]


def _value(variable: Any) -> Any:
    """Return what ``variable`` holds as an array, or as a tensor inside a ``tf.function``."""
    try:
        return np.array(variable)
    except NotImplementedError:
        return variable.value() if callable(variable.value) else variable.value


def put_state(metric: Any, state: list[Any]) -> Any:
    """Set the variables of a metric, or of several; return it."""
    if isinstance(metric, (Mapping, list, tuple)):
        for each, own in zip(_held(metric), state, strict=True):
            put_state(each, own)
        return metric
    for variable, value in zip(metric.variables, state, strict=True):
        variable.assign(value if hasattr(value, "graph") else np.asarray(value).astype(np.array(variable).dtype))
    return metric
