"""How a job ended."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import NamedTuple

from dlrun.errors import SignalledError

_NOT_CONNECTED = r"env:// rendezvous|KeyError: '(LOCAL_RANK|RANK|WORLD_SIZE|MASTER_(ADDR|PORT))'"


LOST = "lost without a word: its node or the network to it is gone, or its watcher was killed"


class Failure(NamedTuple):
    """How the first rank failed. ``others`` ranks were then stopped, or failed after it."""

    rank: int
    host: str
    pid: int
    what: str
    where: str
    code: int
    tail: tuple[str, ...] = ()
    others: int = 0
    time: float = 0.0

    def __str__(self) -> str:
        place = f" at {self.where}" if self.where else ""
        return f"rank {self.rank} (host {self.host}, pid {self.pid}) ended the job: {self.what}{place}"

    @property
    def lost(self) -> bool:
        """Whether its node is gone, as far as can be told."""
        return self.what == LOST

    @property
    def hint(self) -> str:
        """What to do about it, where that is known, or ""."""
        if re.search(_NOT_CONNECTED, self.what):
            return "torch.distributed connects ranks by variables that torchrun sets: dlrun launch --torchrun sets them"
        if self.what.startswith("ModuleNotFoundError: No module named "):
            return f"the ranks run {sys.executable}: install it there, or take the dlrun of the environment that has it"
        if self.what == "killed by SIGKILL":
            return "the kernel kills what takes too much memory (dmesg tells), a batch system what is out of time"
        if self.what == "killed by SIGBUS":
            return "of memory that a file stands for, as in /dev/shm, there was too little: df -h /dev/shm tells"
        return ""


class Result(NamedTuple):
    """How a job ended: the code of the first rank that failed (128 + signal), 0 when none did.

    ``interrupted``: a signal ended it, or had its ranks save and stop, before its time.
    """

    returncode: int
    run_dir: Path
    failure: Failure | None = None
    seconds: float = 0.0
    interrupted: bool = False
    signal: int = 0  # that one, where ``interrupted``
    serial: bool = False  # no rank ever loaded anything to talk to the others with


def check_interrupted(result: Result) -> None:
    """Raise what Ctrl-C does, with the signal's number, where one ended the job."""
    if result.interrupted:
        raise SignalledError(result.signal)


def keep(file: Path, text: str) -> None:
    """Write a record of the run; where that cannot be, a line says so, and the job is told of all the same."""
    try:
        file.write_text(text, encoding="utf-8", errors="replace")
    except OSError as error:
        print(f"dlrun: {file} cannot be written: {error.strerror}", file=sys.stderr)
