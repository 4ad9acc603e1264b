"""The worker processes of DataLoaders: which random numbers reading a sample takes there, as augmentation does."""

from __future__ import annotations

from typing import Any

from torch.utils.data import get_worker_info
from torch.utils.data._utils import fetch

from dlrun.verify.tracer.randomness import states
from dlrun.verify.tracer.recorder import Recorder

LOOKS = 3  # batches of a worker that are looked at, at most


def install(recorder: Recorder) -> None:
    """Follow what a forked worker draws for its first batches; another way of starting workers leaves us behind.

    Streams are left out: what an IterableDataset draws all ranks have to draw alike.
    """
    kind = fetch._MapDatasetFetcher
    kind.fetch = _noted(recorder, kind.fetch)  # type: ignore[method-assign]


def _noted(recorder: Recorder, read: Any) -> Any:
    looks = 0  # each worker counts its own

    def noted(self: Any, index: Any) -> Any:
        nonlocal looks
        worker = get_worker_info()
        if worker is None or looks >= LOOKS:
            return read(self, index)
        looks += 1
        before = states()
        data = read(self, index)
        drawn = {name: state for name, state in states().items() if before.get(name, state) != state}
        recorder.note("worker", worker=worker.id, dataset=id(self.dataset), drawn=drawn)
        return data

    return noted
