"""Told to stop, the ranks agree to: at the same step, so that they can save together and end."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from pathlib import Path
from types import CodeType, FrameType

from dl_comm import _core, rank_exit

_folder: Path | None = None


def should_stop() -> bool:
    """Return whether this job was told to save and stop: the same answer on every rank, in the same call.

    Collective. Ask it where the script saves its checkpoints, or at every step. Rank 0 looks for a file and tells the
    others, and says how many of the next calls on this line of the script need no asking: as many as it takes about a
    second to make, at most 64. So a loop that asks at every step does not wait for the others at each::

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
        rank_exit.refuse_children()
        _core.init()
        rank_exit.watch()
        _folder = Path(os.environ["DLRUN_RUN_DIR"])
        if _core.rank() == 0:
            (_folder / "listens").touch()
        _outlive_sigterm()
    caller = sys._getframe(1)
    return _asking.setdefault((caller.f_code, caller.f_lineno), _Asking()).asked(_folder / "stop")


class _Asking:
    """How often the ranks ask on one line of the script; all of them alike, as rank 0 says."""

    def __init__(self) -> None:
        self._skips, self._made = 0, 0  # calls that need no asking yet; calls since they asked last
        self._last = time.monotonic()
        self._most = 1

    def asked(self, file: Path) -> bool:
        """Return whether to stop, asking only where it is time to."""
        global _told
        self._made += 1
        if _told:
            return True
        if self._skips > 0:
            self._skips -= 1
            return False
        answer = b""
        if _core.rank() == 0:
            now = time.monotonic()
            each, self._last = (now - self._last) / self._made, now
            self._most = max(1, min(2 * self._most, _MANY, int(_SECONDS / max(each, 1e-9))))
            answer = f"{int(file.exists())} {self._most - 1}".encode()
        told, skips = _core.broadcast_bytes(answer, 0).split()
        self._made, self._skips = 0, int(skips)
        _told = told == b"1"
        return _told


_SECONDS, _MANY = 1.0, 64
_asking: dict[tuple[CodeType, int], _Asking] = {}
_told = False


def _outlive_sigterm() -> None:
    """Leave it to ``dlrun launch``, which gets the signal too, to say when this process ends; children end as ever."""
    me = os.getpid()

    def wait(number: int, _: FrameType | None) -> None:
        if os.getpid() != me:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)

    if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, wait)
