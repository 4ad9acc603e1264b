"""How a rank ends: together with the others, or, when it dies of an error, without making them wait.

MPI_Finalize waits for every rank. A rank that ends with an exception must therefore never reach it: the others
would hang in whatever they are doing. So an exception or a non-zero exit code in flight ends the whole job by
MPI_Abort, after the ranks of this node have been told why.
"""

from __future__ import annotations

import atexit
import os
import sys
from types import TracebackType
from typing import Any, NoReturn

import dl_comm._core as _core


class _Ending:
    """What is known of how this process ends."""

    watched_by = 0  # the process that called watch(): its forks do not leave for it
    code = 0  # 0: nothing has gone wrong


def watch() -> None:
    """Notice uncaught exceptions and non-zero exits from now on, and leave at exit. Idempotent.

    A rank that is alone keeps nobody waiting, and is left as it is.
    """
    if _Ending.watched_by == os.getpid() or _core.size() == 1:
        return
    _Ending.watched_by = os.getpid()
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
    _core.abort_job(_Ending.code)
    os._exit(_Ending.code)
