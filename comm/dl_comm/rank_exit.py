"""How a rank ends: together with the others, or, when it dies of an error, without making them wait.

MPI_Finalize waits for every rank. A rank that ends with an exception must therefore never reach it: the others
would hang in whatever they are doing. So an exception or a non-zero exit code in flight ends the whole job, after the
ranks of this node have been told why: by MPI_Abort, or under ``dlrun launch`` by leaving it to dlrun.

MPI_Abort makes the launcher kill its own proxies, with whatever words of the ranks they have not read yet. So a rank
aborts only once its words have been read, and one that merely fell over another's failure leaves the first word to it.
"""

from __future__ import annotations

import array
import atexit
import fcntl
import os
import stat
import sys
import termios
import time
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn

from dl_comm import _core
from dl_comm.errors import CommError


class _Ending:
    """What is known of how this process ends."""

    watched_by = 0  # the process that called watch(): its forks do not leave for it
    code = 0  # 0: nothing has gone wrong
    falls_over_another = False  # the error came from dl_comm, so probably from another rank


RANK_PROCESS = "DL_COMM_RANK_PROCESS"  # in the environment of what a rank starts: the rank and its process


def refuse_children() -> None:
    """Raise CommError if this process was started by a rank: it inherits the launcher's variables, but is no rank.

    Were it to join, MPI would take it for the rank that started it, and both would hang.
    """
    rank, _, process = os.environ.get(RANK_PROCESS, "").partition(":")
    if process and int(process) != os.getpid() and not _core.initialized() and Path(f"/proc/{process}").exists():
        raise CommError(
            f"process {os.getpid()} was started by rank {rank} (process {process}) and is no rank itself",
            f"a worker needs no dl_comm; a program of its own is started without {RANK_PROCESS} and the launcher's "
            "variables",
        )


def watch() -> None:
    """Notice uncaught exceptions and non-zero exits from now on, and leave at exit. Idempotent.

    A rank that is alone keeps nobody waiting, and is left as it is.
    """
    if _Ending.watched_by == os.getpid() or _core.size() == 1:
        return
    _Ending.watched_by = os.getpid()
    os.environ[RANK_PROCESS] = f"{_core.rank()}:{os.getpid()}"
    hook = sys.excepthook
    leave_python = sys.exit

    def note_exception(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        _Ending.code = 130 if issubclass(kind, KeyboardInterrupt) else 1
        _Ending.falls_over_another = issubclass(kind, CommError)
        hook(kind, error, trace)
        _core.fail(f"rank {_core.rank()} ended with {kind.__name__}: {error}")

    def note_code(code: Any = None) -> NoReturn:
        kept = code & 0xFF or int(code != 0) if isinstance(code, int) else 1  # of 256 the system would keep 0
        _Ending.code = 0 if code is None else kept
        leave_python(code)

    sys.excepthook = note_exception
    sys.exit = note_code
    atexit.register(_at_exit)


def leave() -> None:
    """Leave together with all ranks. Idempotent."""
    _Ending.code = 0
    if _core.initialized():
        _core.finalize(True)


def _at_exit() -> None:
    if _Ending.watched_by != os.getpid() or _core.session().finalized():
        return
    if _Ending.code == 0:
        try:
            leave()
            return
        except RuntimeError as error:
            _Ending.code, _Ending.falls_over_another = 1, True
            sys.stderr.write(f"dl_comm: {error}\n")
    _core.finalize(False)
    sys.stdout.flush()
    sys.stderr.flush()
    if "DLRUN_RANK" not in os.environ:  # dlrun's watcher sees this end, says why, and ends the job: an abort would
        _let_words_be_read()  # make the launcher kill the watcher first
        _core.abort_job(_Ending.code)
    os._exit(_Ending.code)


def _let_words_be_read() -> None:
    """Wait until the launcher has read what this rank printed, 5 s at most, and a moment for it to pass that on."""
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline and not (_is_read(1) and _is_read(2)):
        time.sleep(0.005)
    time.sleep(2.0 if _Ending.falls_over_another else 0.1)


def _is_read(descriptor: int) -> bool:
    """Whether nothing is left in the pipe that this output goes into. True for what is no pipe."""
    unread = array.array("i", [0])
    try:
        if stat.S_ISFIFO(os.fstat(descriptor).st_mode):
            fcntl.ioctl(descriptor, termios.FIONREAD, unread)
    except OSError:
        return True
    return unread[0] == 0
