"""Checkpoints: rank 0 writes, everybody reads."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch

from dl_comm.rank0 import is_alone
from dl_comm.ranks import barrier, is_rank0

_PREFIX = ".saving-"
_NEW_S = 10.0


def save(obj: Any, f: Any, *args: Any, **kwargs: Any) -> None:
    """``torch.save`` on rank 0; the other ranks return at once.

    A file named by a path appears complete or not at all: it has no name until it is whole (the bytes are those of
    ``torch.save``), and is then moved into place. A file object is written directly.
    Call ``load``, or ``barrier``, before another rank reads the file.
    """
    if not is_rank0():
        return
    target = Path(os.path.realpath(f)) if isinstance(f, (str, os.PathLike)) else None
    if target is None or (target.exists() and not target.is_file()) or not os.access(target.parent, os.W_OK):
        # A file object, a device or pipe, or a folder that takes no new file: torch.save's own behaviour and errors.
        torch.save(obj, f, *args, **kwargs)
        return
    with _unnamed(target) if _holds_unnamed(target.parent) else _hidden(target) as (written, space):
        try:
            torch.save(obj, written, *args, **kwargs)
        except RuntimeError:
            _check_space(space, target)
            raise


@contextmanager
def _unnamed(target: Path) -> Iterator[tuple[Path, int]]:
    """Yield a path to write ``target`` by, and a descriptor of the same file, which has no name before it is whole.

    So nothing of it is left, however this process ends. The path ends in the target's own name, which torch writes into
    the file; it is a link, and lies in the run directory of ``dlrun launch``, which removes it, or a temporary one.
    """
    beside = Path(os.environ.get("DLRUN_RUN_DIR", tempfile.gettempdir()))
    with _folder(beside) as folder, _closing(_open_unnamed(target.parent)) as fd:
        written = folder / target.name
        written.symlink_to(f"/proc/{os.getpid()}/fd/{fd}")
        yield written, fd
        if target.exists():
            os.fchmod(fd, target.stat().st_mode & 0o7777)
        with _closing(os.open(target.parent, os.O_RDONLY | os.O_DIRECTORY)) as into:  # with it, os.link follows links
            os.link(f"/proc/self/fd/{fd}", folder.name, dst_dir_fd=into)
        target.with_name(folder.name).replace(target)


@contextmanager
def _hidden(target: Path) -> Iterator[tuple[Path, int]]:
    """Yield the same where a file needs a name: in a hidden folder."""
    with _folder(target.parent) as folder, Path(folder, "space").open("wb") as space:
        written = folder / target.name
        yield written, space.fileno()
        if target.exists():
            written.chmod(target.stat().st_mode & 0o7777)
        written.replace(target)


@contextmanager
def _folder(parent: Path) -> Iterator[Path]:
    """Yield a hidden folder in ``parent`` while the block runs; if this process dies, the next save removes it.

    A lock, which ends with its process, tells a folder that is in use.
    """
    for left in parent.glob(f"{_PREFIX}*"):
        with suppress(OSError), _closing(os.open(left, os.O_RDONLY | os.O_DIRECTORY)) as lock:
            if time.time() - os.fstat(lock).st_mtime < _NEW_S:  # it may be about to be locked
                continue
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(left)
    with tempfile.TemporaryDirectory(prefix=_PREFIX, dir=parent, ignore_cleanup_errors=True) as folder:
        lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        with suppress(OSError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with _closing(lock):
            yield Path(folder)


@contextmanager
def _closing(fd: int) -> Iterator[int]:
    try:
        yield fd
    finally:
        os.close(fd)


def _open_unnamed(folder: Path) -> int:
    return os.open(folder, os.O_RDWR | os.O_TMPFILE, 0o666)


def _holds_unnamed(folder: Path) -> bool:
    """Return whether files without a name can be made there, and be written by a path: not by NFS, say."""
    try:
        with _closing(_open_unnamed(folder)) as fd:
            return os.access(f"/proc/{os.getpid()}/fd/{fd}", os.W_OK)
    except OSError:
        return False


def _check_space(fd: int, target: Path) -> None:
    """Raise the OSError of a full disk, where that is why torch could not write: its own error does not say so."""
    try:
        os.pwrite(fd, bytes(1 << 20), os.fstat(fd).st_size)
    except OSError as error:
        raise OSError(error.errno, f"{error.strerror}: the checkpoint was not written", str(target)) from None


def load(f: Any, *args: Any, **kwargs: Any) -> Any:
    """Wait for all ranks, then ``torch.load`` on every one of them: what rank 0 saved before is complete.

    The arguments are ``torch.load``'s. All ranks must call it; a rank in a turn of its own (``rank0_first``) waits for
    nobody.
    """
    if not is_alone():
        barrier()
    return torch.load(f, *args, **kwargs)
