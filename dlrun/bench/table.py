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


def aligned(head: Sequence[str], rows: Sequence[Sequence[str]], left: int = 1) -> str:
    """Rows of text under their heads; the first `left` columns lean left, the others right; two blanks between."""
    lines = [list(head), *(list(row) for row in rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(head))]

    def one(line: Sequence[str]) -> str:
        cells = [t.ljust(w) if i < left else t.rjust(w) for i, (t, w) in enumerate(zip(line, widths, strict=True))]
        return "  ".join(cells).rstrip()

    return "\n".join([one(head), "  ".join("-" * w for w in widths), *(one(row) for row in rows)])
