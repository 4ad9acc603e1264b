"""tf.data: which samples each batch holds, which data sets train, and the early end of an epoch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from tensorflow.python.data.ops import dataset_ops, iterator_ops

from dlrun.verify.tracer.arrays import batch_digest, samples
from dlrun.verify.tracer.recorder import Recorder

AHEAD = 2000  # batches that are read at most of an epoch that is cut short


@dataclass
class Epoch:
    """One pass over a data set."""

    number: int
    began: int  # optimizer steps made before it
    trains: bool = False  # a gradient was computed after one of its batches


class DataSets:
    """Follows every iterator over a tf.data.Dataset; samples are told apart by their content."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self.fitting = 0  # > 0 in fit(), which minds an epoch that ends early
        self._epochs = 0
        self._known: dict[int, tuple[int, Any]] = {}
        self._latest: Epoch | None = None

    @property
    def fed(self) -> bool:
        """Whether any batch came from a data set."""
        return self._latest is not None

    def number(self, data: Any) -> int:
        """Return a small number for a data set, the same one each time."""
        return self._known.setdefault(id(data), (len(self._known), data))[0]

    def begin(self, iterator: Any, data: Any) -> None:
        """An epoch over a data set begins."""
        iterator._dlrun = Epoch(self._epochs, self.recorder.steps)
        self._epochs += 1
        self.recorder.note("epoch", epoch=iterator._dlrun.number, loader=self.number(data), data=0, size=None)

    def deliver(self, epoch: Epoch, batch: Any) -> None:
        """A batch reaches the script."""
        self._latest = epoch
        with self.recorder.aside():
            numbers, digest = samples(batch), batch_digest(batch)
        self.recorder.note("batch", epoch=epoch.number, indices=numbers, hash=digest)

    def backward(self) -> None:
        """Gradients are computed: the batch that came last was for training."""
        if self._latest is not None and not self._latest.trains:
            self._latest.trains = True
            self.recorder.note("trains", epoch=self._latest.number)

    def is_over(self, epoch: Epoch) -> bool:
        """Whether a training epoch has had its steps."""
        made = self.recorder.steps - epoch.began
        enough = made >= self.recorder.orders.epoch_steps or self.recorder.done
        return epoch.trains and not self.fitting and made > 0 and enough

    @contextmanager
    def fit(self) -> Iterator[None]:
        """What runs under it is Keras's own loop."""
        self.fitting += 1
        try:
            yield
        finally:
            self.fitting -= 1


def install(recorder: Recorder) -> DataSets:
    """Put the instruments into tf.data."""
    data = DataSets(recorder)
    iterate, following = dataset_ops.DatasetV2.__iter__, iterator_ops.OwnedIterator.__next__

    def __iter__(self: Any) -> Any:  # noqa: N807
        iterator = iterate(self)
        if not recorder.inside:
            data.begin(iterator, self)
        return iterator

    def __next__(self: Any) -> Any:  # noqa: N807
        epoch: Epoch | None = getattr(self, "_dlrun", None)
        if epoch is None or recorder.inside:
            return following(self)
        if data.is_over(epoch):
            rest = []
            with recorder.aside():
                for _ in range(AHEAD):
                    try:
                        rest.append(samples(following(self)))
                    except StopIteration:
                        break
            recorder.note("cut", epoch=epoch.number, rest=rest)
            raise StopIteration
        try:
            batch = following(self)
        except StopIteration:
            recorder.note("over", epoch=epoch.number)
            raise
        data.deliver(epoch, batch)
        return batch

    dataset_ops.DatasetV2.__iter__ = __iter__
    iterator_ops.OwnedIterator.__next__ = __next__
    return data
