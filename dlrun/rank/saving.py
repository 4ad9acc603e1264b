"""Folders that a checkpoint is written through, in the run directory; a rank that is ended while it saves leaves one."""

from __future__ import annotations

import contextlib
import os


def clear(run_dir: str) -> None:
    """Remove them; each holds links alone."""
    with contextlib.suppress(OSError):
        for folder in [f"{run_dir}/{name}" for name in os.listdir(run_dir) if name.startswith(".saving-")]:  # noqa: PTH208
            with contextlib.suppress(OSError):
                for name in os.listdir(folder):  # noqa: PTH208
                    os.unlink(f"{folder}/{name}")  # noqa: PTH108
                os.rmdir(folder)  # noqa: PTH106
