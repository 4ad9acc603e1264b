"""One process imports the framework; the runs fork from it, each with the environment, folder and output of its own.

``serve`` is that process, ``hand_over`` what a started run does in place of importing. A process with more than one
thread does not fork: then, and wherever nobody answers, a run imports by itself.
"""

from __future__ import annotations

import atexit
import ctypes
import fcntl
import json
import os
import random
import select
import signal
import socket
import struct
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

VARIABLE = "DLRUN_VERIFY_WARM"  # names the socket
TASKS = "/proc/self/task"
STREAMS = (0, 1, 2)
LINES = ("PMI_FD",)  # and what a launcher has opened for its ranks to talk to it
MOST, FREE = 8, 200  # streams that come along, and the first number that nobody has


def hand_over(path: str, arguments: list[str]) -> int | None:
    """Let the process behind ``path`` run these arguments; return the exit code, None where it does not."""
    with socket.socket(socket.AF_UNIX) as door:
        try:
            door.connect(path)
            lines = [os.environ[name] for name in LINES if os.environ.get(name, "").isdigit()]
            streams = [*STREAMS, *map(int, lines)]
            told = {
                "streams": streams,
                "arguments": arguments,
                "environment": dict(os.environ),
                "folder": str(Path.cwd()),
            }
            data = json.dumps(told | {"cores": sorted(os.sched_getaffinity(0))}).encode()
            socket.send_fds(door, [struct.pack("<Q", len(data))], streams)
            door.sendall(data)
            pid = _number(door)
        except OSError:
            return None
        if pid is None:
            return None
        signal.signal(signal.SIGTERM, lambda *_: os.kill(pid, signal.SIGTERM))
        code = _number(door)
    return 1 if code is None else code if code >= 0 else 128 - code


def serve(door: socket.socket, preload: Callable[[], None]) -> list[str]:
    """Fork for each run that asks at the door; return its arguments there. Ends when standard input does."""
    preload()  # those that come now wait
    if len(os.listdir(TASKS)) > 1:  # noqa: PTH208 - of this process, as the system sees it
        sys.exit(0)
    running: dict[int, socket.socket] = {}
    while True:
        asks: list[Any] = [door, 0, *running.values()]
        for one in select.select(asks, [], [], 0.02 if running else 1.0)[0]:
            if one == 0:
                _end(running)
            elif one is not door:  # who waited for it is gone
                for pid in [pid for pid, asked in running.items() if asked is one]:
                    os.kill(pid, signal.SIGKILL)
            elif (arguments := _forked(door, running)) is not None:
                return arguments
        _reap(running)


def _forked(door: socket.socket, running: dict[int, socket.socket]) -> list[str] | None:
    asked, _ = door.accept()
    try:
        head, streams, *_ = socket.recv_fds(asked, 8, MOST)
        told = json.loads(_read(asked, struct.unpack("<Q", head)[0]))
    except (OSError, ValueError, struct.error):
        asked.close()
        return None
    pid = os.fork()
    if pid:
        running[pid] = asked
        with suppress(OSError):  # who asked is gone: select tells
            asked.sendall(struct.pack("<q", pid))
        for stream in streams:
            os.close(stream)
        return None
    for each in (door, asked, *running.values()):
        each.close()
    given = [fcntl.fcntl(stream, fcntl.F_DUPFD, FREE) for stream in streams]
    for stream in streams:
        os.close(stream)
    for target, stream in zip(told["streams"], given, strict=True):
        os.dup2(stream, target)
        os.close(stream)
    _leave_imports_alone()
    os.environ.clear()
    os.environ.update(told["environment"])
    os.chdir(told["folder"])
    os.sched_setaffinity(0, told["cores"])
    random.seed()  # as each process has numbers of its own
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed()
    return list(told["arguments"])


def _leave_imports_alone() -> None:
    """Have ``exit()`` of the C library end the process before it takes apart what was imported before the fork.

    It undoes in reverse order: what libraries do at their end that are loaded from here on, such as MPI's, is done. To
    take PyTorch apart copies its memory, and takes 0.2 s.
    """
    libc = ctypes.CDLL(None)
    if hasattr(libc, "on_exit"):  # glibc's; it calls _exit(code, None)
        libc.on_exit(libc._exit, None)


def leave(code: int) -> NoReturn:
    """End the process as Python does, but for taking its modules apart."""
    threading._shutdown()  # type: ignore[attr-defined]  # waits for the script's threads
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    libc = ctypes.CDLL(None)
    libc.fflush(None)
    libc.exit(code)  # unlike os._exit(): what libraries do at their end, such as MPI's, is done
    raise AssertionError("exit() does not come back")


def _reap(running: dict[int, socket.socket]) -> None:
    for pid in list(running):
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            asked = running.pop(pid)
            with suppress(OSError):
                asked.sendall(struct.pack("<q", os.waitstatus_to_exitcode(status)))
            asked.close()


def _end(running: dict[int, socket.socket]) -> None:
    for pid in running:
        os.kill(pid, signal.SIGKILL)
    os._exit(0)  # nothing of it is to be taken apart


def _number(door: socket.socket) -> int | None:
    data = _read(door, 8)
    return int(struct.unpack("<q", data)[0]) if len(data) == 8 else None


def _read(door: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size and (part := door.recv(size - len(data))):
        data += part
    return data
