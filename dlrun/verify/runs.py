"""Starts a script under the tracer, in a scratch copy of the working folder, and waits for it; a hang is ended."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
import zlib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from filecmp import cmp
from pathlib import Path
from typing import Any

from dlrun.sandbox.place import in_place, lay_out
from dlrun.verify.trace import Run, Trace, read_trace
from dlrun.verify.warming import Warm

TRACER = Path(__file__).parent / "tracer" / "__main__.py"
START = 120.0  # seconds in which a rank has to start
TEXT = 1 << 18  # bytes of a text file that is read at most
OPEN: dict[str, Any] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}
NO_MPI = re.compile(r"MPIDI?_\w*[Ii]nit|internal_Init")  # in the stack that MPICH prints as it ends a process
QUICK = 6.0  # seconds in which a rank leaves its last events
NEED_ALL = (
    "gradients",
    "average",
    "total",
    "maximum",
    "minimum",
    "gather",
    "agree",
    "any_rank",
    "all_ranks",
    "broadcast",
    "broadcast_variables",
    "barrier",
    "shard",
    "Session.run",
    "dl_comm.gradients",
    "dl_comm.broadcast",
    "dl_comm.average",
    "dl_comm.barrier",
)


@dataclass(frozen=True)
class Task:
    """One run to make: which script, with which arguments, on how many ranks, in which folder its traces go."""

    name: str
    script: Path
    args: tuple[str, ...]
    ranks: int
    folder: Path
    orders: Mapping[str, Any]
    env: Mapping[str, str]
    stall: float  # seconds without any event after which the run counts as hung
    unwanted: threading.Event = field(default_factory=threading.Event, compare=False)  # set: the run is to be ended
    warm: Warm | None = field(default=None, compare=False)  # a process that has imported the framework
    files: Mapping[str, Path] = field(default_factory=dict)  # copies of which lie there, by their way from the place
    named: Path | None = None  # the script that it is told to be, of the same folder


def execute(task: Task) -> Run:
    """Run the task and return what it did. The user's files stay as they are (see ``dlrun.sandbox``).

    Where MPI itself did not come up, as while a network's interface goes away, it is run once more.
    """
    run = _executed(task)
    if run.code and not (run.hung or run.root.steps) and NO_MPI.search(run.log):
        task.folder.rename(task.folder.with_name(f"{task.folder.name}-without-mpi"))
        run = _executed(replace(task, warm=None))
    return run


def _executed(task: Task) -> Run:
    task = replace(task, folder=task.folder.resolve())
    task.folder.mkdir(parents=True)
    root = task.folder / "scratch"
    place = lay_out(Path.cwd(), root, task.folder.parent)
    for way, file in task.files.items():
        _lay(root / way, file)
    orders = task.folder / "orders.json"
    script, named = (
        str(in_place(file.resolve(), Path.cwd().resolve(), place)) for file in (task.script, task.named or task.script)
    )
    given = {
        "script": script,
        "named": named,
        "out": str(task.folder),
        "scratch": str(root),
        "folder": str(place),
        **task.orders,
    }
    orders.write_text(json.dumps(given))
    words = [str(TRACER), str(orders), *task.args]
    inherited = {name: value for name, value in os.environ.items() if name != "DL_COMM_REPLICATE"}
    if inherited.get("PYTHONPATH"):  # it may name folders as seen from here
        inherited["PYTHONPATH"] = os.pathsep.join(map(os.path.abspath, inherited["PYTHONPATH"].split(os.pathsep)))
    env = {"PYTHONHASHSEED": "0", **inherited, "PYTHONUNBUFFERED": "1", **task.env}
    env |= task.warm.told(env) if task.warm else {}
    log = task.folder / "log.txt"
    with log.open("wb") as out:
        process = subprocess.Popen(
            _command(task, words),
            env=env,
            cwd=task.folder,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        hung = _wait(process, task)
    traces = tuple(read_trace(task.folder / f"rank{rank}.jsonl", rank) for rank in range(task.ranks))
    said = log.read_text(errors="replace")[-4000:]
    code = [file for file in {script, named} if Path(file).is_file()]  # copies of it show no numbers
    written = {w: path for w, path in _written(traces[0], root).items() if not any(cmp(path, c, False) for c in code)}
    return Run(task.name, traces, process.returncode, hung, said, _texts(written), written)


def _lay(copy: Path, file: Path) -> None:
    copy.unlink(missing_ok=True)
    copy.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy2(file, copy)


def _written(trace: Trace, place: Path) -> dict[str, Path]:
    """Return the files that a rank wrote in its scratch folder, by their way from there."""
    paths = {Path(event["path"]) for event in trace.all("file") if event["how"] == "write"}
    inside = [path for path in sorted(paths) if path.is_relative_to(place)]
    return {str(path.relative_to(place)): path for path in inside if path.is_file() and not path.is_symlink()}


def _texts(written: Mapping[str, Path]) -> dict[str, str]:
    """Return the text of those files that are text, be it compressed; small ones alone."""
    found = {}
    for way, path in written.items():
        errors = suppress(UnicodeDecodeError, OSError, EOFError, lzma.LZMAError, zlib.error)
        if path.stat().st_size <= TEXT:
            with errors, OPEN.get(path.suffix, open)(path, "rt", encoding="utf-8") as file:
                found[way] = file.read(TEXT)
    return found


def _command(task: Task, words: list[str]) -> list[str]:
    if task.ranks == 1:
        return [sys.executable, *words]
    launch = [sys.executable, "-m", "dlrun", "launch", "-n", str(task.ranks), "--log-dir", str(task.folder / "launch")]
    return [
        *launch,
        "--share-gpus",
        "--",
        *words,
    ]  # few steps: ranks may share GPUs in time slices


def _wait(process: subprocess.Popen[bytes], task: Task) -> bool:
    """Wait for the end. Returns True where the ranks stopped making progress and were ended."""
    files = [task.folder / f"rank{rank}.jsonl" for rank in range(task.ranks)]
    size, since = 0, time.monotonic()
    try:
        while process.poll() is None:
            time.sleep(0.05)
            now, total = time.monotonic(), sum(file.stat().st_size for file in files if file.exists())
            if total != size:
                size, since = total, now
            quiet = now - since
            limit = task.stall if size else max(task.stall, START)
            if task.unwanted.is_set() or quiet > limit or (quiet > QUICK and _are_stuck(files)):
                return True
        return False
    finally:
        if process.poll() is None:
            _end(process)


def _are_stuck(files: list[Path]) -> bool:
    """Whether some ranks are done, and all others in a call that needs them: however slow the machine, it never ends.

    Ranks that wait in different calls may go on: one of them may not have noted yet that its call came back.
    """
    last = [_last(file) for file in files]
    done = [event.get("kind") == "end" or event.get("fn") == "finalize" for event in last]
    waiting = [event.get("kind") == "call" and event.get("fn") in NEED_ALL for event in last]
    return any(done) and any(waiting) and all(a or b for a, b in zip(done, waiting, strict=True))


def _last(file: Path) -> dict[str, Any]:
    """Return the last event in a journal if it is a short one, such as a call."""
    if not file.exists():
        return {}
    with file.open("rb") as journal:
        journal.seek(max(0, file.stat().st_size - 400))
        last = journal.read().rstrip(b"\n").rpartition(b"\n")[2]
    try:
        return dict(json.loads(last))
    except ValueError:  # the end of a long line
        return {}


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the run: the launcher passes SIGTERM on to its ranks; what is left of the session is killed."""
    process.terminate()
    try:
        process.wait(5)
    except subprocess.TimeoutExpired:
        process.kill()
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def orders(steps: int, epoch_steps: int, **more: Any) -> dict[str, Any]:
    """Return the tracer's orders as JSON values, without what ``execute`` fills in."""
    from dlrun.verify.tracer.recorder import Orders

    made = asdict(Orders("", "", "", "", steps, epoch_steps, **more))
    return {name: value for name, value in made.items() if name not in ("script", "named", "out", "scratch", "folder")}
