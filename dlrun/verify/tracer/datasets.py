"""tf.data: which samples each batch holds, which data sets train, and the early end of an epoch."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import tensorflow as tf
from tensorflow.python.data.ops import dataset_ops, iterator_ops
from tensorflow.python.framework.errors import OutOfRangeError

from dlrun.verify.tracer.arrays import batch_digest, samples
from dlrun.verify.tracer.randomness import Draws
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
    divided: bool = False  # each rank is to be given its part of every batch
    over: bool = False
    ahead: list[Any] = field(default_factory=list)  # batches that were read, to be given in another order
    trains: bool = False  # a gradient was computed after one of its batches


class DataSets:
    """Follows every iterator over a tf.data.Dataset; samples are told apart by their content."""

    def __init__(self, recorder: Recorder, draws: Draws) -> None:
        self.recorder, self.draws = recorder, draws
        self.fitting = 0  # > 0 in fit(), which minds an epoch that ends early
        self.evaluating = 0  # > 0 in evaluate() and predict(), also where fit() calls them
        self.totals = Totals(recorder)
        self._arrays = False  # ... of arrays, all of them in each epoch
        self._epochs = 0
        self._known: dict[int, tuple[int, Any]] = {}
        self._cut: list[Any] = []  # data sets of this rank's parts of batches
        self._latest: Epoch | None = None
        self._trained: Epoch | None = None  # the last that trains

    def number(self, data: Any) -> int:
        """Return a small number for a data set, the same one each time."""
        return self._known.setdefault(id(data), (len(self._known), data))[0]

    def begin(self, iterator: Any, data: Any, following: Callable[[], Any]) -> None:
        """An epoch over a data set begins."""
        if not self.evaluating:  # Keras 2 goes on with the arrays' one iterator after an evaluation
            self._over()
        finite = bool(self.fitting and self._arrays) or int(data.cardinality()) >= 0
        trains = self.fitting and not self.evaluating
        divided = bool(self.recorder.orders.global_batch and trains) and not self._is_cut(data)
        steps = self.recorder.steps
        epoch = iterator._dlrun = Epoch(self._epochs, self.number(data), steps, following, finite, divided)
        self._epochs += 1
        self.totals.begin()
        facts = {"loader": epoch.loader, "fit": bool(self.fitting), "evaluates": bool(self.evaluating), "loops": finite}
        self.recorder.note("epoch", epoch=epoch.number, data=0, size=None, **facts)

    def cut_batches(self, data: Any) -> Any:
        """Return a data set of this rank's 1/n of every batch: the serial global batch is kept."""
        self._cut.append(data.map(lambda *batch: part_of(batch if len(batch) > 1 else batch[0])))
        return self._cut[-1]

    def _is_cut(self, data: Any) -> bool:
        return any(data is one for one in self._cut) or any(map(self._is_cut, data._inputs()))

    def next_of(self, epoch: Epoch, read: Callable[[], Any]) -> Any:
        """Read a batch; where the orders ask for it, of n that ranks take together another one comes last."""
        orders = self.recorder.orders
        if not orders.turn or self.evaluating:
            return read()
        if not epoch.ahead:
            with suppress(OutOfRangeError):
                for _ in range(orders.shares):
                    epoch.ahead.append(read())
            turn = orders.turn if len(epoch.ahead) == orders.shares else 0
            epoch.ahead[:] = epoch.ahead[turn:] + epoch.ahead[:turn]
        return epoch.ahead.pop(0) if epoch.ahead else read()

    def deliver(self, epoch: Epoch, batch: Any) -> None:
        """A batch reaches the script."""
        if not self.evaluating:  # no gradient is computed of what evaluate() and predict() read
            self._latest = epoch
        self.totals.read = epoch.loader
        if self.fitting:
            self.draws.collect()  # fit() draws the order of the samples: that is no noise in the training
        with self.recorder.aside():
            numbers, digest = samples(batch), batch_digest(batch)
        self.recorder.note("batch", epoch=epoch.number, indices=numbers, hash=digest)

    def backward(self) -> None:
        """Gradients are computed: the batch that came last was for training."""
        if self._latest is not None and not self._latest.trains:
            self._latest.trains = True
            self._trained = self._latest
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
        last = self._trained if self.fitting else self._latest
        if last is not None and last.trains and last.finite and not last.over:
            self.cut(last)

    def _over(self) -> None:
        """In fit() an epoch of arrays is over when another begins: Keras counts batches and does not ask for more."""
        epoch = self._trained
        if self.fitting and self._arrays and epoch is not None and not epoch.over:
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

    def evaluates(self, method: Callable[..., Any]) -> Callable[..., Any]:
        """Return a method of a model that trains on nothing, known as such while it runs."""

        @functools.wraps(method)
        def evaluating(*args: Any, **kwargs: Any) -> Any:
            self.evaluating += 1
            try:
                return method(*args, **kwargs)
            finally:
                self.evaluating -= 1

        return evaluating


def part_of(batch: Any) -> Any:
    """Return the rows r, r + n, ... of all that is in a batch, which are rank r's of n."""
    mine = slice(int(os.environ.get("DLRUN_RANK", "0")), None, int(os.environ.get("DLRUN_SIZE", "1")))
    return tf.nest.map_structure(lambda part: part if part is None else part[mine], batch)


def install(recorder: Recorder, draws: Draws) -> DataSets:
    """Put the instruments into tf.data."""
    data = DataSets(recorder, draws)
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
            batch = data.next_of(epoch, lambda: read(self))
        except OutOfRangeError:
            data.totals.over(epoch.loader)
            recorder.note("over", epoch=epoch.number)
            raise
        batch = part_of(batch) if epoch.divided else batch
        data.deliver(epoch, batch)
        return batch

    dataset_ops.DatasetV2.__iter__ = __iter__
    iterator_ops.OwnedIterator._next_internal = following  # next(), and get_next() in Keras's own loop
    return data
