"""The script's side of a rank: run it as ``__main__``, and say where an exception came from."""

from __future__ import annotations

import ctypes
import errno
import faulthandler
import io
import json
import os
import select
import signal
import sys
from contextlib import suppress
from types import ModuleType, TracebackType
from typing import Any, NoReturn

from dlrun.rank import stdin

EARLY_WARNINGS = (signal.SIGUSR1, signal.SIGUSR2, signal.SIGXCPU)
STACK_SIGNAL = signal.SIGRTMIN + 9  # makes the script write its stack to rank-R.stack
_PR_SET_PDEATHSIG, _SIGKILL = 1, 9
_HEARD_S = 5.0
_RESERVE = 1 << 20  # bytes of addresses that an error gets to be told in, where the script has used all memory up
_PLACES = ("in user code:", "Graph execution error:")


def run(program: list[str], kind: str, report: int, sandbox: str = "", input_: int = 0) -> NoReturn:
    """Become the script ``program[0]`` with the arguments ``program[1:]``; never returns.

    ``kind`` is "script" (a Python file), "module" (as in ``python -m``) or "command" (anything else that runs). How a
    Python script ended is written to the file descriptor ``report`` as one line of JSON, before its exit hooks run:
    those may wait for other ranks for ever. ``input_`` is the file descriptor that it reads; 0 is an empty one.
    ``sandbox``: a folder that looks like this one, to run in. Nobody watches what other programs than Python's write
    through its links.
    """
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, _SIGKILL)
    os.environ["DLRUN_STACK_SIGNAL"] = str(int(STACK_SIGNAL))  # dl_comm then says which call it is in: rank-R.call
    for number in EARLY_WARNINGS:  # batch systems send them to every process of a job; the watcher passes them on
        signal.signal(number, signal.SIG_IGN)
    if kind == "command":
        far = os.path.abspath(program[0])  # noqa: PTH100 - pathlib costs 5 ms a rank
        try:
            os.chdir(sandbox or ".")
            there = "/" not in program[0] or os.path.exists(program[0])  # noqa: PTH110
            os.execvp(program[0] if there else far, program)
        except OSError as error:
            os.write(2, f"dlrun: {program[0]} does not start: {_why(error, far)}\n".encode())
            os._exit(126)
    file = f"{os.environ['DLRUN_RUN_DIR']}/rank-{os.environ['DLRUN_RANK']}.stack"
    stack = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)  # stays open to the end
    signal.signal(STACK_SIGNAL, signal.SIG_IGN)  # as it is again once Python ends, and faulthandler before it
    faulthandler.register(STACK_SIGNAL, stack, all_threads=False)
    faulthandler.enable()  # a segmentation fault then names its line
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(line_buffering=True)  # as on a terminal: lines and \r progress bars show at once
    pid = os.getpid()
    _note_sudden_end(report, pid)
    stdin.install(input_, lambda: _tell(report, pid, {"reads": True}))
    record: dict[str, Any] = {}
    status: object = None
    reserve = [bytearray(_RESERVE)]  # never touched, so no memory
    try:
        if sandbox:
            program = [_into(sandbox, program[0]), *program[1:]]
        if kind == "module":
            _run_module(program)
        else:
            _run_file(program)
    except SystemExit as end:
        status = end.code
        code = _code(status)
        place = where(end.__traceback__)
        if code:
            record = {"what": f"sys.exit({status!r})", "where": place, "code": code}
        else:
            _tell(report, pid, {"talked": talked(), "left": place})
    except BaseException as error:
        reserve.clear()
        status = 130 if isinstance(error, KeyboardInterrupt) else 1
        record = {"what": what(error), "where": where(error.__traceback__, error), "code": status}
        error = error.with_traceback(_own(error.__traceback__))
        if sys.excepthook is not sys.__excepthook__:
            with suppress(MemoryError, OSError):  # what can be told without a trace is
                import traceback

                record["trace"] = "".join(traceback.format_exception(error)).splitlines()
            _tell(report, pid, record)  # somebody else's hook may take its time, and print the trace late or never
        sys.excepthook(type(error), error, error.__traceback__)
        _tell(report, pid, record)
    else:
        _tell(report, pid, {"talked": talked()})
    _tell(report, pid, record)
    sys.exit(status)  # type: ignore[arg-type]


def _why(error: OSError, program: str) -> str:
    """Return why a program does not start; of one that is there, what is wrong with its first line."""
    if error.errno == errno.ENOEXEC:
        return f"{error.strerror}; a script begins with the line #!/bin/sh, or the like"
    if error.errno == errno.ENOENT and os.path.exists(program):  # noqa: PTH110
        with open(program, "rb") as file:  # noqa: PTH123
            first = file.readline(200).decode(errors="replace").strip()
        return f"it is there, and what its first line names is not: {first}" if first[:2] == "#!" else str(error)
    return error.strerror or str(error)


def _code(status: object) -> int:
    """Return the exit code that ``sys.exit(status)`` means. Of 256 the system would keep 0, which was not meant."""
    if not isinstance(status, int):
        return 0 if status is None else 1
    return status & 0xFF or int(status != 0)


def _run_file(program: list[str]) -> None:
    path = program[0]
    main = ModuleType("__main__")
    main.__dict__.update(__file__=path, __builtins__=__builtins__, __cached__=None)
    sys.modules["__main__"] = main
    sys.argv[:] = program
    _find_first(os.path.dirname(os.path.realpath(path)))  # noqa: PTH120 - pathlib costs 5 ms a rank
    with io.open_code(path) as file:
        source = file.read()
    exec(compile(source, path, "exec"), main.__dict__)


def _note_sudden_end(report: int, pid: int) -> None:
    """Have ``os._exit()``, which runs no hook and raises nothing, tell where it was called."""
    end = os._exit

    def told(status: int) -> NoReturn:
        if os.getpid() == pid:
            frame, place = sys._getframe(1), ""
            while frame is not None and not place:
                place = "" if theirs(frame.f_code.co_filename) else f"{frame.f_code.co_filename}:{frame.f_lineno}"
                frame = frame.f_back  # type: ignore[assignment]
            _tell(report, pid, {"sudden": place})
        end(status)

    os._exit = told


def _into(place: str, script: str) -> str:
    """Go to the folder for this run, and return what the script is called there."""
    from dlrun.sandbox.run import enter

    return enter(place, script, os.environ["DLRUN_RUN_DIR"], lambda file: not theirs(file))


def _run_module(program: list[str]) -> None:
    import runpy

    sys.argv[:] = program
    _find_first(os.getcwd())  # noqa: PTH109 - pathlib costs 5 ms a rank
    runpy.run_module(program[0], run_name="__main__", alter_sys=True)


def _find_first(folder: str) -> None:
    """Look for modules in the script's folder, in place of the one that ``python -m`` has put first.

    Under PYTHONSAFEPATH Python puts none there (3.11 on), and takes no module from the script's folder, either.
    """
    if not getattr(sys.flags, "safe_path", False):
        sys.path[0] = folder


def what(error: BaseException) -> str:
    """Return the kind of an error and the first line of its message that says something.

    TensorFlow and Keras put the places in front of it: "in user code:", with the kind of the error itself below them,
    "Graph execution error:", and "Exception encountered when calling Net.call().".
    """
    kind = type(error).__name__
    lines = [line.strip() for line in words(error).replace("\33[1m", "").replace("\33[0m", "").strip().splitlines()]
    while lines:
        first = lines[0]
        if first in _PLACES:
            rest = lines[max((i for i, line in enumerate(lines) if line.startswith('File "')), default=2) :]
            lines = rest[rest.index("") + 1 :] if "" in rest else rest[1:]
            own = lines[0].partition(": ") if lines and first == _PLACES[0] else ("", "", "")
            if own[1]:
                kind, lines[0] = own[0], own[2]
        elif first.startswith("Exception encountered when calling ") or not first:
            lines = lines[1:]
        else:
            following = next((line for line in lines[1:] if line), "")
            return f"{kind}: {first} {following}".rstrip() if first.endswith(":") else f"{kind}: {first}"
    return kind


def words(error: BaseException) -> str:
    """Return what an error says of itself; nothing where that fails in turn."""
    try:
        return str(error)
    except Exception:
        return ""


def where(trace: TracebackType | None, error: BaseException | None = None) -> str:
    """Return ``file:line`` of the innermost frame that is the user's own, not the shim's or a library's."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}:{error.lineno}"
    message = words(error).splitlines() if error is not None else []
    if message and message[0] == _PLACES[0]:  # its functions run as others that TensorFlow has made of them
        named = [line.strip().split('"') for line in message if line.strip().startswith('File "')]
        own_lines = [f"{n[1]}:{n[2].split()[2].rstrip(',')}" for n in named if not theirs(n[1])]
        if own_lines:
            return own_lines[-1]
    frames = []
    while trace is not None:
        frames.append((trace.tb_frame.f_code.co_filename, trace.tb_lineno))
        trace = trace.tb_next
    own = [f for f in frames if not theirs(f[0])]
    return f"{own[-1][0]}:{own[-1][1]}" if own else ""


def theirs(file: str) -> bool:
    """Return whether a source file is the shim's, Python's, dl_comm's or an installed library's, not the user's own."""
    shim, python = os.path.dirname(__file__), os.path.dirname(os.__file__)  # noqa: PTH120
    sandbox = os.path.join(os.path.dirname(shim), "sandbox")  # noqa: PTH118, PTH120
    made = "/__autograph_generated_file" in file  # TensorFlow's copy of a function
    return made or file.startswith((shim, sandbox, python, "<")) or "site-packages" in file or "/dl_comm/" in file


def _own(trace: TracebackType | None) -> TracebackType | None:
    """Drop the shim's own frames from the top of a traceback."""
    while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    return trace


def talked() -> bool:
    """Return whether this process could have exchanged anything with other ranks: an MPI, NCCL or torch's own."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return True
    hook = getattr(sys.excepthook, "__module__", "") or ""
    if hook.startswith("torch.distributed"):  # set with the first group, and left when that is gone
        return True
    try:
        with open("/proc/self/maps") as maps:  # noqa: PTH123
            loaded = maps.read()
    except OSError:
        return True
    return "/libmpi" in loaded or "/libmpich" in loaded


def _tell(report: int, pid: int, record: dict[str, Any]) -> None:
    if record and os.getpid() == pid:  # a process that the script forked reports nothing
        os.write(report, json.dumps(record).encode() + b"\n")
        if "what" in record:  # an exit hook may call MPI_Abort, which kills the watcher: it must have passed this on
            select.select([report], [], [], _HEARD_S)
        record.clear()
