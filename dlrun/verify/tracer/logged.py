"""What a script shows through ``logging``: its messages are lines like printed ones, without the time before them.

Ports log on rank 0 alone: they raise the level elsewhere. What the other ranks would show is noted, too.
"""

from __future__ import annotations

import functools
import logging
import sys
from typing import Any

from dlrun.verify.tracer.recorder import Recorder, is_user_file, user_frame

METHODS = {"info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


def install(recorder: Recorder) -> None:
    """Note the messages that the script's own lines log: on rank 0 those that are shown, elsewhere all."""
    if recorder.rank:
        for name, level in METHODS.items():
            setattr(logging.Logger, name, _noted_elsewhere(recorder, getattr(logging.Logger, name), level))
        return
    handle = logging.Logger.handle

    @functools.wraps(handle)
    def noted(self: logging.Logger, record: logging.LogRecord) -> None:
        if is_user_file(record.pathname) and record.levelno in METHODS.values():
            text = record.getMessage()
            recorder.note("shown", text=text)
            for line in text.split("\n"):
                recorder.note("print", text=line.replace(recorder.orders.scratch, "."))
        handle(self, record)

    logging.Logger.handle = noted  # type: ignore[method-assign]


def _noted_elsewhere(recorder: Recorder, log: Any, level: int) -> Any:
    @functools.wraps(log)
    def noted(self: logging.Logger, message: Any, *args: Any, **kwargs: Any) -> None:
        if not recorder.inside and user_frame() is _caller():
            made = logging.LogRecord(self.name, level, "", 0, message, args, None)
            recorder.note("shown", text=made.getMessage())
        log(self, message, *args, **{**kwargs, "stacklevel": kwargs.get("stacklevel", 1) + 1})

    return noted


def _caller() -> Any:
    """Return the frame that called a logger's method, or a function of the module's of that name."""
    frame = sys._getframe(2)
    return frame.f_back if frame.f_code.co_filename == logging.__file__ else frame
