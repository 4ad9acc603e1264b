"""What a script prints and which files it touches."""

from __future__ import annotations

import functools
import math
import os
import pickle
import sys
import tempfile
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import islice
from numbers import Real
from pathlib import Path
from types import ModuleType
from typing import Any

from dlrun.sandbox import loose, outside
from dlrun.sandbox.imports import AfterImport
from dlrun.verify.tracer.recorder import Recorder, is_of_user, is_user_file, user_frame

NUMBERS, MOST, DEPTH = 200, 2000, 5  # entries of a list, numbers of all that is saved, and how deep they lie, at most
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


class Errors(Tee):
    """Standard error: noted is what the script's own lines write there, or print with ``dl_comm``.

    What libraries show is not: progress bars, warnings, and the messages of loggers, which are noted elsewhere.
    """

    def write(self, text: str) -> int:
        """Write ``text``, and note the lines that it completes where they are the script's."""
        caller = sys._getframe(1)
        theirs = is_user_file(caller.f_code.co_filename) or caller.f_code.co_name == "print"
        return super().write(text) if theirs else int(self._out.write(text))


def install(recorder: Recorder) -> None:
    """Note prints and writes. A file about to be written is first cut loose from the user's own (``sandbox.loose``)."""
    sys.stdout, sys.stderr = Tee(recorder, sys.stdout), Errors(recorder, sys.stderr)
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

    _note_stored(recorder)
    loose.watch(scratch, tell)


def _note_stored(recorder: Recorder) -> None:
    """Note the numbers in what is saved, as the best accuracy beside a model, and batch norm's statistics."""
    pickle.dumps = _noting(recorder, pickle.dumps, of_user=True)  # others send by it
    owners = [(pickle, "dump")] + ([(torch, "save")] if (torch := sys.modules.get("torch")) else [])
    for owner, name in owners:
        setattr(owner, name, _noting(recorder, getattr(owner, name)))
    for library in ("joblib", "dill", "cloudpickle"):
        follow = functools.partial(_follow_dump, recorder)
        if module := sys.modules.get(library):
            follow(module)
        else:
            sys.meta_path.insert(0, AfterImport(library, follow))


def _follow_dump(recorder: Recorder, module: ModuleType) -> None:
    module.dump = _noting(recorder, module.dump)  # type: ignore[attr-defined]


def _noting(recorder: Recorder, save: Callable[..., Any], of_user: bool = False) -> Callable[..., Any]:
    """Return ``save``, noting what it is given; ``of_user``: by the script itself."""
    torch = sys.modules.get("torch")
    own = str(Path(torch.__file__).parent) + os.sep if torch and torch.__file__ else ""

    @functools.wraps(save)
    def noted(obj: Any, *args: Any, **kwargs: Any) -> Any:
        caller = sys._getframe(1).f_code.co_filename
        if (own and caller.startswith(own)) or (of_user and not is_user_file(caller)):  # PyTorch pickles a tensor
            return save(obj, *args, **kwargs)
        found, kept = dict(islice(_plain_numbers("", obj), MOST)), _bits_of_tensors(obj) if torch else {}
        if found or kept:
            recorder.note("stored", values=found, kept=kept)
        if not recorder.inside and (statistics := recorder.statistics()):
            recorder.note("plain save", statistics=statistics, **recorder.statistics_in(obj))
        return save(obj, *args, **kwargs)

    return noted


def _bits_of_tensors(obj: Any) -> dict[str, str]:
    """Return a hash of each tensor of fractions, by its name in what is saved, as in a model's state."""
    from dlrun.verify.tracer.tensors import digest, named_tensors

    return {name: digest(tensor) for name, tensor in named_tensors("", obj) if tensor.is_floating_point()}


def _plain_numbers(name: str, value: Any, depth: int = DEPTH) -> Iterator[tuple[str, float]]:
    """Yield numbers, those of small arrays and tensors, too, of others how large they are, and how many a list has.

    None of a dict of tensors that is a model's.
    """
    if isinstance(value, Real) and not isinstance(value, bool):
        yield name, float(value)
    elif _is_array(value):
        if value.ndim == 1:
            yield f"length of {name}", float(len(value))
        if depth and math.prod(value.shape) <= SMALL:
            with suppress(RuntimeError, TypeError):  # a sparse one has no list
                yield from _of_array(name, value.tolist(), depth)
        elif depth:
            yield from _of_many(name, value)
    elif isinstance(value, dict) and value and all(map(_is_tensor, value.values())) and _is_model(value):
        return
    elif isinstance(value, dict) and any(value.keys() >= keys for keys in STATES):
        return  # the rates and steps of ranks are judged by themselves
    elif isinstance(value, (list, tuple, deque)):
        yield f"length of {name}", float(len(value))
        yield from _entries(name, value, depth)
    elif hasattr(value, "columns") and hasattr(value, "to_dict"):  # a table
        yield from _plain_numbers(name, value.to_dict("list"), depth)
    elif isinstance(value, dict) or (hasattr(value, "__dict__") and not callable(value) and is_of_user(value)):
        yield from _entries(name, value if isinstance(value, dict) else vars(value), depth)


def _entries(name: str, value: Any, depth: int) -> Iterator[tuple[str, float]]:
    entries = value.items() if isinstance(value, dict) else islice(enumerate(value), NUMBERS)
    for key, item in entries if depth else ():
        yield from _plain_numbers(f"{name}[{key!r}]", item, depth - 1)


def _of_array(name: str, value: Any, depth: int) -> Iterator[tuple[str, float]]:
    if isinstance(value, list):
        for place, item in enumerate(value):
            yield from _of_array(f"{name}[{place}]", item, depth)
    else:  # one of objects holds such as a dict
        yield from _plain_numbers(name, value, depth - 1)


def _of_many(name: str, value: Any) -> Iterator[tuple[str, float]]:
    """Yield the mean magnitude of an array: its sum may be nothing but rounding."""
    with suppress(AttributeError, RuntimeError, TypeError, ValueError):  # of texts, or objects
        numbers = value.detach().double() if _is_tensor(value) else value.astype("float64")
        yield f"mean magnitude of {name}", float(abs(numbers).mean())


def _is_model(tensors: dict[str, Any]) -> bool:
    """Whether a dict of tensors is a model's: it comes from one, or has matrices among them, as layers do."""
    return hasattr(tensors, "_metadata") or any(tensor.requires_grad or tensor.ndim > 1 for tensor in tensors.values())


def _is_tensor(value: Any) -> bool:
    return _is_array(value) and hasattr(value, "detach")


def _is_array(value: Any) -> bool:
    return hasattr(value, "tolist") and hasattr(value, "shape") and hasattr(value, "ndim")
