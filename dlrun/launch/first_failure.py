"""Which rank is to blame: the first that failed, and not those that fell over its death.

When one rank dies, others follow within milliseconds: dl_comm says that a rank has left, an MPI library crashes in its
own error path, the launcher kills watchers. Their words may be the first to arrive. So a failure that another rank's
may have caused waits for a moment, and is told only if none comes that explains it.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dlrun.launch.rank_server import Call
from dlrun.launch.result import LOST, Failure, keep
from dlrun.rank.log import TAIL

_WAIT = 0.7  # seconds for a better explanation
_WAIT_FOR_THE_OTHER = 5.0  # where the words say that another rank has ended: its watcher is about to say so, too

# What a rank says that fell over another's end: an error of what it communicates with, or a crash within that.
_FALLS = (
    r"CommError|MPI_ERR|mpi4py|\bgloo\b|\bNCCL\b|DistBackendError|DistStoreError|DistNetworkError|"
    r"Connection (reset|closed|refused)|Broken ?pipe|killed by SIG(SEGV|ABRT|BUS|TERM|PIPE)"
)
_OTHER_ENDED = r"rank (\d+) (\(process \d+\) )?(has left|has died|ended|calls finalize)"
# The same of a library that does not say which: what it is connected to has gone, a process or the network.
_PEER_GONE = (
    r"(gloo|NCCL|Dist\w+Error).*(by peer|remote (process|server|worker)|Broken pipe|recv, got 0 bytes|socket closed)"
)
# The last words of a rank that calls MPI_Abort, as MPICH and those made of it write them; Hydra then kills the watchers
# of all ranks, and any of them may be the first that is seen to be gone.
_ABORTS = re.compile(r"^(?:Abort\((\d+)\)|application called MPI_Abort\([^,]*, (\d+)\)).*", re.MULTILINE)
_LEFT = "exit code 0 in the middle of the job, by os._exit() or the like"
_LEFT_BY_EXIT, _LEFT_BY_END = "sys.exit(0) in the middle of the job", "its script ended while others went on"
# How a script ends that a library's exit() or abort() has ended: it says nothing, and no line of it is known. Open MPI
# ends a rank so where a connection breaks off (its MPI_ERR_UNKNOWN gives 14).
_BY_LIBRARY = re.compile(r"exit code \d+")
_OTHERS_END = 3  # the doubt where a rank's words name another one that ended: even a lost one is likelier


class FirstFailure:
    """Collects what the ranks say of their ends and decides who was first: ``failure``, once that is sure."""

    def __init__(self, ranks: int, run_dir: Path, shown: Sequence[int] = ()) -> None:
        self.ranks, self.run_dir, self.shown = ranks, run_dir, shown
        self.failure: Failure | None = None
        self.due = float("inf")  # when to decide at the latest
        self._heard: list[tuple[int, int, Mapping[str, Any]]] = []
        self._left: list[Call] = []
        self._done: dict[int, Call] = {}

    @property
    def heard(self) -> bool:
        """Whether any rank has failed."""
        return bool(self._heard)

    def fails(self, failure: Mapping[str, Any]) -> None:
        """Take a rank's failure: its ``rank, host, pid, what, where, code, time`` and ``tail``."""
        self._take(doubt(failure["what"], failure["where"]), failure)

    def loses(self, call: Call) -> None:
        """Take that a rank's watcher is gone: it was killed, or its node was."""
        known = call.dies or {"what": LOST, "code": 128 + 9}
        self._take(2, _of(call, known["what"], known["code"]))

    def leaves(self, call: Call) -> None:
        """Take that a rank's script goes with exit code 0: well, unless others fall over it.

        One that went without a word explains whatever fails after it; one that said so, what names it.
        """
        said = call.left is not None
        if said:
            self._done[call.rank] = call
        else:
            self._left.append(call)
        if self._heard and (not said or self._named()):
            self.due = time.monotonic()

    def blames_left(self, silent: bool = False) -> bool:
        """Blame the rank that went for what keeps all others waiting: the first that did so without a word, if any.

        Return whether some have gone (``silent``: without a word), and not all.
        """
        gone = [*self._left, *([] if silent else self._done.values())]
        guilty = bool(gone) and len(gone) < self.ranks
        if guilty:
            self._take(0, _left(gone[0]))
        return guilty

    def _falls_over(self, what: str) -> Call | None:
        """Return the rank that has ended and that these words of another's name, or mean."""
        if match := re.search(_OTHER_ENDED, what):
            return self._done.get(int(match[1]))
        return next(iter(self._done.values()), None) if re.search(_PEER_GONE, what) else None

    def _named(self) -> Call | None:
        """Return the rank that has ended and that the words of some rank that failed name, or mean."""
        return next(filter(None, (self._falls_over(heard[2]["what"]) for heard in self._heard)), None)

    def decide(self) -> None:
        """Blame the likeliest of the failures taken so far, and write ``failure.json``."""
        self.due = float("inf")
        if self.failure or not self._heard:
            return
        doubtful, _, first = min(self._heard, key=lambda heard: heard[:2])
        if doubtful and self._left:
            first = _left(self._left[0])
        elif doubtful and (done := self._named()):
            first = _left(done)
        elif doubtful:
            first = next(filter(None, map(self._aborted, self._heard)), first)
        known = {name: first[name] for name in ("rank", "host", "pid", "what", "where", "code", "time")}
        self.failure = Failure(**known, tail=tuple(first.get("tail", ())), others=self.ranks - 1)
        record = {**self.failure._asdict(), "log": f"rank-{self.failure.rank}.log"}
        keep(self.run_dir / "failure.json", json.dumps(record, indent=1) + "\n")

    def _aborted(self, heard: tuple[int, int, Mapping[str, Any]]) -> dict[str, Any] | None:
        """Return the failure of a rank that was lost because it called MPI_Abort, as its log has it."""
        if heard[2]["what"] != LOST:
            return None
        try:
            text = (self.run_dir / f"rank-{heard[2]['rank']}.log").read_bytes()[-16384:].decode(errors="replace")
        except OSError:
            return None
        if not (words := _ABORTS.search(text)):
            return None
        code = int(words[1] or words[2])
        lines = [line.rpartition("\r")[2] for line in text.split("\n") if line.strip()]
        tail = [] if heard[2]["rank"] in self.shown else lines[-TAIL:]
        return {**heard[2], "what": words[0], "code": code if 0 < code < 256 else 1, "tail": tail}

    def _take(self, doubtful: int, failure: Mapping[str, Any]) -> None:
        self._heard.append((doubtful, len(self._heard), failure))
        everybody = len({heard[2]["rank"] for heard in self._heard}) == self.ranks
        known = self._left or self._falls_over(failure["what"])
        wait = _WAIT_FOR_THE_OTHER if doubtful == _OTHERS_END and not known else _WAIT
        self.due = min(self.due, time.monotonic() + (wait if doubtful and not everybody else 0))


def _of(call: Call, what: str, code: int) -> dict[str, Any]:
    """Return the failure of a rank that does not tell of it."""
    return {
        "rank": call.rank,
        "host": call.host,
        "pid": call.pid,
        "what": what,
        "where": "",
        "code": code,
        "time": time.time(),
    }


def _left(call: Call) -> dict[str, Any]:
    """Return the failure of a rank that has left the others with exit code 0."""
    if call.left is None:
        return {**_of(call, _LEFT, 1), "where": call.ended["left"] if call.ended else ""}
    return {**_of(call, _LEFT_BY_EXIT if call.left else _LEFT_BY_END, 1), "where": call.left}


def doubt(what: str, where: str = "") -> int:
    """Return 0 where a rank's words say that it failed by itself, more where another's end may have caused them.

    ``where`` is the line of the script that ended it, "" where none is known.
    """
    if re.search(_OTHER_ENDED, what) or re.search(_PEER_GONE, what):
        return _OTHERS_END
    if _BY_LIBRARY.fullmatch(what) and not where:
        return 1
    return 1 if re.search(_FALLS, what, re.IGNORECASE) else 0
