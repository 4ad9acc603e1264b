"""Folders in the run directory that checkpoints are written through: a rank that is ended in a save leaves one."""

from __future__ import annotations

import contextlib
import os


def clear(run_dir: str) -> None:
    """Remove them; each holds links alone. All watchers do so at once when ``dlrun launch`` was killed."""
    with contextlib.suppress(OSError):
        left = [name for name in os.listdir(run_dir) if name.startswith(".saving-")]  # noqa: PTH208
        for folder in (f"{run_dir}/{name}" for name in left):
            with contextlib.suppress(OSError):
                for name in os.listdir(folder):  # noqa: PTH208
                    with contextlib.suppress(FileNotFoundError):  # another watcher was faster
                        os.unlink(f"{folder}/{name}")  # noqa: PTH108
                os.rmdir(folder)  # noqa: PTH106
