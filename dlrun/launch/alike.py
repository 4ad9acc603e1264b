"""Lines of several ranks: what all of them say alike is shown once."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable

_WAITS = 0.3  # seconds that a line has to be said by the others, too
_MOST = 1000  # lines of a rank that wait


class Alike:
    """Puts before each line the ranks that say it: ``[all]``, ``[0]``, ``[0,2]``. Each rank's lines stay in order.

    A line waits until all of ``ranks`` have said it, or for a moment; ``due`` is when :meth:`pass_on` has to be called.
    """

    def __init__(self, ranks: tuple[int, ...], write: Callable[[bytes, bytes], None]) -> None:
        self.ranks, self.write = ranks, write
        self.due = float("inf")
        self._streams: dict[bytes, dict[int, _Lines]] = {}

    def take(self, rank: int, kind: bytes, line: bytes) -> None:
        """Take a line of a rank."""
        lines = self._streams.setdefault(kind, {each: _Lines() for each in self.ranks})[rank]
        lines.add(line, time.monotonic())
        self.pass_on()

    def pass_on(self, at_once: bool = False) -> None:
        """Write what waits no longer."""
        now, self.due = time.monotonic(), float("inf")
        for kind, streams in self._streams.items():
            while ready := self._ready(streams, now, at_once):
                label = b"all" if len(ready) == len(self.ranks) else b",".join(b"%d" % rank for rank in ready)
                line = {streams[rank].pop() for rank in ready}.pop()
                self.write(kind, b"[%s] %s" % (label, line))
            waiting = [lines.since + _WAITS for lines in streams.values() if lines.first is not None]
            self.due = min([self.due, *waiting])

    def _ready(self, streams: dict[int, _Lines], now: float, at_once: bool) -> list[int]:
        """Return the ranks whose next line is to be written, one for all of them; none: all lines wait."""
        for lines in sorted(streams.values(), key=lambda lines: lines.since):
            line = lines.first
            if line is None:
                break
            said = [rank for rank, other in streams.items() if other.first == line]
            others = [other for rank, other in streams.items() if rank not in said]
            never = all(other.first is not None and not other.holds(line) for other in others)
            if never or at_once or now >= lines.since + _WAITS or len(lines) > _MOST:
                return said
        return []


class _Lines:
    """The lines of one rank that wait."""

    def __init__(self) -> None:
        self._lines: deque[tuple[bytes, float]] = deque()
        self._counts: Counter[bytes] = Counter()

    def __len__(self) -> int:
        return len(self._lines)

    @property
    def first(self) -> bytes | None:
        """The next line."""
        return self._lines[0][0] if self._lines else None

    @property
    def since(self) -> float:
        """Since when it waits."""
        return self._lines[0][1] if self._lines else float("inf")

    def holds(self, line: bytes) -> bool:
        """Return whether the line is among them."""
        return line in self._counts

    def add(self, line: bytes, now: float) -> None:
        self._lines.append((line, now))
        self._counts[line] += 1

    def pop(self) -> bytes:
        line, _ = self._lines.popleft()
        self._counts[line] -= 1
        if not self._counts[line]:
            del self._counts[line]
        return line
