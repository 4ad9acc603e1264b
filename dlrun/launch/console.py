"""What of the ranks' output is shown, and how."""

from __future__ import annotations

import io
import os
import select
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import IO, TextIO

from dlrun.launch.alike import Alike
from dlrun.rank import wire

OnLine = Callable[[int, str, str], None]

_LONG = 1 << 20  # bytes: a longer line is broken where it is to be shown whole, for it may never end
_PACE = {True: 1.0, False: 10.0}  # seconds between two states of a progress bar that are shown, on a terminal or not


class Console:
    """Shows what ranks write: the only one as it comes, byte by byte; several by line, each with the ranks that say it.

    Where nothing can be overwritten (several ranks, a file) a progress bar is shown now and then, and as it last stood.
    """

    def __init__(self, show: tuple[int, ...], on_line: OnLine | None, copy: IO[bytes] | None = None) -> None:
        self.label = len(show) > 1
        self.copy = Copy(copy, show) if copy else None
        self.alike = Alike(show, self._write)
        self.on_line = on_line
        self.partial: dict[tuple[int, bytes], bytes] = {}
        self.streams: dict[tuple[int, bytes], Folded] = {}
        self.complained = False
        self.last = (wire.ERR, b"")  # the stream that was written to last, and the last byte

    def show(self, rank: int, kind: bytes, data: bytes) -> None:
        """Show, or hand to ``on_line(rank, "out" | "err", line)``, what a rank wrote; and copy it."""
        if self.copy:
            self.copy.take(rank, kind, data)
        if self.on_line:
            self._hand_over(self.on_line, rank, kind, data)
            return
        terminal = _stream(kind).isatty()
        if terminal and not self.label:
            self._write(kind, data)
            return
        stream = self.streams.setdefault((rank, kind), Folded(_PACE[terminal], whole_lines=self.label))
        for text in stream.feed(data, time.monotonic()):
            if self.label:
                self.alike.take(rank, kind, text)
            else:
                self._write(kind, text)

    @property
    def due(self) -> float:
        """When :meth:`pass_on` has something to show."""
        return min(self.alike.due, self.copy.alike.due if self.copy else float("inf"))

    def pass_on(self) -> None:
        """Show lines that others have not said, too, in time."""
        self.alike.pass_on()
        if self.copy:
            self.copy.alike.pass_on()

    def close(self) -> None:
        """Show the lines that were never finished."""
        if self.copy:
            self.copy.close()
        for (rank, kind), stream in self.streams.items():
            rest = stream.unfinished()
            if rest and self.label:
                self.alike.take(rank, kind, rest + b"\n")
            elif rest:
                self._write(kind, rest)
        self.alike.pass_on(at_once=True)
        self.streams.clear()
        for (rank, kind), line in self.partial.items():
            if self.on_line:
                self.on_line(rank, _name(kind), line.decode(errors="replace"))
        self.partial.clear()

    def end_line(self) -> None:
        """Begin a new line for dlrun's own words, where a rank has left one unfinished."""
        kind, byte = self.last
        if byte not in (b"", b"\n"):
            self._write(kind, b"\n")

    def _hand_over(self, on_line: OnLine, rank: int, kind: bytes, data: bytes) -> None:
        """Hand over every line, and every state of a progress bar."""
        whole = self.partial.pop((rank, kind), b"") + data
        *lines, rest = whole.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
        for line in lines:
            on_line(rank, _name(kind), line.decode(errors="replace"))
        if len(rest) > _LONG:
            on_line(rank, _name(kind), rest.decode(errors="replace"))
        elif rest:
            self.partial[rank, kind] = rest

    def _write(self, kind: bytes, data: bytes) -> None:
        stream = _stream(kind)
        stream.flush()
        self.last = (kind, data[-1:])
        if not isinstance(stream, io.TextIOWrapper):  # a notebook's cell: what its file takes goes elsewhere
            stream.write(data.decode(errors="replace"))
            return
        try:
            while data:
                try:
                    data = data[os.write(stream.fileno(), data) :]
                except BlockingIOError:  # whoever reads has asked for this; he reads on some time
                    select.select([], [stream], [])
        except BrokenPipeError:  # `| head` has seen enough
            pass
        except OSError as error:
            self._cannot(error)

    def _cannot(self, error: OSError) -> None:
        """Say once that output cannot be shown: a full disk, or a terminal that is gone, ends no training."""
        if not self.complained:
            self.complained = True
            why = f"cannot be shown here ({error.strerror}); the job goes on, and its logs hold it"
            print(f"dlrun: what the ranks write {why}", file=sys.stderr, flush=True)


class Copy:
    """A file that what is shown goes to, too: as it is shown where nothing can be overwritten."""

    def __init__(self, file: IO[bytes], show: tuple[int, ...]) -> None:
        self.file, self.label = file, len(show) > 1
        self.alike = Alike(show, lambda kind, text: self._write(text))
        self.streams: dict[tuple[int, bytes], Folded] = {}

    def take(self, rank: int, kind: bytes, data: bytes) -> None:
        """Write what a rank wrote."""
        stream = self.streams.setdefault((rank, kind), Folded(_PACE[False], whole_lines=self.label))
        for text in stream.feed(data, time.monotonic()):
            self._take(rank, kind, text)

    def close(self) -> None:
        """Write the lines that were never finished, and close the file."""
        for (rank, kind), stream in self.streams.items():
            if rest := stream.unfinished():
                self._take(rank, kind, rest + b"\n" * self.label)
        self.alike.pass_on(at_once=True)
        with suppress(OSError):
            self.file.close()

    def _take(self, rank: int, kind: bytes, text: bytes) -> None:
        if self.label:
            self.alike.take(rank, kind, text)
        else:
            self._write(text)

    def _write(self, text: bytes) -> None:
        try:
            self.file.write(text)
        except (OSError, ValueError) as error:  # ValueError: closed below
            if not self.file.closed:
                self.file.close()
                why = error.strerror if isinstance(error, OSError) else str(error)
                print(f"dlrun: {self.file.name} cannot be written ({why}); the job goes on", file=sys.stderr)


class Folded:
    """A stream of text with progress bars, as it is shown where nothing can be overwritten.

    Plain text passes at once (by ``whole_lines`` where so asked). Of a line that a carriage return begins anew, only a
    state every ``pace`` seconds passes, and the last one.
    """

    def __init__(self, pace: float, whole_lines: bool) -> None:
        self.pace, self.whole_lines = pace, whole_lines
        self.rest = b""  # of the unfinished line, what has not been shown; of a bar its state
        self.bar = False
        self.open = False  # whether the beginning of the unfinished line has been shown
        self.told = b""  # the state that was shown last
        self.due = 0.0

    def feed(self, data: bytes, now: float) -> Iterator[bytes]:
        """Yield what of ``data`` is to be shown, by lines."""
        *lines, last = data.replace(b"\r\n", b"\n").split(b"\n")
        for line in lines:
            yield from self._take(line, True, now)
        if last:
            yield from self._take(last, False, now)

    def unfinished(self) -> bytes:
        """Return what is left at the end."""
        rest = _state(self.rest)
        return b"" if self.bar and rest == self.told else rest

    def _take(self, text: bytes, ends: bool, now: float) -> Iterator[bytes]:
        if not self.bar and b"\r" in text and self.open:
            yield b"\n"
        self.bar = self.bar or b"\r" in text
        self.rest += text
        if self.bar:
            self.rest = self.rest[self.rest.rstrip(b"\r").rfind(b"\r") + 1 :]
            state = _state(self.rest)
            if state.strip() and (ends or now >= self.due) and state != self.told:
                yield state + b"\n"
                self.told, self.due = state, now + self.pace
        elif ends or not self.whole_lines or len(self.rest) > _LONG:
            yield self.rest + b"\n" * (ends or self.whole_lines)
            self.rest, self.open = b"", True
        if ends:
            self.rest, self.told, self.bar, self.open = b"", b"", False, False


def complain(refusal: str, hint: str, said: bytes) -> None:
    """Say why the job could not be, what to do about it, if that is known, and what the launcher said."""
    print(f"dlrun: {refusal}", *([f"  {hint}"] if hint else []), sep="\n", file=sys.stderr)
    lines = said.decode(errors="replace").strip().splitlines()
    if len(lines) > 20:  # the first say what happened, the last what that means
        lines = [*lines[:4], "...", *lines[-15:]]
    for line in lines:
        print(f"  | {line}", file=sys.stderr)


def _state(line: bytes) -> bytes:
    """Return a progress bar's line as a terminal would show it."""
    return line.rstrip(b"\r").rpartition(b"\r")[2]


def _stream(kind: bytes) -> TextIO:
    return sys.stdout if kind == wire.OUT else sys.stderr


def _name(kind: bytes) -> str:
    return "out" if kind == wire.OUT else "err"
