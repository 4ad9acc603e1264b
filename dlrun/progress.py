"""What is being done and how long is left: one line that is rewritten on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import IO

QUIET = 2.0  # seconds for which nothing needs to be said


def span(seconds: float) -> str:
    """75 -> '1 min 15 s'."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


class Progress:
    """Tells on stderr how far a list of `total` equal steps is.

    On a terminal one line is rewritten. Elsewhere the first line comes after `QUIET` seconds, and at most one every
    `pace` seconds. At the end of a ``with`` block, by an error, too, that line is taken away.
    """

    def __init__(
        self,
        total: float,
        stream: IO[str] | None = None,
        pace: float = 10.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.total, self.stream, self.pace, self.clock = total, stream or sys.stderr, pace, clock
        self.terminal = self.stream.isatty()
        self.began = clock()
        self.due = self.began + QUIET
        self.shown = False

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *error: object) -> None:
        self.clear()

    def at(self, done: float, what: str) -> None:
        """`done` of `total` steps are behind us, and `what` comes now."""
        left = (self.clock() - self.began) / done * (self.total - done) if done else None
        rest = f", about {span(left)} left" if left is not None else ""
        self.say(f"{100 * done / self.total:3.0f} %  {what}{rest}")

    def say(self, text: str) -> None:
        """Show what is being done, in words of one's own."""
        now = self.clock()
        if self.terminal:
            import shutil  # costs 4 ms, and every launch loads this file

            width = shutil.get_terminal_size().columns
            self.stream.write(f"\r\033[K{text if len(text) < width else text[: width - 4] + '...'}")
            self.shown = True
        elif now >= self.due:
            self.due = now + self.pace
            self.stream.write(f"dlrun: {text.strip()}\n")
        self.stream.flush()

    def clear(self) -> None:
        """Take the line away again, before something else is printed."""
        if self.shown:
            self.stream.write("\r\033[K")
            self.stream.flush()
            self.shown = False


@contextmanager
def working(what: str, stream: IO[str] | None = None) -> Iterator[None]:
    """Say `what` is being done, and for how long already, while the block runs for more than `QUIET` seconds."""
    progress, over = Progress(1, stream), threading.Event()

    def tell() -> None:
        while not over.wait(QUIET if not progress.shown else 1.0):
            progress.say(f"{what}, {span(progress.clock() - progress.began)} so far")

    teller = threading.Thread(target=tell, daemon=True)
    teller.start()
    try:
        yield
    finally:
        over.set()
        teller.join()
        progress.clear()
