"""Told to stop, the ranks agree to: at the same step, so that they can save together and end."""

from __future__ import annotations

import os
from pathlib import Path

from dl_comm import _core, leaving

_folder: Path | None = None


def should_stop() -> bool:
    """Return whether this job was told to save and stop: the same answer on every rank, in the same call.

    Collective. Ask it where the script saves its checkpoints, or at every step (rank 0 looks for a file and tells the
    others, a byte)::

        if dl.should_stop():
            dl.save(model.state_dict(), "model.pt")
            break

    ``dlrun launch`` tells when it gets SIGTERM, SIGINT, SIGUSR1 or SIGXCPU, through the file ``stop`` in the run
    directory; once this has been called it lets the script end by itself. Always False without ``dlrun launch``.
    """
    global _folder
    if "DLRUN_RUN_DIR" not in os.environ:
        return False
    if _folder is None:
        leaving.refuse_children()
        _core.init()
        leaving.watch()
        _folder = Path(os.environ["DLRUN_RUN_DIR"])
        if _core.rank() == 0:
            (_folder / "listens").touch()
    told = _core.rank() == 0 and (_folder / "stop").exists()
    return _core.broadcast_bytes(b"1" if told else b"0", 0) == b"1"
