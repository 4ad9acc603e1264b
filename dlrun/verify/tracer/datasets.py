"""tf.data: which samples each batch holds, which data sets train, and the early end of an epoch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from tensorflow.python.data.ops import dataset_ops, iterator_ops
from tensorflow.python.framework.errors import OutOfRangeError

from dlrun.verify.tracer.arrays import batch_digest, samples
from dlrun.verify.tracer.recorder import Recorder
from dlrun.verify.tracer.totals import Totals

AHEAD = 2000  # batches that are read at most of an epoch that is cut short


@dataclass
class Epoch:
    """One pass over a data set."""

    number: int
    loader: int
    began: int  # optimizer steps made before it
    following: Callable[[], Any]  # reads a batch, unseen by the script
    finite: bool  # it has an end that comes soon
    over: bool = False
    trains: bool = False  # a gradient was computed after one of its batches


class DataSets:
    """Follows every iterator over a tf.data.Dataset; samples are told apart by their content."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self.fitting = 0  # > 0 in fit(), which minds an epoch that ends early
        self.totals = Totals(recorder)
        self._arrays = False  # ... of arrays, all of them in each epoch
        self._epochs = 0
        self._known: dict[int, tuple[int, Any]] = {}
        self._latest: Epoch | None = None

    def number(self, data: Any) -> int:
        """Return a small number for a data set, the same one each time."""
        return self._known.setdefault(id(data), (len(self._known), data))[0]

    def begin(self, iterator: Any, data: Any, following: Callable[[], Any]) -> None:
        """An epoch over a data set begins."""
        self._over()
        finite = bool(self.fitting and self._arrays) or int(data.cardinality()) >= 0
        epoch = iterator._dlrun = Epoch(self._epochs, self.number(data), self.recorder.steps, following, finite)
        self._epochs += 1
        self.totals.begin()
        self.recorder.note("epoch", epoch=epoch.number, loader=epoch.loader, data=0, size=None, fit=bool(self.fitting))

    def deliver(self, epoch: Epoch, batch: Any) -> None:
        """A batch reaches the script."""
        self._latest, self.totals.read = epoch, epoch.loader
        with self.recorder.aside():
            numbers, digest = samples(batch), batch_digest(batch)
        self.recorder.note("batch", epoch=epoch.number, indices=numbers, hash=digest)

    def backward(self) -> None:
        """Gradients are computed: the batch that came last was for training."""
        if self._latest is not None and not self._latest.trains:
            self._latest.trains = True
            self.totals.trained.add(self._latest.loader)
            self.recorder.note("trains", epoch=self._latest.number)

    def cut(self, epoch: Epoch) -> None:
        """Read what an epoch would have read; of one that is too long for that, nothing is known."""
        rest = []
        with self.recorder.aside(), suppress(OutOfRangeError):
            for _ in range(AHEAD):
                rest.append(samples(epoch.following()))
        if len(rest) < AHEAD:
            self.recorder.note("cut", epoch=epoch.number, rest=rest)

    def end(self) -> None:
        """The run is about to be stopped within the last epoch."""
        if self._latest is not None and self._latest.trains and self._latest.finite and not self._latest.over:
            self.cut(self._latest)

    def _over(self) -> None:
        """In fit() an epoch of arrays is over when another begins: Keras counts batches and does not ask for more."""
        epoch = self._latest
        if self.fitting and self._arrays and epoch is not None and epoch.trains and not epoch.over:
            epoch.over = True
            self.recorder.note("over", epoch=epoch.number)

    def is_over(self, epoch: Epoch) -> bool:
        """Whether a training epoch has had its steps."""
        made = self.recorder.steps - epoch.began
        enough = made >= self.recorder.orders.epoch_steps or self.recorder.done
        return epoch.trains and not self.fitting and made > 0 and enough

    @contextmanager
    def fit(self, arrays: bool) -> Iterator[None]:
        """What runs under it is Keras's own loop; over whole arrays?"""
        outer, self._arrays = self._arrays, arrays
        self.fitting += 1
        try:
            yield
            self._over()
        finally:
            self.fitting -= 1
            self._arrays = outer


def install(recorder: Recorder) -> DataSets:
    """Put the instruments into tf.data."""
    data = DataSets(recorder)
    iterate, read = dataset_ops.DatasetV2.__iter__, iterator_ops.OwnedIterator._next_internal

    def __iter__(self: Any) -> Any:  # noqa: N807
        iterator = iterate(self)
        if not recorder.inside:
            data.begin(iterator, self, lambda: read(iterator))
        return iterator

    def following(self: Any) -> Any:
        epoch: Epoch | None = getattr(self, "_dlrun", None)
        if epoch is None or recorder.inside:
            return read(self)
        if data.is_over(epoch):
            data.cut(epoch)
            raise OutOfRangeError(None, None, "the epoch is cut short")
        try:
            batch = read(self)
        except OutOfRangeError:
            recorder.note("over", epoch=epoch.number)
            raise
        data.deliver(epoch, batch)
        return batch

    dataset_ops.DatasetV2.__iter__ = __iter__
    iterator_ops.OwnedIterator._next_internal = following  # next(), and get_next() in Keras's own loop
    return data
