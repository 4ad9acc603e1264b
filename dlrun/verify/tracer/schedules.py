"""The schedules of PyTorch that a script steps, and how high the rates will rise that they have not come to yet.

A run of a few steps sees the first rates of a warm-up alone. Those of one that is n times as fast, but not scaled, are
those of one that is scaled, but not faster: the peak tells them apart.
"""

from __future__ import annotations

import functools
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

from torch.optim import lr_scheduler
from torch.optim.swa_utils import SWALR

from dlrun.verify.tracer.recorder import Recorder

FAR = 20_000  # steps that are made ahead at most
PATIENCE = 2.0  # seconds that this takes at most
PARTS = 4  # of an epoch


class Schedules:
    """Knows the schedulers that the script steps itself, not those that are parts of others."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self._stepped: dict[int, tuple[Any, int, str]] = {}  # how often, and the line
        self._made: dict[int, tuple[Any, str]] = {}  # and the line
        self._told: set[int] = set()  # those that are told parts of epochs: epoch + i / len(loader)
        self._inside = False

    def follow(self, kind: Any) -> None:
        """Wrap ``step`` of a class of schedulers."""
        step: Callable[..., Any] = kind.step

        @functools.wraps(step)
        def noted(scheduler: Any, *args: Any, **kwargs: Any) -> Any:
            if self._inside or sys._getframe(1).f_code.co_name == "_initial_step":
                self._made.setdefault(id(scheduler), (scheduler, self.recorder.line))
                return step(scheduler, *args, **kwargs)
            made = self._stepped.get(id(scheduler), (None, 0, ""))[1]
            self._stepped[id(scheduler)] = (scheduler, made + 1, self.recorder.line)
            if args and isinstance(args[0], float) and args[0] % 1:
                self._told.add(id(scheduler))
            self._inside = True
            try:
                return step(scheduler, *args, **kwargs)
            finally:
                self._inside = False

        kind.step = noted

    def look_ahead(self, number_of: Callable[[Any], int | None]) -> None:
        """The script is over: step its schedulers on, and note each group's highest rate, None of a rate that rises on.

        Also where SWALR goes to, though it may not have been stepped yet.
        Also how often the script has stepped each, where, and the first group's rates from then on. ``number_of`` gives
        the number of an optimizer.
        """
        with self.recorder.aside(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for scheduler, line in self._made.values():
                rates = [group["swa_lr"] for group in scheduler.optimizer.param_groups if "swa_lr" in group]
                if isinstance(scheduler, SWALR) and rates:
                    number = number_of(scheduler.optimizer)
                    self.recorder.note("goes to", optimizer=number, rates=list(map(float, rates)), where=line)
            for scheduler, made, line in self._stepped.values():
                number = number_of(scheduler.optimizer)
                if number is not None:
                    told = id(scheduler) in self._told
                    ahead = list(_ahead(scheduler, told))
                    facts = {"rates": _peaks(ahead), "ahead": [float(f"{rates[0]:.6g}") for rates in ahead if rates]}
                    self.recorder.note("peaks", optimizer=number, made=made, where=line, told=told, **facts)


def _peaks(ahead: list[list[float]]) -> list[float | None]:
    """Return each group's highest rate from now on; None where the last one is higher than all before."""
    groups = list(zip(*ahead, strict=True))
    return [None if len(rates) > 1 and rates[-1] > max(rates[:-1]) else max(rates) for rates in groups]


def _ahead(scheduler: Any, told: bool) -> Iterator[list[float]]:
    """Yield the rates now, and after each further step; of one that is told the epochs from the first one on."""
    until = time.monotonic() + PATIENCE
    for k in range(FAR // 100 if told else FAR):
        try:
            if told or k:
                scheduler.step(*([k / PARTS] if told else []))
        except Exception:  # the schedule is over, or reads what is gone
            return
        yield [float(group["lr"]) for group in scheduler.optimizer.param_groups]
        if time.monotonic() > until:
            return


def install(recorder: Recorder) -> Schedules:
    """Put the instruments into ``torch.optim.lr_scheduler``."""
    schedules = Schedules(recorder)
    kinds = [k for k in vars(lr_scheduler).values() if isinstance(k, type) and issubclass(k, lr_scheduler.LRScheduler)]
    for kind in kinds:
        if "step" in vars(kind) and kind is not lr_scheduler.ReduceLROnPlateau:
            schedules.follow(kind)
    return schedules
