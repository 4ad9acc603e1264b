"""What is being done and how long is left: one line that is rewritten on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from typing import IO


def span(seconds: float) -> str:
    """75 -> '1 min 15 s'."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


class Progress:
    """Tells on stderr how far a list of `total` equal steps is. A plain line comes at most every `pace` seconds."""

    def __init__(self, total: float, stream: IO[str] | None = None, pace: float = 10.0) -> None:
        self.total, self.stream, self.pace = total, stream or sys.stderr, pace
        self.terminal = self.stream.isatty()
        self.began = self.told = time.monotonic()

    def at(self, done: float, what: str) -> None:
        """`done` of `total` steps are behind us, and `what` comes now."""
        now = time.monotonic()
        if not self.terminal and now - self.told < self.pace:
            return
        self.told = now
        left = (now - self.began) / done * (self.total - done) if done else None
        text = f"{100 * done / self.total:3.0f} %  {what}" + (f", about {span(left)} left" if left is not None else "")
        self.stream.write(f"\r\033[K{text}" if self.terminal else f"dlrun: {text}\n")
        self.stream.flush()

    def clear(self) -> None:
        """Take the line away again, before something else is printed."""
        if self.terminal:
            self.stream.write("\r\033[K")
            self.stream.flush()
