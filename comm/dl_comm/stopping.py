"""Told to stop, the ranks agree to: at the same step, so that they can save together and end."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path
from types import FrameType

from dl_comm import _core, leaving

_folder: Path | None = None


def should_stop() -> bool:
    """Return whether this job was told to save and stop: the same answer on every rank, in the same call.

    Collective. Ask it where the script saves its checkpoints, or at every step (rank 0 looks for a file and tells the
    others, a byte)::

        if dl.should_stop():
            dl.save(model.state_dict(), "model.pt")
            break

    ``dlrun launch`` tells when it or one of the ranks gets SIGTERM, SIGINT, SIGUSR1, SIGUSR2 or SIGXCPU, through the
    file ``stop`` in the run directory. Once this has been called it lets the script end by itself, and a SIGTERM to the
    script, which batch systems send to every process of a job, no longer ends it (a handler of the script's own stays).
    Always False without ``dlrun launch``.
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
        _outlive_sigterm()
    told = _core.rank() == 0 and (_folder / "stop").exists()
    return _core.broadcast_bytes(b"1" if told else b"0", 0) == b"1"


def _outlive_sigterm() -> None:
    """Leave it to ``dlrun launch``, which gets the signal too, to say when this process ends; children end as ever."""
    me = os.getpid()

    def wait(number: int, _: FrameType | None) -> None:
        if os.getpid() != me:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)

    if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, wait)
