"""Plain text: columns that line up, and numbers with the units that people read."""

from __future__ import annotations

import math
from collections.abc import Sequence


def seconds_as_text(seconds: float) -> str:
    """Three significant digits with s, ms or us."""
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if seconds >= size or unit == "us":
            return f"{significant(seconds / size)} {unit}"
    raise AssertionError("unreachable")


def significant(value: float) -> str:
    """Two or three significant digits without an exponent."""
    if 0 < value < 0.0995:
        return f"{value:.{1 - math.floor(math.log10(value))}f}"
    return f"{value:.0f}" if value >= 99.95 else f"{value:.1f}" if value >= 9.995 else f"{value:.2f}"


class Columns:
    """Columns of text of some widths: the first `left` of them lean left, the others right; two blanks between."""

    def __init__(self, head: Sequence[str], widths: Sequence[int], left: int = 1) -> None:
        self.widths, self.left = widths, left
        self.head = "\n".join([self.line(head), "  ".join("-" * w for w in widths)])

    def line(self, cells: Sequence[str]) -> str:
        """Return one row; a cell that is wider than its column moves what follows."""
        places = enumerate(zip(cells, self.widths, strict=True))
        return "  ".join(t.ljust(w) if i < self.left else t.rjust(w) for i, (t, w) in places).rstrip()


def aligned(head: Sequence[str], rows: Sequence[Sequence[str]], left: int = 1) -> str:
    """Rows of text under their heads, in columns that are as wide as what they hold."""
    widths = [max(len(line[i]) for line in (head, *rows)) for i in range(len(head))]
    columns = Columns(head, widths, left)
    return "\n".join([columns.head, *map(columns.line, rows)])
