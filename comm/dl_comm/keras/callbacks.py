"""What happens around a fit: one start for all, warm-up, files from one rank. What all do together: ``together``."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import keras

from dl_comm.keras.backend import broadcast, own_noise
from dl_comm.rank0 import Silence
from dl_comm.ranks import get_nranks, get_rank, parts
from dl_comm.rate import decay_factor, lr_scale, warm_factor


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
    """Ramp the learning rate linearly from lr / n to lr over the first batches (arXiv 1706.02677, 2.2).

    Over ``steps`` batches, or over as many as ``epochs`` epochs of ``fit`` have. The reduced rate is put in before a
    batch and taken out after it, so callbacks that set or log the rate see and set the full one. On one rank nothing
    happens. Raises ``TypeError`` when the optimizer's rate is a schedule, ``ValueError`` unless one of ``steps`` and
    ``epochs`` is given, and where ``fit`` does not know how many batches an epoch has.
    """

    def __init__(self, steps: int | None = None, epochs: int | None = None) -> None:
        super().__init__()
        if (steps is None) == (epochs is None) or (steps or epochs or 0) < 0:
            raise ValueError(f"WarmUp() got {steps} steps and {epochs} epochs; give one of them, 0 or more")
        self._steps, self._epochs, self._done = steps, epochs, 0
        self._full: float | None = None

    def on_train_begin(self, logs: Any = None) -> None:
        """Look whether the rate can be set, and count the steps of an epoch."""
        if parts() == 1:
            return
        refuse_schedules(self.model.optimizer, "WarmUp() cannot ramp", "put the warm-up into the schedule")
        if self._steps is None:
            batches = self.params.get("steps")
            if batches is None:
                raise ValueError(
                    f"WarmUp(epochs={self._epochs}): fit() does not know how many batches an epoch has; give it "
                    "steps_per_epoch, or use WarmUp(steps)"
                )
            self._steps = (self._epochs or 0) * batches

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Put the reduced rate in."""
        if parts() > 1 and self._steps is not None and self._done < self._steps:
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


class Decay(keras.callbacks.Callback):  # type: ignore[misc]
    """Multiply the learning rate by ``factor`` when each of the epochs ``at`` begins, counted from 0 over all fits.

    With ``at=(30, 60, 80)`` this is the schedule of Goyal et al. (arXiv 1706.02677, section 5.1). A run that is resumed
    with ``initial_epoch`` is taken to have restored the optimizer, and its rate with it. On one rank nothing happens:
    the script keeps its own rate. Raises ``TypeError`` when the optimizer's rate is a schedule, ``ValueError`` for a
    factor outside 0 to 1.
    """

    def __init__(self, at: Iterable[int], factor: float = 0.1) -> None:
        super().__init__()
        self._at, self._factor, self._epoch = tuple(at), factor, -1
        decay_factor(0, self._at, factor)

    def on_train_begin(self, logs: Any = None) -> None:
        """Look whether the rate can be set."""
        if parts() > 1:
            refuse_schedules(self.model.optimizer, "Decay() cannot change", "put the decay into the schedule")

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Lower the rate."""
        self._epoch = max(self._epoch + 1, epoch)
        if parts() > 1 and self._epoch in self._at:
            synchronize(self.model)
            set_rate(self.model.optimizer, rate_of(self.model.optimizer) * self._factor)


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
    """Return those of the callbacks given to ``fit`` that shall run here.

    Keras's own show nothing but on rank 0: ``EarlyStopping(verbose=1)``.
    """
    for callback in callbacks:
        if isinstance(callback, keras.callbacks.BackupAndRestore):
            raise TypeError(
                "BackupAndRestore restores on one rank what the others lack: save with ModelCheckpoint, and load the "
                "weights before distribute()"
            )
    if get_rank() == 0:
        return callbacks
    writers = [getattr(keras.callbacks, name) for name in WRITERS if hasattr(keras.callbacks, name)]
    here = [callback for callback in callbacks if not isinstance(callback, (Silence, *writers))]
    for callback in here:
        if type(callback).__module__.partition(".")[0] == "keras" and getattr(callback, "verbose", False):
            callback.verbose = 0
    return here


def flat(given: Any) -> list[Any]:
    """Return the callbacks given to ``fit``, one or several, also in lists of lists, in one list."""
    if not isinstance(given, (list, tuple)):
        return [] if given is None else [given]
    return [callback for one in given for callback in flat(one)]
