"""What a script prints and which files it touches."""

from __future__ import annotations

import functools
import os
import shutil
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import Any

from dlrun.verify import outside
from dlrun.verify.tracer.recorder import Recorder, user_frame

NUMBERS = 200  # of what is saved that are noted at most
IGNORED = ("/dev/", "/proc/", "/sys/")
_here = threading.local()  # alone: this thread replaces links, which is noticed as writing, too


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
    """Note prints and writes. A file about to be written is first cut loose from the user's own (see ``own``)."""
    sys.stdout = Tee(recorder, sys.stdout)
    busy = False
    # Known before the hook is: asking for it opens a file, under a lock.
    ignored = (*IGNORED, tempfile.gettempdir() + os.sep)

    def wrote(path: Any, how: str, keep: bool = False, was: str = "") -> None:
        nonlocal busy
        if busy or not isinstance(path, (str, bytes, os.PathLike)):
            return
        name = os.path.abspath(os.fsdecode(path))  # noqa: PTH100 - links stay unresolved on purpose
        if name.startswith(IGNORED) or "__pycache__" in name:
            return
        busy = True
        try:
            here = name.startswith(recorder.orders.scratch)
            if not here and user_frame() is not None:
                for file in filter(None, (name, was)):
                    outside.keep(file, Path(recorder.orders.out).parent)
            if not here and (name + os.sep).startswith(ignored):
                return
            own(name, recorder.orders.scratch, keep)
            if user_frame() is not None:
                recorder.note("file", path=name, how=how, was=was)
        finally:
            busy = False

    def audit(event: str, args: tuple[Any, ...]) -> None:
        if event == "open":
            path, _, flags = args
            if flags is not None and flags & (os.O_WRONLY | os.O_RDWR):
                wrote(path, "write", keep=not flags & os.O_TRUNC)
        elif event == "os.rename":
            wrote(args[1], "write", was=os.path.abspath(os.fsdecode(args[0])))  # noqa: PTH100
        elif event in ("os.remove", "os.mkdir"):
            wrote(args[0], event.removeprefix("os."))

    sys.addaudithook(audit)
    if torch := sys.modules.get("torch"):
        for owner in (torch, torch.jit):
            _note_save(owner, "save", 1, "f", wrote)
        _note_stored(recorder, torch)
    if tf := sys.modules.get("tensorflow"):
        model = sys.modules["keras"].Model
        for owner, name, position, argument in (
            (model, "save", 1, "filepath"),
            (model, "save_weights", 1, "filepath"),
            (tf.train.Checkpoint, "save", 1, "file_prefix"),
            (tf.train.Checkpoint, "write", 1, "file_prefix"),
            (tf.saved_model, "save", 1, "export_dir"),
            (tf.compat.v1.train.Saver, "save", 2, "save_path"),
            (tf.compat.v1.summary.FileWriter, "__init__", 1, "logdir"),
        ):
            _note_save(owner, name, position, argument, wrote)


def _note_save(owner: Any, name: str, position: int, argument: str, wrote: Any) -> None:
    """Note a function that writes from C++: the file is the argument at this position, or of this name."""
    save = getattr(owner, name)

    @functools.wraps(save)
    def noted(*args: Any, **kwargs: Any) -> Any:
        wrote(args[position] if len(args) > position else kwargs.get(argument), "write")
        return save(*args, **kwargs)

    setattr(owner, name, noted)


def _note_stored(recorder: Recorder, torch: Any) -> None:
    """Note the plain numbers in what is saved, such as the best accuracy beside a model."""
    save = torch.save

    @functools.wraps(save)
    def noted(obj: Any, *args: Any, **kwargs: Any) -> Any:
        if found := dict(islice(_plain_numbers("", obj), NUMBERS)):
            recorder.note("stored", values=found)
        return save(obj, *args, **kwargs)

    torch.save = noted


def _plain_numbers(name: str, value: Any, depth: int = 3) -> Iterator[tuple[str, float]]:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        yield name, float(value)
    elif depth and isinstance(value, (dict, list, tuple)):
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _plain_numbers(f"{name}[{key!r}]", item, depth - 1)


def own(file: str | os.PathLike[str], under: str, keep: bool = False) -> None:
    """Replace links in the scratch folder ``under``, down to ``file``, by files and folders of its own.

    The user's files behind them stay as they are; ``keep``: what is in them is copied.
    """
    path, scratch = Path(os.path.abspath(file)), Path(under)  # noqa: PTH100 - links stay unresolved on purpose
    if not path.is_relative_to(scratch) or getattr(_here, "alone", False):
        return
    with _alone(under):
        for folder in reversed(path.parents):
            if folder.is_relative_to(scratch) and folder.is_symlink():
                behind = list(folder.resolve().iterdir())
                folder.unlink(missing_ok=True)
                folder.mkdir(exist_ok=True)
                for entry in behind:
                    with suppress(FileExistsError):  # what a rank has written since
                        (folder / entry.name).symlink_to(entry)
        if path.is_symlink():
            target = path.resolve()
            path.unlink(missing_ok=True)
            if keep and target.is_file() and not path.exists():
                shutil.copy2(target, path)


@contextmanager
def _alone(folder: str) -> Iterator[None]:
    """Keep the other ranks out, and let this thread replace links unnoticed."""
    with outside.alone(folder):
        _here.alone = True
        try:
            yield
        finally:
            _here.alone = False
