"""What of the ranks' output is shown, and how."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable

from dlrun.rank import wire

OnLine = Callable[[int, str, str], None]


class Console:
    """Shows what ranks write: the only one as it comes, byte by byte; several by line, each with its rank."""

    def __init__(self, show: tuple[int, ...], on_line: OnLine | None) -> None:
        self.label = len(show) > 1
        self.on_line = on_line
        self.partial: dict[tuple[int, bytes], bytes] = {}
        self.last = b""  # what was written last

    def show(self, rank: int, kind: bytes, data: bytes) -> None:
        """Show, or hand to ``on_line(rank, "out" | "err", line)``, what a rank wrote."""
        if not self.label and self.on_line is None:
            self._write(kind, data)
            return
        whole = self.partial.pop((rank, kind), b"") + data
        *lines, rest = whole.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
        for line in lines:
            self._line(rank, kind, line)
        if rest:
            self.partial[rank, kind] = rest

    def close(self) -> None:
        """Show the lines that were never finished."""
        for (rank, kind), line in self.partial.items():
            self._line(rank, kind, line)
        self.partial.clear()

    def end_line(self) -> None:
        """Begin a new line for dlrun's own words, where a rank has left one unfinished."""
        if self.last not in (b"", b"\n"):
            self._write(wire.ERR, b"\n")

    def _line(self, rank: int, kind: bytes, line: bytes) -> None:
        if self.on_line:
            self.on_line(rank, "out" if kind == wire.OUT else "err", line.decode(errors="replace"))
        else:
            self._write(kind, b"[%d] %s\n" % (rank, line))

    def _write(self, kind: bytes, data: bytes) -> None:
        stream = sys.stdout if kind == wire.OUT else sys.stderr
        stream.flush()
        self.last = data[-1:]
        with contextlib.suppress(BrokenPipeError):
            while data:
                data = data[os.write(stream.fileno(), data) :]


def complain(refusal: str, said: bytes) -> None:
    """Say why the job could not be, and the last of what the launcher ``said``."""
    print(f"dlrun: {refusal}", file=sys.stderr)
    for line in said.decode(errors="replace").strip().splitlines()[-20:]:
        print(f"  | {line}", file=sys.stderr)
