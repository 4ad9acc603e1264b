"""Checkpoints: rank 0 writes, everybody reads."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

import torch

from dl_comm.ranks import barrier, is_rank0


def save(obj: Any, f: Any, *args: Any, **kwargs: Any) -> None:
    """``torch.save`` on rank 0; the other ranks return at once.

    A file named by a path appears complete or not at all: it is written into a temporary folder beside it, under its
    own name (the bytes are those of ``torch.save``), and then moved into place. A file object is written directly.
    Call ``load``, or ``barrier``, before another rank reads the file.
    """
    if not is_rank0():
        return
    target = Path(os.path.realpath(f)) if isinstance(f, (str, os.PathLike)) else None
    if target is None or (target.exists() and not target.is_file()) or not os.access(target.parent, os.W_OK):
        # A file object, a device or pipe, or a folder that takes no new file: torch.save's own behaviour and errors.
        torch.save(obj, f, *args, **kwargs)
        return
    with tempfile.TemporaryDirectory(prefix=".saving-", dir=target.parent) as folder:
        written = Path(folder, target.name)
        try:
            torch.save(obj, written, *args, **kwargs)
        except RuntimeError:
            _check_room(Path(folder), target)
            raise
        if target.exists():
            written.chmod(target.stat().st_mode & 0o7777)
        written.replace(target)


def _check_room(folder: Path, target: Path) -> None:
    """Raise the OSError of a full disk, where that is why torch could not write: its own error does not say so."""
    try:
        Path(folder, "room").write_bytes(bytes(1 << 20))
    except OSError as error:
        raise OSError(error.errno, f"{error.strerror}: the checkpoint was not written", str(target)) from None


def load(f: Any, *args: Any, **kwargs: Any) -> Any:
    """Wait for all ranks, then ``torch.load`` on every one of them: what rank 0 saved before is complete.

    The arguments are ``torch.load``'s. All ranks must call it.
    """
    barrier()
    return torch.load(f, *args, **kwargs)
