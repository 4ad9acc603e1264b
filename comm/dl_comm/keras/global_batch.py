"""``distribute(model, batch="global")``: each rank trains on a part of every batch of the serial script's."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import keras
import numpy as np

from dl_comm.keras.backend import backend, read, stateful_layers
from dl_comm.keras.folding import parts_of
from dl_comm.parts import bounds, weighing
from dl_comm.rank0 import tell
from dl_comm.ranks import get_rank, parts

_MEANS = ("sum_over_batch_size", "mean", "auto")  # over the samples of a batch


def share_batches(model: Any, mean_step: bool = False) -> None:
    """Let each training step of ``model`` take this rank's part of its batch, weighed by its samples.

    ``mean_step`` tells of a ``train_step`` of the script's own that its losses are means over the samples.
    Raises ``ValueError`` where no weights make the ranks' gradients that of the whole batch.
    """
    if hasattr(model.train_step, "_dl_comm"):
        return
    refuse(model, mean_step)
    plain = model.train_step
    steps: dict[str, Any] = {"tensorflow": _on_tensorflow, "torch": _on_torch, "jax": _on_jax}
    model.train_step = _marked(functools.partial(steps[backend()], model, plain))


def _marked(step: Any) -> Any:
    if backend() == "tensorflow":
        import tensorflow as tf

        partial = step
        step = tf.autograph.experimental.do_not_convert(lambda data: partial(data))
    elif backend() == "jax":
        partial_of_jax = step

        def step(state: Any, data: Any) -> Any:
            return partial_of_jax(state, data)

    step._dl_comm = True
    return step


def refuse(model: Any, mean_step: bool = False) -> None:
    """Raise ``ValueError`` where a model's loss of a batch is no mean over its samples, or its states go on."""
    why = ""
    if type(model).train_step is not keras.Model.train_step and not mean_step:
        why = "it has a train_step() of its own, whose loss may be anything"
    elif layers := stateful_layers(model):
        why = f"{layers[0].name} hands the states of a batch's rows on"
    for loss in _losses(getattr(model, "loss", None)):
        if str(getattr(loss, "reduction", "auto")).lower() not in _MEANS:
            why = f"{type(loss).__name__} has the reduction {loss.reduction!r}, which is no mean over the samples"
    if why:
        raise ValueError(f"distribute(batch='global') cannot divide the batches of {model.name}: {why}")
    if any(getattr(layer, "mask_zero", False) or isinstance(layer, keras.layers.Masking) for layer in _flat(model)):
        tell("a loss over masked entries is a mean over those of a rank's part: take it for approximate")
    if any(isinstance(layer, keras.layers.BatchNormalization) for layer in _flat(model)):
        tell("BatchNormalization takes its statistics from a rank's part of the batch")


def _flat(model: Any) -> list[Any]:
    return list(model._flatten_layers(include_self=False))


def _losses(loss: Any) -> list[Any]:
    if isinstance(loss, dict):
        return [each for part in loss.values() for each in _losses(part)]
    if isinstance(loss, (list, tuple)):
        return [each for part in loss for each in _losses(part)]
    return [loss] if isinstance(loss, keras.losses.Loss) else []


def _metric_variables(model: Any) -> list[Any]:
    metrics = [m for m in parts_of(model.metrics) if isinstance(m, keras.metrics.Metric)]
    return list({id(v): v for metric in metrics for v in metric.variables}.values())


@contextmanager
def _as_part(model: Any, weight: Any) -> Iterator[None]:
    """Let gradients count ``weight`` times, and what a ``train_step`` of the script's own tells its means of a batch.

    That is one number, as its loss; numbers of samples count one each.
    """
    own = type(model).train_step is not keras.Model.train_step
    means = [m for m in parts_of(model.metrics) if type(m) is keras.metrics.Mean] if own else []
    for mean in means:
        mean.update_state = functools.partial(_update, mean.update_state, weight)
    try:
        with weighing(weight):
            yield
    finally:
        for mean in means:
            mean.update_state = mean.update_state.args[0]


def _update(update_state: Any, weight: Any, values: Any, sample_weight: Any = None) -> Any:
    of_batch = not hasattr(values, "shape") or len(values.shape) == 0
    return update_state(values, sample_weight=weight if of_batch and sample_weight is None else sample_weight)


def _on_tensorflow(model: Any, plain: Any, data: Any) -> Any:
    import tensorflow as tf

    if parts() == 1:
        return plain(data)
    rank, n = get_rank(), parts()
    leaves = tf.nest.flatten(data)
    if any(isinstance(leaf, tf.SparseTensor) for leaf in leaves):
        raise ValueError("distribute(batch='global') cannot divide sparse tensors: keep a rank's batch")

    def own(leaf: Any) -> Any:
        """Return this rank's rows; batches that are zipped have lengths of their own."""
        length, begin, end = counted(leaf)
        first = tf.minimum(begin, length - 1)
        return leaf[first : tf.maximum(end, first + 1)]

    def counted(leaf: Any) -> Any:
        length = leaf.nrows(tf.int32) if isinstance(leaf, tf.RaggedTensor) else tf.shape(leaf)[0]
        return length, *bounds(length, rank, n)

    length, begin, end = counted(leaves[0])
    empty = tf.equal(begin, end)  # then it goes through one sample that does not count
    part = tf.nest.map_structure(lambda leaf: leaf if leaf is None else own(leaf), data)
    weight = tf.cast(n * (end - begin), tf.float64) / tf.cast(length, tf.float64)
    before = {id(v): tf.identity(v) for v in _metric_variables(model)}
    with _as_part(model, weight):
        logs = plain(part)
    for variable in _metric_variables(model):
        value = tf.convert_to_tensor(variable)
        variable.assign(tf.where(empty, before.get(id(variable), tf.zeros_like(value)), value))
    return logs


def _rows(data: Any) -> tuple[int, int, int]:
    """Return how many samples a batch has whose shapes are known, and where this rank's part begins and ends."""
    length = int(keras.tree.flatten(data)[0].shape[0])
    return length, *bounds(length, get_rank(), parts())


def _part(data: Any) -> Any:
    return keras.tree.map_structure(lambda leaf: leaf if leaf is None else _own(leaf), data)


def _own(leaf: Any) -> Any:
    """Return this rank's rows; batches that are zipped have lengths of their own."""
    length, begin, end = _rows(leaf)
    first = min(begin, length - 1)
    return leaf[first : max(end, first + 1)]


def _on_torch(model: Any, plain: Any, data: Any) -> Any:
    if parts() == 1:
        return plain(data)
    length, begin, end = _rows(data)
    kept = [(v, read(v)) for v in _metric_variables(model)] if begin == end else []
    with _as_part(model, parts() * (end - begin) / length):
        logs = plain(_part(data))
    if begin == end:
        before = {id(v): value for v, value in kept}
        for variable in _metric_variables(model):
            variable.assign(before.get(id(variable), np.zeros(variable.shape)))
    return logs


def _on_jax(model: Any, plain: Any, state: Any, data: Any) -> Any:
    if parts() == 1:
        return plain(state, data)
    length, begin, end = _rows(data)
    with weighing(parts() * (end - begin) / length):
        logs, after = plain(state, _part(data))
    return (logs, (*after[:3], state[3])) if begin == end else (logs, after)
