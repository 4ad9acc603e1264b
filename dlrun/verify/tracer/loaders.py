"""DataLoaders: which samples each batch holds, which loaders train, and the early end of an epoch."""

from __future__ import annotations

import inspect
import os
import weakref
from collections import deque
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils.data import DataLoader, Subset
from torch.utils.data.dataloader import _BaseDataLoaderIter

from dlrun.verify.tracer import workers
from dlrun.verify.tracer.iteration_seeds import seed_for
from dlrun.verify.tracer.loops import is_gone_through
from dlrun.verify.tracer.randomness import Draws
from dlrun.verify.tracer.recorder import UNCUT, Recorder, called_by_dl_comm
from dlrun.verify.tracer.serial_order import in_serial_order
from dlrun.verify.tracer.shortened import alone, shorten
from dlrun.verify.tracer.tensors import batch_digest, held_by, rows
from dlrun.verify.tracer.totals import Totals

ENDLESS = 10  # times the data set: a sampler that gives more indices has no epochs


@dataclass
class Epoch:
    """One pass over a DataLoader."""

    number: int
    loader: int
    began: int  # optimizer steps made before it
    dataset: Any = None  # the one under Subsets
    waiting: deque[Any] = field(default_factory=deque)  # indices fetched, whose batch was not delivered yet
    trains: bool = False  # a backward followed one of its batches
    over: bool = False


class Loaders:
    """Follows every DataLoader of the process."""

    def __init__(self, recorder: Recorder, draws: Draws) -> None:
        self.recorder, self.draws = recorder, draws
        self.totals = Totals(recorder)
        self.shared: set[int] = set()  # the loaders that dl.shard() has made
        self.made = self._epochs = 0
        self._known: dict[int, tuple[int, Any]] = {}  # id -> (number, the object, kept alive so that ids stay unique)
        self._makes: set[str] = set()  # the lines that make loaders which train
        self._noted: set[int] = set()  # data sets whose rows were
        self._latest: Epoch | None = None  # whose batch came last
        # The iterators, by loader, whose batches came since the last backward, and those of the iteration before.
        self._since: dict[int, Any] = {}
        self._before: dict[int, Any] = {}
        self.local = 0  # samples in that batch, if it is one to train on
        self.sizes: dict[int, int] = {}  # samples in the batches to train on since the last backward, by loader
        self.reading = False  # a batch is being made

    @property
    def fed(self) -> bool:
        """Whether any batch came from a loader."""
        return self._latest is not None

    def number(self, thing: Any) -> int:
        """Return a small number for a loader or a data set, the same one each time."""
        return self._known.setdefault(id(thing), (len(self._known), thing))[0]

    def is_length_of_trained(self, count: Any) -> bool:
        """Tell whether ``count`` is the length of a loader that is trained on, and not of the one read last."""
        totals = self.totals
        trained = {number for number in totals.trained if number != totals.read}
        lengths = [(number, thing) for number, thing in self._known.values() if isinstance(thing, DataLoader)]
        alike = {number for number, thing in lengths if isinstance(count, int) and _length(thing) == count}
        return bool(alike & trained) and totals.read not in alike

    def make(self, loader: DataLoader[Any], given: dict[str, Any]) -> dict[str, Any]:
        """Note a loader of the script's; return its arguments, with the local batch size where the orders ask for it.

        Loaders are numbered in the order in which the *script* made them, so that runs can be compared.
        """
        made, self.made = self.made, self.made + 1
        size, orders = given.get("batch_size", 1), self.recorder.orders
        if orders.global_batch and made in orders.training_loaders and size and given.get("batch_sampler") is None:
            given = {**given, "batch_size": size // int(os.environ.get("DLRUN_SIZE", "1"))}
        self.recorder.note(
            "loader",
            loader=self.number(loader),
            made=made,
            batch_size=size,
            workers=given.get("num_workers", 0),
            drop_last=bool(given.get("drop_last", False)),
            shuffle=bool(given.get("shuffle", False)),
            sampler=type(given.get("sampler")).__name__,
            custom=any(given.get(name) is not None for name in ("sampler", "batch_sampler")),
        )
        given = alone(given) if orders.few else given
        return in_serial_order(given, orders.uses[made]) if made < len(orders.uses) else given

    def shorten(self, loader: DataLoader[Any], made: int) -> None:
        """Cut the loader that was made in this iteration to a few batches, as the orders ask."""
        orders, line = self.recorder.orders, self.recorder.line
        if made in orders.training_loaders:
            self._makes.add(line)  # one for each epoch, say
        shorten(loader, orders, line in self._makes)

    def begin(self, iterator: Any, loader: DataLoader[Any]) -> None:
        """An epoch over a loader begins."""
        waiting = iterator.__dict__.setdefault("_dlrun_waiting", deque())
        number, self._epochs = self._epochs, self._epochs + 1
        self.draws.collect()  # what was drawn before, to build the model for instance, is no noise in the training
        base = loader.dataset
        while isinstance(base, Subset):
            base = base.dataset
        iterator._dlrun = Epoch(number, self.number(loader), self.recorder.steps, base, waiting)
        self.totals.begin()
        facts = {"loader": self.number(loader), "data": self.number(base), "size": _length(base)}
        facts |= {"loops": is_gone_through(), "dataset": id(iterator._dataset)}
        self.recorder.note("epoch", epoch=iterator._dlrun.number, **facts)

    def deliver(self, iterator: Any, batch: Any) -> None:
        """A batch reaches the script."""
        epoch: Epoch = iterator._dlrun
        index = _resolve(iterator._dataset, epoch.waiting.popleft()) if epoch.waiting else None
        self._latest, self.totals.read = epoch, epoch.loader
        self.totals.learns = torch.is_grad_enabled()
        if self.totals.learns:
            self._since[epoch.loader] = weakref.ref(iterator)
        trained = self.totals.trained
        self.local = len(index or ()) if not trained or epoch.loader in trained else 0
        self.sizes |= {epoch.loader: self.local} if self.local else {}
        self.recorder.note("batch", epoch=epoch.number, indices=index, hash=batch_digest(batch))

    def backward(self) -> None:
        """``backward`` runs: the batch that came last was for training, and those of loaders that go along with it."""
        along = [iterator._dlrun for iterator in _going(self._since) if iterator._dlrun.loader in self._before]
        for epoch in [self._latest, *along]:
            if epoch is not None and not epoch.trains:
                epoch.trains = True
                self.totals.trained.add(epoch.loader)
                if (data := self.number(epoch.dataset)) not in self._noted:
                    self._noted.add(data)
                    self.recorder.note("held rows", data=data, rows=rows((), held_by(epoch.dataset)))
                self.recorder.note("trains", epoch=epoch.number)
        if self._since:
            self._before, self._since = self._since, {}

    def is_over(self, iterator: Any) -> bool:
        """Whether a training epoch has had its steps."""
        epoch: Epoch = iterator._dlrun
        made = self.recorder.steps - epoch.began
        return epoch.trains and made > 0 and (made >= self.recorder.orders.epoch_steps or self.recorder.done)

    def cut(self, iterator: Any) -> None:
        """End an epoch early, and those that go along with it."""
        self._cut(iterator)
        for other in _going(self._before):
            if self.is_over(other):
                self._cut(other)

    def _cut(self, iterator: Any) -> None:
        """Note the samples that an epoch would still have read, without reading them."""
        epoch: Epoch = iterator._dlrun
        if epoch.over:  # with another one
            return
        epoch.over = True
        rest = [_resolve(iterator._dataset, index) for index in epoch.waiting]
        epoch.waiting.clear()
        read, most = 0, ENDLESS * len(iterator._dataset) if iterator._dataset_kind == 0 else 0
        if most:  # map-style: the indices can be had without the data
            with self.recorder.aside():
                for index in iterator._sampler_iter:
                    rest.append(_resolve(iterator._dataset, index))
                    read += len(rest[-1] or [0])
                    if read > most:
                        break
        self.recorder.note("cut", epoch=epoch.number, rest=[] if read > most else rest, endless=read > most)
        if hasattr(iterator, "_shutdown_workers"):
            iterator._shutdown_workers()


def install(recorder: Recorder, draws: Draws) -> Loaders:
    """Put the instruments into ``torch.utils.data``."""
    loaders = Loaders(recorder, draws)
    workers.install(recorder)
    iterate, following, next_index = DataLoader.__iter__, _BaseDataLoaderIter.__next__, _BaseDataLoaderIter._next_index

    def __iter__(self: Any) -> Any:  # noqa: N807
        draws.mark()
        if getattr(self._iterator, "_shutdown", False):
            self._iterator = None  # of workers that persist: they went with the epoch that was cut
        iterator = iterate(self)
        draws.mark(count=False)
        loaders.begin(iterator, self)
        return iterator

    def __next__(self: Any) -> Any:  # noqa: N807
        if loaders.is_over(self):
            loaders.cut(self)
            if recorder.orders.few:
                seed_for(recorder, self._dlrun.number)
            if recorder.orders.epoch_steps == UNCUT:  # the script minds an epoch that ends early
                recorder.stop()
            raise StopIteration
        loaders.reading = True
        try:
            batch = following(self)
        except StopIteration:
            self._dlrun.over = True
            loaders.totals.over(self._dlrun.loader, torch.is_grad_enabled())
            recorder.note("over", epoch=self._dlrun.number)
            if recorder.orders.few:
                seed_for(recorder, self._dlrun.number)
            raise
        finally:
            loaders.reading = False
        loaders.deliver(self, batch)
        return batch

    def _next_index(self: Any) -> Any:
        draws.mark()
        try:
            index = next_index(self)  # type: ignore[no-untyped-call]
        finally:
            draws.mark(count=False)  # the order of the data is drawn with its first index
        if recorder.orders.few:
            seed_for(recorder, index)
        self.__dict__.setdefault("_dlrun_waiting", deque()).append(index)
        return index

    for owner, patch in (
        (DataLoader, _making(loaders)),
        (DataLoader, __iter__),
        (_BaseDataLoaderIter, __next__),
        (_BaseDataLoaderIter, _next_index),
    ):
        setattr(owner, patch.__name__, patch)
    return loaders


def _making(loaders: Loaders) -> Any:
    """Return what makes a DataLoader, and notes it where the script does."""
    init, recorder = DataLoader.__init__, loaders.recorder
    names = list(inspect.signature(init).parameters)[2:]

    def __init__(self: Any, dataset: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        given = {**dict(zip(names, args, strict=False)), **kwargs}
        own, made = not recorder.inside and not called_by_dl_comm(), loaders.made
        if own:
            given = loaders.make(self, given)
        with recorder.aside():
            init(self, dataset, **given)
        if own and recorder.orders.few:
            loaders.shorten(self, made)
            if recorder.steps:  # the last batch before it is another one on each rank
                seed_for(recorder, -1 - made)

    return __init__


def _going(known: dict[int, Any]) -> list[Any]:
    """Return the iterators, of weak references, that are still in use and not at their end."""
    found = [reference() for reference in known.values()]
    return [iterator for iterator in found if iterator is not None and not iterator._dlrun.over]


def _length(data: Any) -> int | None:
    try:
        return len(data)
    except TypeError:  # an IterableDataset
        return None


def _resolve(dataset: Any, index: Any) -> list[int] | None:
    """Return a batch's indices as those of the data set under ``Subset``s; None where samples have none."""
    index = index if isinstance(index, (list, tuple)) else [index]
    if not all(hasattr(i, "__index__") for i in index):
        return None
    numbers = [int(i) for i in index]
    while isinstance(dataset, Subset):
        numbers, dataset = [int(dataset.indices[i]) for i in numbers], dataset.dataset
    return numbers
