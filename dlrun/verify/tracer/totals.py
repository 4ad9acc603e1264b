"""Which sums over ranks are of an evaluation, in a run whose ranks repeat the training but share the evaluations."""

from __future__ import annotations

import linecache
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import CodeType
from typing import Any

from dlrun.verify.tracer.importing import number_of
from dlrun.verify.tracer.recorder import Recorder, user_frame

REPLICATE = "DL_COMM_REPLICATE"


@contextmanager
def divided(really: bool = True) -> Iterator[None]:
    """Under it, dl_comm divides the work among the ranks, although they repeat the serial run otherwise."""
    repeats = os.environ.pop(REPLICATE, None) if really else None
    try:
        yield
    finally:
        if repeats is not None:
            os.environ[REPLICATE] = repeats


class Totals:
    """Follows which data the script reads last, and what it had counted before it came to an evaluation.

    What every rank counted of the repeated training is the sum already; what it counted of an evaluation is not.
    """

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self.trained: set[int] = set()  # loaders
        self.read: int | None = None  # the loader of the last batch
        self.learns = False  # gradients may be computed with it
        self._counted: dict[tuple[CodeType, str], float] = {}

    @property
    def evaluates(self) -> bool:
        """Whether what was read last is not trained on."""
        begins = self.learns and not self.trained  # the first batch of all, whose backward is still to come
        return self.read is not None and self.read not in self.trained and not begins

    def begin(self) -> None:
        """Note, where an epoch follows training, what was counted before it."""
        if self.evaluates:
            return
        self._counted = {}
        frame = user_frame()
        while frame is not None:
            for name, value in frame.f_locals.items():
                if (number := _count(value)) is not None:
                    self._counted[frame.f_code, name] = number
            frame = frame.f_back

    def over(self, loader: int, learns: bool = False) -> None:
        """Note that a pass over a loader came to its end: a rank whose share has no batch has gone through it, too."""
        if loader != self.read:
            self.read, self.learns = loader, learns

    def total(self, function: Callable[..., Any], *values: Any, **options: Any) -> tuple[Any, dict[str, Any]]:
        """Call ``total(value, ..)``; where ranks repeat the training, sum what is of an evaluation all the same."""
        evaluates = self.evaluates and not any(map(self._was_counted, values))
        with divided(evaluates and self.recorder.orders.training_shards is not None):
            result = function(*values, **options)
            local = number_of(values[0]) if len(values) == 1 else None
            return result, {"evaluates": evaluates, "local": local, "sum": number_of(result)}

    def _was_counted(self, value: Any) -> bool:
        """Tell whether a variable that the calling line names had this value before the evaluation began.

        0 tells nothing: a count begins with it, and stays so on a rank without a hit, or without a batch. Nor is a sum
        of those that were counted another one.
        """
        frame, number = user_frame(), number_of(value)
        if frame is None or not number:
            return False
        code, variables = frame.f_code, frame.f_locals
        names = re.findall(r"\w+", linecache.getline(code.co_filename, frame.f_lineno))
        return any(self._counted.get((code, name)) == number == _count(variables.get(name)) for name in names)


def _count(value: Any) -> float | None:
    """Return a number, or a tensor or array that is one, as a float; None of anything else."""
    return number_of(value) if isinstance(value, (int, float)) or hasattr(type(value), "ndim") else None
