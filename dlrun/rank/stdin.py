"""A script's standard input: that of ``dlrun launch`` on one rank, and only as it is read; an empty one on the others.

Nothing is taken from a terminal, or from the file of a shell's loop, that the script does not ask for: its first
reading asks the watcher, which asks ``dlrun launch`` for a piece, and for the next once that is read.
"""

from __future__ import annotations

import contextlib
import io
import os
import select
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any


class _OnDemand(io.RawIOBase):
    """What ``fd`` holds; ``ask`` is called before the first reading. ``fd`` is then the process's file 0, too."""

    def __init__(self, fd: int, ask: Callable[[], None]) -> None:
        self.fd, self.ask, self.asked, self.name = fd, ask, False, "<stdin>"

    def readable(self) -> bool:
        return True

    def fileno(self) -> int:
        """Return 0. Who asks may read from it unseen; a module that is being imported (rich) only notes the number."""
        if _importing():
            os.dup2(self.fd, 0)
        else:
            self._asks()
        return 0

    def readinto(self, buffer: Any) -> int:
        self._asks()
        data = os.read(0, len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def _asks(self) -> None:
        if not self.asked:
            self.asked = True
            os.dup2(self.fd, 0)
            self.ask()


def _importing() -> bool:
    """Return whether a module is being imported."""
    frame: FrameType | None = sys._getframe()
    while frame is not None and frame.f_code.co_filename != "<frozen importlib._bootstrap>":
        frame = frame.f_back
    return frame is not None


def install(fd: int, ask: Callable[[], None]) -> None:
    """Have ``sys.stdin`` read ``fd``, and ``ask`` first."""
    raw: Any = _OnDemand(fd, ask)  # a stream whose file is not read directly
    old = sys.stdin
    sys.stdin = sys.__stdin__ = io.TextIOWrapper(  # type: ignore[misc]
        io.BufferedReader(raw), encoding=getattr(old, "encoding", None), errors=getattr(old, "errors", None)
    )


class Feed:
    """The watcher's side: the pipe into a script's standard input, a piece at a time."""

    def __init__(self, fd: int, poll: select.poll, ask: Callable[[], None]) -> None:
        self.fd, self.poll, self.ask, self.left = fd, poll, ask, b""
        os.set_blocking(fd, False)

    def take(self, data: bytes) -> None:
        """Hand on what has come; nothing is the end."""
        if self.fd < 0:
            return
        if not data:
            self.close()
            return
        self.left = data
        self.write()

    def write(self) -> None:
        """Write what the pipe takes; ask for more once all is there."""
        try:
            self.left = self.left[os.write(self.fd, self.left) :]
        except BlockingIOError:
            pass
        except BrokenPipeError:
            self.close()
            return
        if self.left:
            self.poll.register(self.fd, select.POLLOUT)
        else:
            self._rest()
            self.ask()

    def close(self) -> None:
        """End it."""
        self._rest()
        if self.fd >= 0:
            os.close(self.fd)
        self.fd, self.left = -1, b""

    def _rest(self) -> None:
        with contextlib.suppress(KeyError):
            self.poll.unregister(self.fd)
