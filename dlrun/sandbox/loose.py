"""In the process of a run: whatever is about to be written is first cut loose from the user's own files."""

from __future__ import annotations

import functools
import os
import re
import shutil
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.parse import unquote

from dlrun.sandbox import outside
from dlrun.sandbox.imports import AfterImport

IGNORED = ("/dev/", "/proc/", "/sys/")
OnWrite = Callable[[str, str, str], None]  # (file, how, the name it had before)

# Functions that write out of Python's sight, in C++ or Rust: module -> (function, position of the file, its name).
WRITERS: dict[str, tuple[tuple[str, int, str], ...]] = {
    "torch": (("save", 1, "f"), ("jit.save", 1, "f")),
    "keras": (("Model.save", 1, "filepath"), ("Model.save_weights", 1, "filepath")),
    "tensorflow": (
        ("train.Checkpoint.save", 1, "file_prefix"),
        ("train.Checkpoint.write", 1, "file_prefix"),
        ("saved_model.save", 1, "export_dir"),
        ("compat.v1.train.Saver.save", 2, "save_path"),
        ("compat.v1.summary.FileWriter.__init__", 1, "logdir"),
    ),
    "safetensors.torch": (("save_file", 1, "filename"), ("save_model", 1, "filename")),
    "safetensors.numpy": (("save_file", 1, "filename"),),
    "safetensors.tensorflow": (("save_file", 1, "filename"),),
    "pyarrow.parquet": (("write_table", 1, "where"),),
    "pyarrow.feather": (("write_feather", 1, "dest"),),
    "cv2": (("imwrite", 0, "filename"),),
}
DATABASES = ("sqlite3", "sqlite3.dbapi2")
_CHANGES = re.compile(  # a statement of SQL
    r"\s*(insert|update|delete|replace|create|drop|alter|vacuum|reindex)\b|\s*with\b.*\b(insert|update|delete)\b",
    re.I | re.S,
)
_here = threading.local()  # alone: this thread replaces links, which is noticed as writing, too


def watch(root: str, tell: OnWrite) -> None:
    """From now on cut files below ``root`` loose before they are written to, and ``tell`` of every one before that."""
    busy = False

    def wrote(path: Any, how: str, keep: bool = False, was: str = "", told: bool = True) -> None:
        nonlocal busy
        if busy or not isinstance(path, (str, bytes, os.PathLike)):
            return
        name = os.path.abspath(os.fsdecode(path))  # noqa: PTH100 - links stay unresolved on purpose
        if name.startswith(IGNORED) or "__pycache__" in name or name == f"{root}.lock":
            return
        busy = True
        try:
            if told:
                tell(name, how, was)
            own(name, root, keep, itself=how == "write")
        finally:
            busy = False

    def audit(event: str, args: tuple[Any, ...]) -> None:
        if event == "open":
            path, _, flags = args
            if flags is not None and flags & (os.O_WRONLY | os.O_RDWR):
                wrote(path, "write", keep=not flags & os.O_TRUNC)
        elif event == "os.rename":
            wrote(args[1], "write", was=os.path.abspath(os.fsdecode(args[0])))  # noqa: PTH100
        elif event == "os.truncate":
            wrote(args[0], "write", keep=True)
        elif event == "sqlite3.connect":
            wrote(_in_file(args[0]), "write", keep=True, told=False)  # which it may be by what is executed there
        elif event in ("os.remove", "os.mkdir"):
            wrote(_in_folder(args[0], args[-1]), event.removeprefix("os."))

    sys.addaudithook(audit)
    databases = ((name, _follow_databases) for name in DATABASES)
    for name, follow in (*((name, _follow) for name in WRITERS), *databases, ("h5py", _follow_hdf5)):
        if module := sys.modules.get(name):
            follow(module, wrote)
        else:
            sys.meta_path.insert(0, AfterImport(name, functools.partial(follow, wrote=wrote)))


def _follow_databases(module: ModuleType, wrote: Callable[[Any, str], None]) -> None:
    """Notice the statements that change a database in a file."""
    connect = module.connect

    @functools.wraps(connect)
    def followed(database: Any, *args: Any, **kwargs: Any) -> Any:
        kept = connect(database, *args, **kwargs)
        file = _in_file(database)
        kept.set_trace_callback(lambda statement: wrote(file, "write") if _CHANGES.match(statement) else None)
        return kept

    module.connect = followed  # type: ignore[attr-defined]


def _follow_hdf5(module: ModuleType, wrote: Callable[..., None]) -> None:
    """Notice the files that are opened to be written: HDF5's library does it itself."""
    begin = module.File.__init__

    @functools.wraps(begin)
    def noticed(self: Any, name: Any, mode: str | None = "r", *args: Any, **kwargs: Any) -> None:
        if mode not in ("r", None):
            wrote(name, "write", keep=mode in ("a", "r+"))
        begin(self, name, mode, *args, **kwargs)

    module.File.__init__ = noticed


def _in_file(database: Any) -> str | None:
    """Return the file of an SQLite database; None of one in memory, and of one that is read alone."""
    name = os.fsdecode(database)
    path, _, said = name.removeprefix("file:").partition("?") if name.startswith("file:") else (name, "", "")
    apart = path in ("", ":memory:") or any(word in said for word in ("mode=memory", "mode=ro", "immutable=1"))
    return None if apart else os.path.abspath(unquote(path) if path != name else name)  # noqa: PTH100


def _in_folder(path: Any, descriptor: int) -> Any:
    """Return a path that is told from the folder of a descriptor, as ``shutil.rmtree`` does; None where unknown."""
    if descriptor == -1:
        return path
    with suppress(OSError):
        return os.path.join(os.readlink(f"/proc/self/fd/{descriptor}"), os.fsdecode(path))  # noqa: PTH115, PTH118
    return None


def _follow(module: ModuleType, wrote: Callable[[Any, str], None]) -> None:
    """Notice what the module's own writers are given."""
    for name, position, argument in WRITERS[module.__name__]:
        *way, last = name.split(".")
        with suppress(AttributeError):  # another version's
            _notice(functools.reduce(getattr, way, module), last, position, argument, wrote)


def _notice(owner: Any, name: str, position: int, argument: str, wrote: Callable[[Any, str], None]) -> None:
    write = getattr(owner, name)

    @functools.wraps(write)
    def noticed(*args: Any, **kwargs: Any) -> Any:
        wrote(args[position] if len(args) > position else kwargs.get(argument), "write")
        return write(*args, **kwargs)

    setattr(owner, name, noticed)


def own(file: str | os.PathLike[str], under: str, keep: bool = False, itself: bool = True) -> None:
    """Replace links in the folder ``under``, down to ``file``, by files and folders of its own.

    The user's files behind them stay as they are; ``keep``: what is in them is copied. What is removed, or is a folder
    already where one is made, is not replaced ``itself``.
    """
    path, root = Path(os.path.abspath(file)), Path(under)  # noqa: PTH100 - links stay unresolved on purpose
    if not path.is_relative_to(root) or getattr(_here, "alone", False):
        return
    with _alone(root):
        for folder in reversed(path.parents):
            if folder.is_relative_to(root) and folder.is_symlink():
                behind = list(folder.resolve().iterdir())
                folder.unlink(missing_ok=True)
                folder.mkdir(exist_ok=True)
                for entry in behind:
                    with suppress(FileExistsError):  # what a rank has written since
                        (folder / entry.name).symlink_to(entry)
        if itself and path.is_symlink():
            target = path.resolve()
            path.unlink(missing_ok=True)
            if keep and target.is_file() and not path.exists():
                shutil.copy2(target, path)


@contextmanager
def _alone(root: Path) -> Iterator[None]:
    """Keep the other ranks out, and let this thread replace links unnoticed."""
    _here.alone = True
    try:
        with outside.alone(root):
            yield
    finally:
        _here.alone = False
