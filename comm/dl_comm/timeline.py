"""When this rank started, computed, packed, waited, reduced, stepped and saved: records for ``dlrun timeline``.

Recording is on where DL_COMM_TIMELINE names a folder, or is "run" for the run directory of ``dlrun launch``, whose
--timeline sets it so; DL_COMM_TIMELINE_STEPS=100:120 keeps only what happens from step 100 up to step 120, besides how
the rank started. Each rank has a :class:`dl_comm.timeline_ring.Ring`.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

from dl_comm import _core, settings, step_count
from dl_comm.timeline_ring import Ring

ROUNDS = 9  # readings of the clocks, of which the median counts
now = time.monotonic_ns


class Recorder:
    """What writes into the ring: around the core's calls, and where the faces say ``phase``."""

    def __init__(self, ring: Ring, window: tuple[int, float]) -> None:
        self.ring = ring
        self.first, self.last = window
        self.aligned = False
        self.flying: dict[int, tuple[str, int]] = {}  # ticket -> name and bytes of what is reduced in the background
        self.waited = 0  # when the latest wait ended
        self.imported = 0  # when dl_comm was
        self.barrier = _core.barrier  # unrecorded

    def begin(self) -> None:
        """Record how the rank came to be, and from now on only the steps of the window."""
        began = process_began("self")
        if "DLRUN_RUN_DIR" in os.environ:
            self.ring.add("start", "start", process_began(str(os.getppid())), began)
        self.imported = now()
        self.ring.add("import", "import", began, self.imported)
        self.ring.on = self.first <= 0

    def step_ended(self, number: int) -> None:
        """Note the border between two steps, if one of them is wanted."""
        here, there = self._wanted(number), self._wanted(number + 1)
        if here or there:
            self.ring.on = True
            self.ring.add("mark", "step", now(), now(), ticket=number)
        self.ring.on = there

    def _wanted(self, number: int) -> bool:
        return self.first <= number < self.last

    def call(self, kind: str, plain: Callable[..., Any], args: Any, options: Any) -> Any:
        """Make a call of the core and record it; of a wait also when its reduction ran."""
        buffers = args[0] if args and isinstance(args[0], list) else []
        name, nbytes = step_count.name_of(args, options, kind), step_count.bytes_of(buffers)
        begin = now()
        result = plain(*args, **options)
        end = now()
        if kind == "issue":
            self.flying[result] = name, nbytes
            self.ring.add(kind, name, begin, end, nbytes, result)
        elif kind == "wait":
            name, nbytes = self.flying.pop(args[0], ("", 0))
            self.waited = end
            if name and result[1]:
                first, last = result
                self.ring.add("reduce", name, first, last, nbytes, args[0])
            self.ring.add(kind, name or kind, begin, end, nbytes, args[0])
        else:
            self.ring.add(kind, name, begin, end, nbytes)
        if not self.aligned and kind != "issue":
            self.align()  # not before: a team's first use settles it, and the script may still want to make its own
        return result

    def join(self, plain: Callable[..., Any], args: Any, options: Any) -> Any:
        """Join the ranks, once."""
        if _core.initialized():
            return plain(*args, **options)
        begin = now()
        result = plain(*args, **options)
        keep, self.ring.on = self.ring.on, True
        self.ring.add("init", "join the ranks", begin, now())
        self.ring.on = keep
        return result

    def align(self) -> None:
        """Compare this node's clock with rank 0's, if it is another one."""
        self.aligned = True
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        others = [b.decode() for b in _core.allgather_bytes(boot.encode())]
        if len(set(others)) > 1:
            self.ring.head["clock"].append(offset(self.barrier, _core.allgather_bytes))
        self.ring.head["size"] = _core.size()
        self.ring.write_head()

    def leave(self, plain: Callable[..., Any], blocking: bool = True) -> Any:
        """Leave the ranks; if all do together, compare the clocks once more: they drift."""
        if blocking and self.ring.head["clock"] and not _core.session().finalized():
            self.align()
        return plain(blocking)


_recorder: Recorder | None = None


def on() -> bool:
    """Whether this process records."""
    return _recorder is not None


def add(kind: str, name: str, begin: int, end: int | None = None, nbytes: int = 0) -> None:
    """Record what lasted from ``begin`` to ``end``, ns of CLOCK_MONOTONIC; until now unless said."""
    if _recorder:
        _recorder.ring.add(kind, name, begin, end or now(), nbytes)


@contextmanager
def phase(kind: str, name: str) -> Iterator[None]:
    """Record what happens within."""
    begin = now()
    try:
        yield
    finally:
        add(kind, name, begin)


def imported() -> int:
    """When dl_comm was imported, in ns."""
    return _recorder.imported if _recorder else 0


def last_wait() -> int:
    """When the latest wait for a reduction ended, in ns."""
    return _recorder.waited if _recorder else 0


def pause(paused: bool) -> None:
    """Keep nothing while paused: a measurement of what recording costs."""
    if _recorder:
        _recorder.ring.on = not paused


def record(environment: Mapping[str, str]) -> None:
    """Have every later call into the core recorded, where DL_COMM_TIMELINE says so."""
    global _recorder
    folder = environment.get("DL_COMM_TIMELINE")
    started_by_a_rank = environment.get("DL_COMM_RANK_PROCESS", "") or multiprocessing.parent_process()
    if not folder or started_by_a_rank:
        return
    if folder == "run":
        folder = environment.get("DLRUN_RUN_DIR", ".")
    window = settings.window(environment, "DL_COMM_TIMELINE_STEPS")
    _recorder = Recorder(Ring(Path(folder), int(environment.get("DLRUN_RANK", "0"))), window)
    _recorder.begin()
    for name, kind in {
        "allreduce": "allreduce",
        "start": "issue",
        "wait": "wait",
        "broadcast": "broadcast",
        "barrier": "barrier",
    }.items():
        setattr(_core, name, _around(_recorder, kind, getattr(_core, name)))
    step_count.listen(_recorder.step_ended)  # after that: a step's border is drawn before the exchange that begins it
    join, leave, recorder = _core.init, _core.finalize, _recorder
    setattr(_core, "init", lambda *args, **options: recorder.join(join, args, options))  # noqa: B010 - functions, says
    setattr(_core, "finalize", lambda blocking=True: recorder.leave(leave, blocking))  # noqa: B010 - the stub


def _around(recorder: Recorder, kind: str, plain: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *args, **options: recorder.call(kind, plain, args, options)


def process_began(process: str) -> int:
    """Return when a process began, in ns of CLOCK_MONOTONIC, from its /proc/PID/stat (to 10 ms)."""
    ticks = int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[19])
    since_boot = ticks * 10**9 // os.sysconf("SC_CLK_TCK")
    return since_boot - (time.clock_gettime_ns(time.CLOCK_BOOTTIME) - now())


def offset(
    barrier: Callable[[], None], gather: Callable[[bytes], list[bytes]], clock: Callable[[], int] = now
) -> tuple[int, int]:
    """Return (a time, by how much this clock is ahead of rank 0's around then), in ns.

    All ranks read their clocks as they leave a barrier, ROUNDS times; the median leaves out the readings in which one
    of the two was not running.
    """
    mine = []
    for _ in range(ROUNDS):
        barrier()
        mine.append(clock())
    everyone = [json.loads(readings) for readings in gather(json.dumps(mine).encode())]
    return mine[-1], int(median(own - first for own, first in zip(mine, everyone[0], strict=True)))
