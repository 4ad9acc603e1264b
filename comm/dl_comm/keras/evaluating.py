"""Evaluations and predictions of a distributed model: each rank takes whole batches, and all get what one would."""

from __future__ import annotations

import functools
import inspect
import pickle
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from dl_comm import _core, rank0
from dl_comm.errors import CommError
from dl_comm.keras.backend import KERAS_3, is_in_graph
from dl_comm.keras.evaluation_shares import Kind, Share, kind_of
from dl_comm.keras.metrics import fold
from dl_comm.keras.staying_whole import has_own_steps, looks_at_batches, reason
from dl_comm.ranks import get_rank, is_worker, parts

_OF_FIT = ("x", "y", "sample_weight")


class Evaluating:
    """Shares what ``evaluate``, the validations of ``fit`` and ``predict`` of a model go through."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self._plain = {what: getattr(model, what) for what in ("evaluate", "predict")}
        self._own = {what: getattr(type(model), what) is not getattr(keras.Model, what) for what in self._plain}
        self._validation: dict[str, Any] | None = None  # of the fit that goes on
        self._seen = False  # by a callback of that fit, on any rank, batch by batch
        self._share: Share | None = None  # of the evaluation that goes on
        self._folded: dict[str, Any] = {}
        self._as_metrics: bool | None = None  # whether a test_step() of the script's own returns its metrics' results
        self._told: set[str] = set()
        self._iterators: list[Any] = []  # that were evaluated in part

    def install(self) -> None:
        """Have ``evaluate`` and ``predict`` of the model share."""
        for what, shared in (("evaluate", self._evaluate), ("predict", self._predict)):
            if not self._own[what]:
                setattr(self._model, what, functools.wraps(self._plain[what])(functools.partial(shared)))

    def begin_fit(self, options: dict[str, Any], callbacks: Sequence[Any]) -> None:
        """Keep the validation data of a ``fit``, which gets a stand-in: so each validation goes through a share.

        Collective. A ``fit()`` of the script's own keeps them.
        """
        self._validation = None
        asked = _core.allgather_bytes(bytes([looks_at_batches(list(callbacks))]))
        self._seen = any(any(flag) for flag in asked)
        data = options.get("validation_data")
        fits = type(self._model).fit is keras.Model.fit and not self._own["evaluate"]
        if data is None or not fits or parts() == 1 or is_in_graph():
            return
        given = data if isinstance(data, tuple) else (data,)
        self._validation = dict.fromkeys(_OF_FIT) | dict(zip(_OF_FIT, given, strict=False))
        options["validation_data"] = (np.zeros((1, 1), "float32"), np.zeros((1, 1), "float32"))

    def end_fit(self) -> None:
        """Forget its validation data."""
        self._validation, self._seen = None, False

    def _evaluate(self, *args: Any, **kwargs: Any) -> Any:
        options = bound(self._plain["evaluate"], args, kwargs)
        inside = options.get("_use_cached_eval_dataset") and self._validation is not None
        if inside:
            options |= self._validation or {}
            del options["_use_cached_eval_dataset"]
        kind = self._shared("evaluate", options)
        if kind is None:
            return self._whole(options)
        self._share = share = kind.make() if kind.make is not None else None
        assert share is not None
        given = share.options | {"return_dict": True}
        if not inside:  # there the first of the fit's callbacks folds
            given["callbacks"] = [_Fold(self), *_as_list(given.get("callbacks"))]
        given |= {"verbose": 0} if get_rank() > 0 else {}
        try:
            logs = self._plain["evaluate"](**given)
            share.end()
        finally:
            self._share = None
        logs = {name: self._folded.get(name, value) for name, value in logs.items()}
        return logs if options.get("return_dict") else in_order(self._model, logs)

    def fold(self, logs: dict[str, Any] | None) -> None:
        """Let metrics become those of all ranks' batches, and ``logs`` their results, where a share was evaluated."""
        if self._share is not None:
            self._folded = fold(self._model, self._share.count() > 0)
            if logs is not None:
                logs.update({name: value for name, value in self._folded.items() if name in logs})

    def _whole(self, options: dict[str, Any]) -> Any:
        if parts() == 1 or self._as_metrics is not None or not has_own_steps(self._model, "evaluate"):
            return self._plain["evaluate"](**options)
        logs = self._plain["evaluate"](**options | {"return_dict": True})
        # Where test_step() returns what the metrics are called, Keras has replaced it by the metrics' results.
        self._as_metrics = set(logs) == set(self._model.get_metrics_result())
        return logs if options.get("return_dict") else in_order(self._model, logs)

    def _predict(self, *args: Any, **kwargs: Any) -> Any:
        options = bound(self._plain["predict"], args, kwargs)
        kind = self._shared("predict", options)
        if kind is None:
            return self._plain["predict"](**options)
        share = kind.make() if kind.make is not None else None
        assert share is not None
        given, rows = share.options, _Rows()
        given["callbacks"] = [rows, *_as_list(given.get("callbacks"))]
        given |= {"verbose": 0} if get_rank() > 0 else {}
        made = self._plain["predict"](**given)
        share.end()
        leaves = _tree().flatten(made)
        count = share.count()
        sizes = [list(share.sizes)] * len(leaves) if share.sizes is not None else rows.sizes
        own = [(leaf, each) if count else (leaf[:0], []) for leaf, each in zip(leaves, sizes, strict=True)]
        return _tree().pack_sequence_as(made, _gathered(own))

    def _shared(self, what: str, options: dict[str, Any]) -> Kind | None:
        """Return what the ranks share of an evaluation; None where each goes through all of it. Collective."""
        alone = parts() == 1 or is_worker() or rank0.is_alone() or is_in_graph()
        if alone or options.get("_use_cached_eval_dataset"):
            return None
        kind = kind_of(options)
        if kind.name == "arrays" and kind.batches == 1:
            return None  # nothing to be shared: they may be local, as an agent's states
        why = reason(self._model, what) or kind.why or self._unknown(what, kind, options)
        asked = [
            pickle.loads(b)
            for b in _core.allgather_bytes(pickle.dumps((what, kind.name, kind.batches, kind.told, why)))
        ]
        for _, _, _, _, theirs in asked:
            why = why or theirs
        if not why and len(set(asked)) > 1:
            why = "the ranks go through different samples"
        if why:
            self._tell(f"each rank's {what}() goes through all batches: {why}")
            return None
        if kind.name == "generator" and kind.batches is not None and KERAS_3 and self._again(options["x"]):
            self._tell(
                f"{what}() goes on in its generator where the last one ended: Keras itself reads ahead, or begins with "
                "the first batches once more"
            )
        return kind

    def _again(self, batches: Any) -> bool:
        """Tell whether an iterator has been evaluated before, and note that it is."""
        before = any(batches is known for known in self._iterators)
        if not before:
            self._iterators.append(batches)
        return before

    def _tell(self, text: str) -> None:
        if text not in self._told:
            self._told.add(text)
            rank0.tell(text)

    def _unknown(self, what: str, kind: Kind, options: dict[str, Any]) -> str:
        """Return what else is against a share."""
        callbacks = options.get("callbacks")
        listed = isinstance(callbacks, keras.callbacks.CallbackList)  # the fit's
        if listed and self._validation is None:
            return "its callbacks are a CallbackList"
        if self._seen if listed else looks_at_batches(_as_list(callbacks)):
            return "a callback looks at each batch"
        if not getattr(self._model, "built", False):
            return "the model is built by its first batch"
        if what == "evaluate" and has_own_steps(self._model, what):
            if self._as_metrics is None:
                return "what its test_step() returns shows in the first evaluation"
            return "" if self._as_metrics else "its test_step() returns other numbers than its metrics'"
        executions = getattr(self._model, "steps_per_execution", None) or self._model._steps_per_execution
        if what == "predict" and kind.name != "arrays" and int(executions or 1) > 1:
            return "its batches are predicted several at a time"
        return ""


class _Fold(keras.callbacks.Callback):  # type: ignore[misc]
    """Has the metrics of all ranks seen by the callbacks after it."""

    def __init__(self, evaluating: Evaluating) -> None:
        super().__init__()
        self._evaluating = evaluating

    def on_test_end(self, logs: dict[str, Any] | None = None) -> None:
        """Fold them."""
        self._evaluating.fold(logs)


class _Rows(keras.callbacks.Callback):  # type: ignore[misc]
    """Counts the rows of each output in each batch."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: list[list[int]] = []

    def on_predict_batch_end(self, batch: int, logs: Any = None) -> None:
        """Count."""
        leaves = _tree().flatten(logs.get("outputs", logs))  # those of a dict are logs by themselves in Keras 3
        self.sizes = self.sizes or [[] for _ in leaves]
        for sizes, leaf in zip(self.sizes, leaves, strict=True):
            sizes.append(int(leaf.shape[0]) if getattr(leaf, "shape", None) else 1)  # a single number is one, too


def _tree() -> Any:
    if KERAS_3:
        return keras.tree
    import tensorflow as tf

    return tf.nest


def bound(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of a call of ``function`` by name."""
    names = [name for name in inspect.signature(function).parameters if name != "kwargs"]
    return dict(zip(names, args, strict=False)) | kwargs


def _as_list(callbacks: Any) -> list[Any]:
    if callbacks is None:
        return []
    return list(callbacks) if isinstance(callbacks, (list, tuple)) else [callbacks]


def in_order(model: Any, logs: dict[str, Any]) -> Any:
    """Return the results in the order of ``model.metrics_names``, as ``evaluate`` does."""
    if KERAS_3:
        return model._flatten_metrics_in_order(logs)
    names = model.metrics_names
    found = [logs[name] for name in names if name in logs] + [logs[name] for name in sorted(logs) if name not in names]
    return found[0] if len(found) == 1 else found


def _gathered(own: list[tuple[Any, list[int]]]) -> list[Any]:
    """Return the arrays of all ranks' batches in the serial order. Collective."""
    everyone = [pickle.loads(sent) for sent in _core.allgather_bytes(pickle.dumps(own, protocol=5))]
    return [_in_turn([theirs[i] for theirs in everyone]) for i in range(len(own))]


def _in_turn(shares: list[tuple[Any, list[int]]]) -> Any:
    filled = [(array, sizes) for array, sizes in shares if sizes]
    shapes = {array.shape[1:] for array, _ in filled}
    if len(shapes) > 1:
        raise CommError(
            f"predict() gave the ranks rows of the shapes {', '.join(map(str, sorted(shapes)))}",
            "Rows of one shape on all; or distribute(model, evaluate='whole').",
        )
    if not filled:
        return shares[0][0]
    found, at = [], [0] * len(shares)
    for turn in range(max(len(sizes) for _, sizes in shares)):
        for rank, (array, sizes) in enumerate(shares):
            if turn < len(sizes):
                found.append(array[at[rank] : at[rank] + sizes[turn]])
                at[rank] += sizes[turn]
    return np.concatenate(found)
