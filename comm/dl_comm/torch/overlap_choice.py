"""Whether the averages of an optimizer's gradients overlap backward: timed in the first steps, and said in one line.

Between nodes the link is busy while the cores compute, if it may be; within one node both want the same cores. So
between two nodes the first steps of each optimizer are timed, some without overlap, then some with it, and all ranks
keep what was faster on the slowest of them. Both give the same bits. Among more nodes buckets are added in other orders
than the whole, and a rerun might differ in the last bits: there ``DL_COMM_OVERLAP=auto`` asks for it. ``on`` and
``off`` decide by hand.
"""

from __future__ import annotations

import json
import os
import statistics
import time
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from dl_comm import CommError, _core
from dl_comm.rank0 import tell
from dl_comm.ranks import get_localsize
from dl_comm.torch.overlap import dissolve, overlap, overlaps

VARIABLE = "DL_COMM_OVERLAP"
WARM = 3  # steps that are not timed: the first of the job, and the first with overlap, which learn the order
TIMED = 7  # steps of each way
LEAST, MOST = 2**20, 2**30  # bytes of gradients for which it is tried: it takes as much memory once more
GAIN = 0.9  # of the time without overlap is to be undercut: seven steps are noisy


class Trial:
    """One optimizer's steps so far, and the seconds of those that are timed."""

    def __init__(self, mode: str) -> None:
        self.mode, self.steps, self.last = mode, 0, 0.0
        self.seconds: tuple[list[float], list[float]] = ([], [])  # of steps without overlap, and with it

    def step(self, optimizer: Any, tensors: list[Tensor]) -> None:
        """Note that a step's gradients are averaged, and do what is due. All ranks do it in the same step."""
        now, self.steps = time.perf_counter(), self.steps + 1
        way, place = divmod(self.steps - 1, WARM + TIMED)
        if self.mode == "auto" and place >= WARM:
            self.seconds[way].append(now - self.last)
        if way == 0 and self.steps == (1 if self.mode == "on" else WARM + TIMED):
            fits = _fits(tensors)
            if fits:
                overlap(optimizer, checked=True)
            if not fits or self.mode == "on":
                self.mode = "off"  # nothing is left to do
        elif self.steps == 2 * (WARM + TIMED):
            if overlaps(tensors):  # else there was no memory for it
                self._decide(tensors)
            self.mode = "off"
        self.last = time.perf_counter()

    def _decide(self, tensors: list[Tensor]) -> None:
        mine = json.dumps([statistics.median(seconds) for seconds in self.seconds])
        times = [json.loads(text) for text in _core.allgather_bytes(mine.encode())]
        without, overlapped = map(max, zip(*times, strict=True))
        better = overlapped < GAIN * without
        if not better:
            dissolve(tensors)
        tell(
            f"averaging {'overlaps' if better else 'does not overlap'} backward: a step took "
            f"{1000 * overlapped:.1f} ms with overlap, {1000 * without:.1f} ms without ({VARIABLE}=on|off decides)"
        )


_trials: WeakKeyDictionary[Any, Trial] = WeakKeyDictionary()
_mode: str | None = None


def after_step(what: Any, tensors: list[Tensor]) -> None:
    """Note that ``gradients(what)`` has averaged these; only an optimizer's steps are looked at."""
    if mode() == "off" or not isinstance(what, torch.optim.Optimizer):
        return
    trial = _trials.get(what)
    if trial is None:
        trial = _trials[what] = Trial(mode())
    if trial.mode != "off":
        trial.step(what, tensors)


def mode() -> str:
    """Return what DL_COMM_OVERLAP says, ``on``, ``off`` or ``auto``; without it, ``auto`` between two nodes.

    On one node ``auto`` is ``off``. Collective on the first call. Raises CommError for another word.
    """
    global _mode
    if _mode is None:
        text = os.environ.get(VARIABLE, "")
        if text not in ("", "on", "off", "auto"):
            raise CommError(f"{VARIABLE} is '{text}'", "it takes on, off or auto")
        theirs = [json.loads(told) for told in _core.allgather_bytes(json.dumps([text, get_localsize()]).encode())]
        if other := next((word for word, _ in theirs if word != text), ""):
            raise CommError(f"{VARIABLE} is '{text}' here and '{other}' elsewhere", "set it alike for all ranks")
        sizes = [size for _, size in theirs]
        nodes = round(sum(1 / size for size in sizes))
        _mode = "off" if nodes == 1 and text != "on" else text or ("auto" if nodes == 2 else "off")
    return _mode


def _fits(tensors: list[Tensor]) -> bool:
    """Return whether overlap may pay, and can be: gradients on the host, enough of them, none that overlaps already."""
    size = sum(t.numel() * t.element_size() for t in tensors)
    here = all(t.device.type == "cpu" and t.is_leaf for t in tensors)
    return LEAST <= size <= MOST and here and not overlaps(tensors)
