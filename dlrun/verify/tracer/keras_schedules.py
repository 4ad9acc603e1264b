"""The schedules of Keras that optimizers follow, and how high the rates will rise: as ``schedules`` for PyTorch."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import Any

from dlrun.verify.tracer.recorder import Recorder

FAR = 20_000  # steps that are looked ahead at most
PATIENCE = 2.0  # seconds that this takes at most


def look_ahead(recorder: Recorder, optimizers: Iterable[tuple[int, Any]]) -> None:
    """The script is over: note each schedule's highest rate from now on, None of one that rises on, and its rates.

    ``optimizers``: each with its number. A schedule is as far as its optimizer has made steps.
    """
    with recorder.aside():
        for number, optimizer in optimizers:
            schedule = getattr(optimizer, "_learning_rate", None)
            if callable(schedule) and not hasattr(schedule, "assign"):
                made = int(optimizer.iterations)
                rates = [float(f"{rate:.6g}") for rate in _ahead(schedule, made)]
                rises = len(rates) > 1 and rates[-1] > max(rates[:-1])
                facts = {"made": made, "where": "", "told": False, "ahead": rates}
                recorder.note("peaks", optimizer=number, rates=[None if rises or not rates else max(rates)], **facts)


def _ahead(schedule: Any, step: int) -> Iterator[float]:
    until = time.monotonic() + PATIENCE
    for ahead in range(FAR):
        try:
            yield float(schedule(step + ahead))
        except Exception:  # the schedule is over, or reads what is gone
            return
        if time.monotonic() > until:
            return
