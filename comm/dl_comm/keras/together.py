"""What all ranks do together in a fit: metrics of all of them, and one end."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import keras
import numpy as np

from dl_comm import CommError, _core
from dl_comm.keras.backend import exchange
from dl_comm.keras.callbacks import synchronize
from dl_comm.keras.metrics import folded_logs, folded_results, unfolded
from dl_comm.rank0 import tell
from dl_comm.ranks import get_nranks
from dl_comm.stopping import should_stop

_HOOKS = ("on_batch_begin", "on_batch_end", "on_train_batch_begin", "on_train_batch_end")


class AverageMetrics(keras.callbacks.Callback):  # type: ignore[misc]
    """At the end of an epoch its metrics become those of all ranks' samples, for all callbacks after this one.

    The sums and counts that Keras's own metrics keep are added up over the ranks: so false positives are all, and a
    precision or an AUC is that of all samples. Metrics of classes of the script's own, whose variables may be anything,
    become the means over the ranks.

    So early stopping, plateaus and best checkpoints decide alike on all ranks. Before a validation and at the end of
    an epoch the statistics of BatchNormalization layers are averaged, too: all ranks evaluate and save one model.
    """

    _results: dict[str, tuple[float, float]] | None = None  # of the training, while the validation uses its metrics
    folds: Callable[[dict[str, Any] | None], None] | None = None  # what makes those of a shared validation all ranks'
    _told = False
    _last: dict[str, Any] | None = None  # of the epoch before

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Forget the epoch before."""
        self._results = None

    def on_test_begin(self, logs: Any = None) -> None:
        """Average BatchNormalization's statistics, and fold the metrics that the validation will reset."""
        average_statistics(self.model)
        if get_nranks() > 1 and self._results is None:
            self._results = folded_results(self.model)

    def on_test_end(self, logs: dict[str, Any] | None = None) -> None:
        """Fold the metrics of a validation that the ranks share."""
        if self.folds is not None:
            self.folds(logs)

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Average the logs, in place."""
        if get_nranks() > 1:
            average_statistics(self.model)
            found = folded_results(self.model) if self._results is None else self._results
            logs = logs if logs is not None else {}
            self._tell_means(logs)
            logs.update(folded_logs(logs, found))
            self._average(f"epoch {epoch}", logs)
            self._last = dict(logs)

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        """Hand on the last epoch's logs, in place: Keras brings those that this rank had before they were averaged."""
        if logs and self._last is not None:
            logs.update({name: self._last[name] for name in logs if name in self._last})

    def _tell_means(self, logs: dict[str, Any]) -> None:
        """Say once of which metrics ``fit`` shows the means over the ranks."""
        names = [name for name in unfolded(self.model) if name in logs]
        if names and not self._told:
            self._told = True
            text = ", ".join(names)
            tell(f"fit() shows the means over the ranks of {text}: fold_over_ranks says how they come together")

    def _average(self, when: str, logs: dict[str, Any]) -> None:
        names = sorted(name for name, value in logs.items() if np.ndim(value) == 0)
        theirs = [b.decode() for b in _core.allgather_bytes(" ".join(names).encode())]
        if len(set(theirs)) > 1:
            other = next(r for r, text in enumerate(theirs) if text != theirs[0])
            raise CommError(
                f"{when} has the metrics {theirs[0]!r} on rank 0 and {theirs[other]!r} on rank {other}",
                "Compile the model with the same metrics on every rank.",
            )
        values = np.array([float(logs[name]) for name in names], dtype=np.float64)
        _core.allreduce([(values.ctypes.data, values.size, "float64")], "mean", 0, [f"metrics of {when}"])
        logs.update(zip(names, values.tolist(), strict=True))


def average_statistics(model: Any) -> None:
    """Give the BatchNormalization layers of a model the means over the ranks of their statistics."""
    if get_nranks() > 1:
        synchronize(model)
        layers = [layer for layer in _layers(model) if isinstance(layer, keras.layers.BatchNormalization)]
        exchange([v for layer in layers for v in layer.non_trainable_variables if "moving" in v.name], None)


class AverageMetricsAtBatches(AverageMetrics):
    """Likewise after every batch, for callbacks that look at local logs."""

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Average the logs, in place: what Keras hands on to the callbacks after this one."""
        if get_nranks() > 1:
            self._average(f"batch {batch}", logs if logs is not None else {})


def _layers(layer: Any) -> list[Any]:
    """Return a layer and all layers in it, each once, in a fixed order."""
    found, queue = {}, [layer]
    while queue:
        one = queue.pop(0)
        if id(one) not in found:
            found[id(one)] = one
            queue += list(one._flatten_layers(include_self=False, recursive=False))
    return list(found.values())


class StopTogether(keras.callbacks.Callback):  # type: ignore[misc]
    """All ranks leave ``fit`` where one does; after all other callbacks, which may look at a clock of their own."""

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Stop where any rank stops."""
        asked = _core.allgather_bytes(b"1" if self.model.stop_training else b"0")
        self.model.stop_training = b"1" in asked


class StopTogetherAtBatches(StopTogether):
    """Likewise after every batch, for callbacks that look at local logs."""

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Stop where any rank stops."""
        self.on_epoch_end(batch)


class StopWhenTold(keras.callbacks.Callback):  # type: ignore[misc]
    """A job that is told to end leaves ``fit`` behind the next epoch, as ``should_stop`` has it; after what saves."""

    def on_train_begin(self, logs: Any = None) -> None:
        """Let ``dlrun launch`` know from here on that this job saves and ends by itself."""
        should_stop()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Stop where the job was told to."""
        self._ask()

    def _ask(self) -> None:
        if should_stop():
            self.model.stop_training = True


class StopWhenToldAtBatches(StopWhenTold):
    """Likewise behind every ``save_freq`` batches, where a ``ModelCheckpoint`` saves so."""

    def __init__(self, save_freq: int) -> None:
        super().__init__()
        self._save_freq, self._seen = save_freq, 0

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Nothing is saved here."""

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Stop where the job was told to and a checkpoint was written."""
        self._seen += 1
        if self._seen >= self._save_freq:
            self._seen = 0
            self._ask()


def together(callbacks: list[Any], given: list[Any]) -> tuple[AverageMetrics, list[Any]]:
    """Return the first and the last callbacks of a ``fit``: all ranks show one metric to ``callbacks``, and end alike.

    At batches too, where one of a rank's ``callbacks`` looks at them. Collective. Of Keras's own only TerminateOnNaN
    stops at a batch, and only TensorBoard keeps what it sees there. Where a rank was ``given`` a ModelCheckpoint, a job
    that is told to end leaves behind its next checkpoint.
    """

    def may_stop(callback: Any) -> bool:
        name, kind = type(callback).__name__, type(callback)
        if kind.__module__.partition(".")[0] in ("keras", "tensorflow", "dl_comm") and name != "LambdaCallback":
            return name == "TerminateOnNaN"
        plain, own = keras.callbacks.Callback, vars(callback)  # a LambdaCallback's
        return any(hook in own or getattr(kind, hook) is not getattr(plain, hook) for hook in _HOOKS)

    def keeps(callback: Any) -> bool:
        return isinstance(callback, keras.callbacks.TensorBoard) and callback.update_freq != "epoch"

    checkpoints = [c for c in given if isinstance(c, keras.callbacks.ModelCheckpoint)]
    every = [c.save_freq for c in checkpoints if isinstance(c.save_freq, int)]  # else "epoch"
    here = {
        "stops": any(map(may_stop, callbacks)),
        "sees": any(may_stop(c) or keeps(c) for c in callbacks),
        "saves": bool(checkpoints),
        "save_freq": 0 if len(every) < len(checkpoints) else min(every, default=0),
    }
    asked = [json.loads(text) for text in _core.allgather_bytes(json.dumps(here).encode())]
    save_freq = max(one["save_freq"] for one in asked)
    told = [StopWhenToldAtBatches(save_freq) if save_freq else StopWhenTold()] if any(o["saves"] for o in asked) else []
    return (
        AverageMetricsAtBatches() if any(one["sees"] for one in asked) else AverageMetrics(),
        [*told, StopTogetherAtBatches() if any(one["stops"] for one in asked) else StopTogether()],
    )
