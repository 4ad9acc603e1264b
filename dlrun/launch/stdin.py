"""The standard input of ``dlrun launch``, handed to one rank piece by piece, as its script reads it."""

from __future__ import annotations

import os
import selectors
import stat
import time
from collections.abc import Callable
from pathlib import Path

_PIECE = 1 << 16  # bytes
_LOOK_AGAIN = 1.0  # seconds


class Input:
    """What is left of file descriptor ``fd``; ``send`` takes a piece, b"" at its end.

    A terminal is read only while this is its foreground job: the system stops others that try.
    """

    def __init__(self, selector: selectors.BaseSelector, send: Callable[[bytes], None], fd: int = 0) -> None:
        self.selector, self.send, self.fd = selector, send, fd
        self.due = float("inf")  # when to see whether this is in the foreground
        try:
            mode = os.fstat(fd)
            self.empty = stat.S_ISCHR(mode.st_mode) and mode.st_rdev == Path(os.devnull).stat().st_rdev
        except OSError:
            self.empty = True
        self.terminal = not self.empty and os.isatty(fd)

    def wanted(self) -> None:
        """Send the next piece, once there is one."""
        if self.empty:
            self.send(b"")
            return
        self.due = float("inf")
        if self.terminal and not self._in_front():
            self.due = time.monotonic() + _LOOK_AGAIN
            return
        try:
            self.selector.register(self.fd, selectors.EVENT_READ, self._read)
        except PermissionError:  # a file, which can always be read
            self._read()
        except KeyError:  # it waits already
            pass

    def _read(self) -> None:
        if self.fd in self.selector.get_map():
            self.selector.unregister(self.fd)
        if self.terminal and not self._in_front():
            self.wanted()
            return
        try:
            data = os.read(self.fd, _PIECE)
        except OSError:
            data = b""
        self.send(data)

    def _in_front(self) -> bool:
        try:
            return os.tcgetpgrp(self.fd) == os.getpgrp()
        except OSError:
            return True
