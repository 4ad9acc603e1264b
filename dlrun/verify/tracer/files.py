"""What a script prints and which files it touches."""

from __future__ import annotations

import functools
import math
import os
import pickle
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import islice
from numbers import Real
from pathlib import Path
from typing import Any

from dlrun.apart import loose, outside
from dlrun.verify.tracer.recorder import Recorder, user_frame

NUMBERS = 200  # of what is saved that are noted at most
SMALL = 64  # elements of an array among it whose numbers are noted
STATES = ({"last_epoch", "_step_count"}, {"state", "param_groups"})  # of a schedule, of an optimizer: of its own steps


class Tee:
    """Standard output that is also noted, with the script's line that wrote it."""

    def __init__(self, recorder: Recorder, out: Any) -> None:
        self._recorder, self._out, self._begun = recorder, out, ""

    def write(self, text: str) -> int:
        """Write ``text``, and note the lines that it completes."""
        *lines, self._begun = (self._begun + text).split("\n")
        for line in lines:
            # Each run has a working folder of its own, which a script may print.
            self._recorder.note("print", text=line.replace(self._recorder.orders.scratch, "."))
        return int(self._out.write(text))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._out, name)


def install(recorder: Recorder) -> None:
    """Note prints and writes. A file about to be written is first cut loose from the user's own (``apart.loose``)."""
    sys.stdout = Tee(recorder, sys.stdout)
    runs, scratch = Path(recorder.orders.out).parent, recorder.orders.scratch
    # Known before the hook is: asking for it opens a file, under a lock.
    elsewhere = tempfile.gettempdir() + os.sep

    def tell(name: str, how: str, was: str) -> None:
        if user_frame() is None or Path(name).is_dir():  # a folder, in which a file without a name is written
            return
        here = name.startswith(scratch)
        for file in filter(None, () if here else (name, was)):
            outside.keep(file, runs)
        if here or not (name + os.sep).startswith(elsewhere):
            recorder.note("file", path=name, how=how, was=was)

    if torch := sys.modules.get("torch"):
        _note_stored(recorder, torch)
    loose.watch(scratch, tell)


def _note_stored(recorder: Recorder, torch: Any) -> None:
    """Note the numbers in what is saved, as the best accuracy beside a model, and batch norm's statistics."""
    for owner, name in ((torch, "save"), (pickle, "dump")):
        setattr(owner, name, _noting(recorder, getattr(owner, name)))


def _noting(recorder: Recorder, save: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(save)
    def noted(obj: Any, *args: Any, **kwargs: Any) -> Any:
        if found := dict(islice(_plain_numbers("", obj), NUMBERS)):
            recorder.note("stored", values=found)
        if not recorder.inside and (statistics := recorder.statistics()):
            recorder.note("plain save", statistics=statistics, **recorder.statistics_in(obj))
        return save(obj, *args, **kwargs)

    return noted


def _plain_numbers(name: str, value: Any, depth: int = 3) -> Iterator[tuple[str, float]]:
    """Yield numbers, those of small arrays and tensors, too, but for a dict of tensors alone: that is a model's."""
    if isinstance(value, Real) and not isinstance(value, bool):
        yield name, float(value)
    elif _is_array(value):
        if depth and math.prod(value.shape) <= SMALL:
            with suppress(RuntimeError, TypeError):  # a sparse one has no list
                yield from _plain_numbers(name, value.tolist(), value.ndim)
    elif isinstance(value, dict) and value and all(map(_is_array, value.values())):
        return
    elif isinstance(value, dict) and any(value.keys() >= keys for keys in STATES):
        return  # the rates and steps of ranks are judged by themselves
    elif depth and isinstance(value, (dict, list, tuple)):
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _plain_numbers(f"{name}[{key!r}]", item, depth - 1)


def _is_array(value: Any) -> bool:
    return hasattr(value, "tolist") and hasattr(value, "shape") and hasattr(value, "ndim")
