"""What happens around a fit: one start for all, metrics of all, warm-up."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np

from dl_comm import CommError, _core
from dl_comm.keras.backend import broadcast, exchange, own_noise
from dl_comm.ranks import get_nranks, get_rank, parts
from dl_comm.rate import lr_scale, warm_factor


class Broadcast(keras.callbacks.Callback):  # type: ignore[misc]
    """When training begins, all ranks take rank ``root``'s weights and optimizer state."""

    def __init__(self, root: int = 0) -> None:
        super().__init__()
        self._root = root

    def on_train_begin(self, logs: Any = None) -> None:
        """Broadcast."""
        if get_nranks() == 1:
            return
        optimizer = getattr(self.model, "optimizer", None)
        if optimizer is not None and hasattr(optimizer, "build") and not getattr(optimizer, "built", False):
            optimizer.build(self.model.trainable_variables)
        broadcast(self.model, self._root)
        own_noise(self.model)


class AverageMetrics(keras.callbacks.Callback):  # type: ignore[misc]
    """At the end of an epoch its metrics become the means over the ranks, for all callbacks that come after this one.

    So early stopping, plateaus and best checkpoints decide alike on all ranks. Before a validation and at the end of
    an epoch the statistics of BatchNormalization layers are averaged, too: all ranks evaluate and save one model.
    """

    def on_test_begin(self, logs: Any = None) -> None:
        """Average BatchNormalization's statistics."""
        self._average_statistics()

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Average the logs, in place."""
        if get_nranks() == 1:
            return
        self._average_statistics()
        logs = logs if logs is not None else {}
        names = sorted(name for name, value in logs.items() if np.ndim(value) == 0)
        theirs = [b.decode() for b in _core.allgather_bytes(" ".join(names).encode())]
        if len(set(theirs)) > 1:
            other = next(r for r, text in enumerate(theirs) if text != theirs[0])
            raise CommError(
                f"epoch {epoch} has the metrics {theirs[0]!r} on rank 0 and {theirs[other]!r} on rank {other}",
                "Compile the model with the same metrics on every rank.",
            )
        values = np.array([float(logs[name]) for name in names], dtype=np.float64)
        _core.allreduce([(values.ctypes.data, values.size, "float64")], "mean", 0, ["metrics of an epoch"])
        logs.update(zip(names, values.tolist(), strict=True))

    def _average_statistics(self) -> None:
        if get_nranks() > 1:
            synchronize(self.model)
            layers = [layer for layer in _layers(self.model) if isinstance(layer, keras.layers.BatchNormalization)]
            exchange([v for layer in layers for v in layer.non_trainable_variables if "moving" in v.name], None)


def _layers(layer: Any) -> list[Any]:
    """Return a layer and all layers in it, each once, in a fixed order."""
    found, queue = {}, [layer]
    while queue:
        one = queue.pop(0)
        if id(one) not in found:
            found[id(one)] = one
            queue += list(one._flatten_layers(include_self=False, recursive=False))
    return list(found.values())


class ScaleRate(keras.callbacks.Callback):  # type: ignore[misc]
    """Multiply the learning rate as ``lr_scale`` does, once, when training first begins.

    For a rate that the script does not give by itself, as with ``optimizer="adam"``; put it before ``WarmUp``. On one
    rank nothing happens. Raises ``TypeError`` when the optimizer's rate is a schedule, ``ValueError`` for a rule that
    ``lr_scale`` does not know.
    """

    def __init__(self, rule: str = "linear") -> None:
        super().__init__()
        self._factor, self._done = lr_scale(1.0, rule), False

    def on_train_begin(self, logs: Any = None) -> None:
        """Scale the rate, the first time."""
        if parts() > 1 and not self._done:
            refuse_schedules(self.model.optimizer, "ScaleRate() cannot scale", "scale its rates with lr_scale")
            self._done = True
            set_rate(self.model.optimizer, rate_of(self.model.optimizer) * self._factor)


class WarmUp(keras.callbacks.Callback):  # type: ignore[misc]
    """Ramp the learning rate linearly from lr / n to lr over the first ``steps`` batches (arXiv 1706.02677, 2.2).

    The reduced rate is put in before a batch and taken out after it, so callbacks that set or log the rate see and
    set the full one. On one rank nothing happens. Raises ``TypeError`` when the optimizer's rate is a schedule.
    """

    def __init__(self, steps: int) -> None:
        super().__init__()
        if steps < 0:
            raise ValueError(f"WarmUp() got {steps} steps; give 0 or more")
        self._steps, self._done = steps, 0
        self._full: float | None = None

    def on_train_begin(self, logs: Any = None) -> None:
        """Look whether the rate can be set."""
        if parts() > 1:
            refuse_schedules(self.model.optimizer, "WarmUp() cannot ramp", "put the warm-up into the schedule")

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Put the reduced rate in."""
        if parts() > 1 and self._done < self._steps:
            synchronize(self.model)
            self._full = rate_of(self.model.optimizer)
            set_rate(self.model.optimizer, self._full * warm_factor(self._done, self._steps))

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Take it out."""
        if self._full is not None:
            synchronize(self.model)
            set_rate(self.model.optimizer, self._full)
            self._full = None
            self._done += 1


def refuse_schedules(optimizer: Any, what: str, remedy: str) -> None:
    """Raise ``TypeError`` if the optimizer takes its rate from a schedule, which nobody can set."""
    rate = getattr(optimizer, "_learning_rate", optimizer.learning_rate)
    if isinstance(rate, keras.optimizers.schedules.LearningRateSchedule):
        raise TypeError(f"{what} a {type(rate).__name__}: give the optimizer a number, or {remedy}")


def rate_of(optimizer: Any) -> float:
    """Return the optimizer's learning rate."""
    rate = optimizer.learning_rate
    return float(rate.numpy() if hasattr(rate, "numpy") else rate)


def set_rate(optimizer: Any, rate: float) -> None:
    """Set the optimizer's learning rate."""
    if hasattr(optimizer.learning_rate, "assign"):
        optimizer.learning_rate.assign(rate)
    else:
        optimizer.learning_rate = rate


def synchronize(model: Any) -> None:
    """Bring what the training step on jax has computed into the model's and optimizer's variables, for all to see."""
    if hasattr(model, "jax_state_sync"):
        model.jax_state_sync()


# Callbacks of Keras that write files: they run on rank 0 alone.
WRITERS = ("ModelCheckpoint", "TensorBoard", "CSVLogger", "RemoteMonitor")


def on_this_rank(callbacks: list[Any]) -> list[Any]:
    """Return those of the callbacks that shall run here."""
    for callback in callbacks:
        if isinstance(callback, keras.callbacks.BackupAndRestore):
            raise TypeError(
                "BackupAndRestore restores on one rank what the others lack: save with ModelCheckpoint, and load the "
                "weights before distribute()"
            )
    if get_rank() == 0:
        return callbacks
    writers = tuple(getattr(keras.callbacks, name) for name in WRITERS if hasattr(keras.callbacks, name))
    return [callback for callback in callbacks if not isinstance(callback, writers)]
