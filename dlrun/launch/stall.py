"""A job that makes no progress: which ranks wait where, and whom they wait for.

A rank's Python stack is asked for twice, some seconds apart. Ranks that all stand where they stood, and have written
nothing, make no progress. Nothing is needed of the script, nor of the library it communicates with.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from typing import Any, NamedTuple

from dlrun.rank.script import theirs

_FRAME = r'\s*File "(?P<file>[^"]+)", line (?P<line>\d+) in (?P<name>\S+)'
_COMMUNICATION = ("dl_comm", "ml_comm", "mpi4py", "torch/distributed", "horovod")
_LOOK_AGAIN = 2.0  # seconds between the two looks at where the ranks stand
_SOON = 1.5  # the same, once a rank is suspect
_SUSPECT = 0.5  # seconds from the end of a rank that said nothing to the first of them
_COMPUTES, _WORKS = 0.2, 0.1  # processor time in a second that says so of a rank, of the processes that it started
_SHOWN = 12  # frames of a missing rank's stack


class Stack(NamedTuple):
    """Where one rank stands: its main thread's frames as ``file:line name``, innermost first, and its log's size.

    ``call`` is the exchange that dl_comm says it is in: "call 12 of team 0: gradients (mean) of weight (64, 3)", and
    ``begun`` how many it has begun: who computes in one line for long, and is in none, may move all the same.
    ``seconds``: when it was seen, and the processor time of it and of what it has started until then; ``child`` is the
    busiest of these. ``spins``: whether it has loaded what spins while it waits: an MPI, a GPU's driver.
    """

    rank: int
    host: str
    pid: int
    frames: tuple[str, ...]
    written: int
    call: str = ""
    begun: str = ""
    stopped: bool = False
    seconds: tuple[float, float, float] = (0.0, 0.0, 0.0)
    child: str = ""
    spins: bool = False
    computes: bool = False
    has_others_work: bool = False

    @property
    def moves(self) -> tuple[object, ...]:
        """What has changed where a rank has moved."""
        return (self.pid, self.frames, self.written, self.call, self.begun, self.stopped)

    def since(self, before: Stack) -> Stack:
        """Return this with what the processor time since an earlier look says: it and its processes work, or wait."""
        time_, own, below = (now - then for now, then in zip(self.seconds, before.seconds, strict=True))
        own_line = time_ > 0 and not (self.waits or self.stopped)
        computes = own > _COMPUTES * time_  # then it does not wait for what it has started
        others = not computes and below > _WORKS * time_
        return self._replace(computes=own_line and computes, has_others_work=own_line and others)

    @property
    def works(self) -> bool:
        """Whether it makes progress for all that is known; of a rank that may spin that cannot be."""
        return self.has_others_work or (self.computes and not self.spins)

    @property
    def doing(self) -> str:
        """What it does there, where it does more than wait."""
        if self.has_others_work:
            return f", and waits for its process {self.child}, which computes"
        unsure = ", or spins while it waits for others: that looks the same" if self.spins else ""
        return f", and computes{unsure}" if self.computes else ""

    @property
    def place(self) -> str:
        """Where it is: the exchange, if any, and the user's own line."""
        return f"in {self.call}, at {self.own}" if self.call else f"at {self.own}"

    @property
    def own(self) -> str:
        """The innermost frame that is the user's own."""
        if self.stopped:
            return "a stop: somebody sent it SIGSTOP"
        mine = [frame for frame in self.frames if not theirs(frame)]
        return mine[0] if mine else (self.frames[0] if self.frames else "no Python code")

    @property
    def waits(self) -> bool:
        """Whether it stands in a library that communicates."""
        files = [frame.partition(":")[0] for frame in self.frames[:6]]
        return bool(self.call) or any(name in file for file in files for name in _COMMUNICATION)

    @property
    def stuck(self) -> bool:
        """Whether it can but wait for others: in such a library's innermost call, or in exit hooks without Python."""
        if self.stopped:
            return False
        return bool(self.call) or not self.frames or any(name in self.frames[0] for name in _COMMUNICATION)


class Lookout:
    """Watches for a stall: after ``timeout`` seconds of silence two looks at the ranks are due, some seconds apart.

    Once a rank is :meth:`suspect` the looks come at once, and then ever more rarely.
    """

    def __init__(self, timeout: float) -> None:
        self.timeout = timeout
        self.asked = 0  # the ranks
        self.pace = float("inf")  # seconds until the next looks, where a rank is suspect
        self.moved()

    def moved(self) -> None:
        """Note that the job makes progress."""
        self.since = time.monotonic()
        self.said = False
        self._look_later()

    def suspect(self) -> None:
        """Note that a rank has gone without a word: the others may wait for it, for ever."""
        if self.pace == float("inf"):
            self.pace = _SUSPECT
            self._look_later()

    def _look_later(self) -> None:
        self.due = min(max(self.since + self.timeout, time.monotonic()), time.monotonic() + self.pace)
        self.looks: list[dict[int, Stack]] = []

    def still(self) -> float:
        """Return for how many seconds nothing has moved."""
        return time.monotonic() - self.since

    def look(self) -> bool:
        """Return whether the ranks are to be asked where they stand, now."""
        if len(self.looks) == 2:
            return False
        self.looks.append({})
        self.due = time.monotonic() + (_LOOK_AGAIN if self.pace == float("inf") else _SOON)
        return True

    def seen(self, rank: int, host: str, answer: Mapping[str, Any]) -> None:
        """Take a rank's answer: its ``pid``, ``faulthandler``'s ``dump`` and the bytes that it has ``written``."""
        if self.looks:
            known = {name: answer[name] for name in ("pid", "written", "call", "begun", "stopped", "child", "spins")}
            seconds = (*answer["seconds"],)
            self.looks[-1][rank] = Stack(rank, host, frames=frames(answer["dump"]), seconds=seconds, **known)
            if len(self.looks) == 2 and len(self.looks[1]) == len(self.looks[0]) == self.asked:
                self.due = time.monotonic()  # all have answered twice: there is nothing to wait for

    def stalled(self) -> dict[int, Stack]:
        """Return where the ranks stand if none has moved between the looks, else nothing."""
        before, after = self.looks
        self.pace *= 2
        if not after or before.keys() != after.keys() or any(before[r].moves != after[r].moves for r in after):
            self.moved()
            return {}
        return {rank: stack.since(before[rank]) for rank, stack in after.items()}

    def told(self, goes_on: bool = False) -> bool:
        """Return whether nothing has moved for so long that it is to be told; else there are looks to come.

        It is told once. Where it ``goes_on`` all the same, the looks do, too, and it is told again when it does not.
        """
        if self.still() < self.timeout:
            self._look_later()
            return False
        first, self.said = not self.said, True
        self.due, self.looks = time.monotonic() + self.timeout if goes_on else float("inf"), []
        return first or not goes_on


def frames(dump: str) -> tuple[str, ...]:
    """Return the frames of the current thread in what ``faulthandler`` wrote, innermost first, without the shim's."""
    current = dump.rpartition("Current thread 0x")[2].partition("\n\n")[0]
    found = [f"{m['file']}:{m['line']} {m['name']}" for m in re.finditer(_FRAME, current)]
    return tuple(frame for frame in found if "/dlrun/rank/" not in frame and "<frozen runpy>" not in frame)


def missing(stacks: Mapping[int, Stack]) -> list[Stack]:
    """Return the ranks the others wait for: those that stand elsewhere than most; a tie falls to who communicates."""
    groups: dict[str, list[Stack]] = {}
    for rank in sorted(stacks):
        groups.setdefault(stacks[rank].place, []).append(stacks[rank])
    waiting = max(groups.values(), key=lambda group: (sum(s.waits for s in group) > 0, len(group)))
    return [stack for group in groups.values() if group is not waiting for stack in group]


def verdict(stacks: Mapping[int, Stack], seconds: float) -> list[str]:
    """Return what to tell: one line of what is so, one per missing rank, and the stack of the first of them."""
    absent = missing(stacks)
    waiting = [stacks[rank] for rank in sorted(stacks) if stacks[rank] not in absent]
    first = waiting[0]
    lines = [f"no progress for {seconds:.0f} s: {_ranks(waiting)} {first.place}"]
    if not absent:
        busy = next((stack for stack in waiting if stack.doing), None)
        outside = "each waits for something outside, or they deadlock there"
        works = f"; rank {busy.rank} is there{busy.doing}" if busy else f": {outside}"
        lines.append(f"  all stand at the same line{works}")
        return [*lines, *(f"  | {frame}" for frame in first.frames[:_SHOWN])]
    for stack in absent[:8]:
        lines.append(f"  missing: rank {stack.rank} (host {stack.host}, pid {stack.pid}) {stack.place}{stack.doing}")
    return [*lines, *(f"  | {frame}" for frame in absent[0].frames[:_SHOWN])]


def _ranks(stacks: list[Stack]) -> str:
    numbers = ", ".join(str(stack.rank) for stack in stacks[:16]) + (" ..." if len(stacks) > 16 else "")
    return f"{len(stacks)} ranks wait ({numbers})" if len(stacks) > 1 else f"rank {numbers} waits"
