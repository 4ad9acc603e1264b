"""Metrics of all ranks: what Keras's metrics keep is added up."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import keras
import numpy as np

from dl_comm import _core
from dl_comm.keras.backend import KERAS_3, is_in_graph, read
from dl_comm.keras.callbacks import synchronize
from dl_comm.keras.folding import WORDS, folds, parts_of
from dl_comm.ranks import parts
from dl_comm.reduction.exchange import reduced
from dl_comm.reduction.leaves import Tensors


def folded_results(model: Any) -> dict[str, tuple[float, float]]:
    """Return what the model's metrics are on this rank and over all ranks' samples, by name; their variables stay.

    Those of which nobody knows how they come together (see ``folds``) give this rank's result. Collective.
    """
    synchronize(model)
    pairs = _pairs(model)
    own, local = _values([variable for variable, _ in pairs]), _results(model)
    _write(pairs, _over_ranks(pairs, own))
    try:
        found = _results(model)
    finally:
        _write(pairs, own)
    return {name: (float(local[name]), float(value)) for name, value in found.items() if np.ndim(value) == 0}


def folded_logs(logs: dict[str, Any], results: dict[str, tuple[float, float]]) -> dict[str, float]:
    """Return those of ``logs`` that are results of metrics, as they are over all ranks' samples. Collective.

    A ``train_step()`` may return numbers of its own under a metric's name: ``loss``, of the last batch. On PyTorch the
    number may be a view of the metric's variable, in which a validation has counted since.
    """
    known = [(name, own) for name, (own, _) in results.items() if np.ndim(logs.get(name, ())) == 0 and name in logs]
    names = [
        name
        for name, own in known
        if np.isclose(float(logs[name]), own, 1e-4, 1e-6, equal_nan=True) or logs.get(f"val_{name}") == logs[name]
    ]
    theirs = [set(text.decode().split("\n")) for text in _core.allgather_bytes("\n".join(names).encode())]
    return {name: results[name][1] for name in names if all(name in found for found in theirs)}


def fold(model: Any, counts: bool = True) -> dict[str, Any]:
    """Make the model's metrics those of all ranks' batches, and return their results by name. Collective.

    What a rank keeps that did not see a batch of its own does not count.
    """
    synchronize(model)
    pairs = _pairs(model)
    if not counts:
        model.reset_metrics()
    _write(pairs, _over_ranks(pairs, _values([variable for variable, _ in pairs])))
    return _results(model)


def _pairs(model: Any) -> list[tuple[Any, str]]:
    """Return the variables of the model's metrics, each once, and how they are folded; of known ones alone."""
    found = [
        folds(metric) for metric in parts_of(getattr(model, "metrics", ())) if isinstance(metric, keras.metrics.Metric)
    ]
    return list({id(variable): (variable, word) for pairs in found for variable, word in pairs or ()}.values())


def unfolded(model: Any) -> list[str]:
    """Return what the logs call the model's metrics of which nobody knows how they come together."""
    metrics = [m for m in parts_of(getattr(model, "metrics", ())) if isinstance(m, keras.metrics.Metric)]
    unknown = [metric for metric in metrics if folds(metric) is None]
    if is_in_graph():
        return [metric.name for metric in unknown]
    return [name for metric in unknown for name, _ in _flat({metric.name: metric.result()})]


def _values(variables: list[Any]) -> list[Any]:
    if is_in_graph():
        return list(map(np.array, keras.backend.batch_get_value(variables)))
    return [read(variable) for variable in variables]


def _over_ranks(pairs: list[tuple[Any, str]], own: list[Any]) -> list[Any]:
    made = list(own)
    for word in WORDS if parts() > 1 else ():
        at = [i for i, (_, other) in enumerate(pairs) if other == word]
        for i, value in zip(at, reduced([own[i] for i in at], word, Tensors()) if at else (), strict=True):
            made[i] = value.astype(variable_dtype(pairs[i][0]))
    return made


def _results(model: Any) -> dict[str, Any]:
    """Return the results of the metrics by name: numbers, as those of PyTorch may be views of the variables."""
    if is_in_graph():
        metrics = [metric for metric in parts_of(model.metrics) if folds(metric) is not None]
        return {metric.name: float(keras.backend.get_value(metric.result())) for metric in metrics}
    return {name: _number(value) for name, value in _flat(model.get_metrics_result())}


def _flat(results: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield what Keras's logs have of the results: those of a metric with several stand among the others."""
    for name, value in results.items():
        if isinstance(value, dict):
            yield from _flat(value)
        else:
            yield name, value


def _number(value: Any) -> Any:
    """Return a metric's result as Keras's logs have it: one number as Python's, others as an array."""
    array = np.array(value if isinstance(value, (int, float)) else read(value) if hasattr(value, "numpy") else value)
    if array.ndim:
        return array
    return float(array) if KERAS_3 else array.item()


def _write(pairs: list[tuple[Any, str]], values: Iterable[Any]) -> None:
    written = [(variable, value) for (variable, _), value in zip(pairs, values, strict=True)]
    if is_in_graph():
        keras.backend.batch_set_value(written)
        return
    for variable, value in written:
        variable.assign(value)


def variable_dtype(variable: Any) -> str:
    """Return the name of a variable's dtype."""
    return str(getattr(variable.dtype, "name", variable.dtype))
