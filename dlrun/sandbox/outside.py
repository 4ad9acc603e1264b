"""The user's files that runs write to outside of their scratch folders: kept before that, put back when none runs.

Absolute paths, and packages that begin above the working folder, lead there. New files stay where they are made.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from hashlib import blake2b
from pathlib import Path

FOLDER = "outside"
CACHES = {".cache", ".config", ".keras", ".local", ".matplotlib", ".triton"}  # libraries' own, whoever calls them


def keep(file: str, runs: Path) -> None:
    """Copy a file to the folder of the ``runs``, unless one of them has done so, or it is a cache's or theirs."""
    path = Path(file).resolve()
    if CACHES & set(path.parts) or path.is_relative_to(runs.resolve()) or not path.is_file():
        return
    folder = runs / FOLDER
    folder.mkdir(exist_ok=True)
    with alone(folder):
        kept = folder / blake2b(os.fsencode(path), digest_size=8).hexdigest()
        if not kept.with_suffix(".path").exists():
            shutil.copy2(path, kept)
            kept.with_suffix(".path").write_bytes(os.fsencode(path))


def put_back(runs: Path) -> None:
    """Give the kept files back to where they were."""
    for name in (runs / FOLDER).glob("*.path"):
        path = Path(os.fsdecode(name.read_bytes()))
        with suppress(OSError):  # its folder is gone, say: the copy is left for who asked to --keep the runs
            path.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(name.with_suffix(""), path)
            name.with_suffix("").unlink()
            name.unlink()
    with suppress(OSError):
        (runs / FOLDER).rmdir()


class Watch:
    """Puts files back whenever the last of several runs at a time has ended."""

    def __init__(self) -> None:
        self._running, self._lock = 0, threading.Lock()

    @contextmanager
    def over(self, runs: Path) -> Iterator[None]:
        """A run is made."""
        with self._lock:
            self._running += 1
        try:
            yield
        finally:
            with self._lock:
                self._running -= 1
                if not self._running:
                    put_back(runs)


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Keep the other ranks and runs out of a folder: what one of them copies or links, no other may be writing to.

    The lock is a file beside it: no folder can be locked over NFS. A file system without locks has none.
    """
    descriptor = os.open(f"{folder}.lock", os.O_RDWR | os.O_CREAT, 0o644)
    try:
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
