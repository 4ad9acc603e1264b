"""How a rank ends: together with the others, or, when it dies of an error, without making them wait.

MPI_Finalize waits for every rank. A rank that ends with an exception must therefore never reach it: the others
would hang in whatever they are doing. So an exception or a non-zero exit code in flight ends the whole job, after the
ranks of this node have been told why: by MPI_Abort, or under ``dlrun launch`` by leaving it to dlrun.
"""

from __future__ import annotations

import atexit
import os
import sys
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn

from dl_comm import _core
from dl_comm.errors import CommError


class _Ending:
    """What is known of how this process ends."""

    watched_by = 0  # the process that called watch(): its forks do not leave for it
    code = 0  # 0: nothing has gone wrong


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
        hook(kind, error, trace)
        _core.fail(f"rank {_core.rank()} ended with {kind.__name__}: {error}")

    def note_code(code: Any = None) -> NoReturn:
        _Ending.code = 0 if code is None else code if isinstance(code, int) else 1
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
            _Ending.code = 1
            sys.stderr.write(f"dl_comm: {error}\n")
    _core.finalize(False)
    sys.stdout.flush()
    sys.stderr.flush()
    if "DLRUN_RANK" not in os.environ:  # dlrun's watcher sees this end, says why, and ends the job: an abort would
        _core.abort_job(_Ending.code)  # make the launcher kill the watcher first
    os._exit(_Ending.code)
