"""DDL's callbacks for Keras models, in eager code and in the graphs of TensorFlow 1."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from ddl import averaging


class DDLCallback(tf.keras.callbacks.Callback):  # type: ignore[misc]
    """Averages a Keras model's metrics at the end of each epoch. Its gradients are averaged in its optimizer."""

    def __init__(self) -> None:
        super().__init__()
        averaging.callback = True

    def set_model(self, model: Any) -> None:
        """Take the model."""
        from dl_comm.keras import AverageMetrics

        super().set_model(model)
        self._metrics = AverageMetrics()
        self._metrics.set_model(model)

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Forget the metrics of the epoch before."""
        self._metrics.on_epoch_begin(epoch, logs)

    def on_test_begin(self, logs: Any = None) -> None:
        """Average the statistics of BatchNormalization layers."""
        self._metrics.on_test_begin(logs)

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Average the metrics, in place."""
        self._metrics.on_epoch_end(epoch, logs)


class DDLGlobalVariablesCallback(tf.keras.callbacks.Callback):  # type: ignore[misc]
    """Gives a Keras model rank 0's weights and optimizer state when training begins, or, where its first batch makes
    them, behind that one."""

    _waits = False

    def on_train_begin(self, logs: Any = None) -> None:
        """Broadcast, if the model has its weights."""
        self._waits = not getattr(self.model, "built", True)
        if not self._waits:
            self._broadcast()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Broadcast what the first batch has made."""
        if self._waits:
            self._waits = False
            self._broadcast()

    def _broadcast(self) -> None:
        from dl_comm.keras import Broadcast

        start = Broadcast()
        start.set_model(self.model)
        start.on_train_begin()
