"""Text files that users write: UTF-8, with a byte order mark or without, whatever the locale says."""

from __future__ import annotations

from pathlib import Path


def read(path: Path) -> str:
    """Return what the file holds; bytes that are no UTF-8, such as a comment's in Latin-1, become U+FFFD."""
    return path.read_bytes().decode("utf-8-sig", "replace")
