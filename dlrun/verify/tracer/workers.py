"""Which random numbers reading a sample takes, as augmentation does: in the worker processes of DataLoaders, too."""

from __future__ import annotations

from typing import Any

from torch.utils.data import get_worker_info
from torch.utils.data._utils import fetch

from dlrun.verify.tracer.randomness import states
from dlrun.verify.tracer.recorder import Recorder

LOOKS = 3  # batches of a process that are looked at, at most


def install(recorder: Recorder) -> None:
    """Follow what a process draws for its first batches; workers that are not forked leave us behind.

    Streams are left out: what an IterableDataset draws all ranks have to draw alike.
    """
    kind = fetch._MapDatasetFetcher
    kind.fetch = _noted(recorder, kind.fetch)  # type: ignore[method-assign]


def _noted(recorder: Recorder, read: Any) -> Any:
    looks = 0  # each process counts its own

    def noted(self: Any, index: Any) -> Any:
        nonlocal looks
        if looks >= LOOKS:
            return read(self, index)
        looks += 1
        before = states()
        data = read(self, index)
        drawn = {name: state for name, state in states().items() if before.get(name, state) != state}
        if worker := get_worker_info():
            recorder.note("worker", worker=worker.id, dataset=id(self.dataset), drawn=drawn)
        else:
            recorder.note("read", drawn=drawn)
        return data

    return noted
