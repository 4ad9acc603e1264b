"""When this rank started, joined, reduced and waited: a bounded ring of records in a file, for `dlrun timeline`.

Recording is on where DL_COMM_TIMELINE names a folder, or is "run" for the run directory of `dlrun launch`, whose
--timeline sets it so. The ring is a mapped file,
`timeline-RANK.ring`, so that what was recorded is there also after the rank was killed; the oldest records give way.

The file: 4096 bytes of head, JSON padded with blanks, whose last 8 bytes count the records ever written; then SLOTS
records of RECORD each. Names lie in `timeline-RANK.names`, one JSON pair [key, name] a line. Times are this node's
CLOCK_MONOTONIC in ns; `offset` in the head is to be subtracted to get rank 0's clock.
"""

from __future__ import annotations

import json
import mmap
import os
import struct
import time
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from dl_comm import _core

HEAD = 4096
SLOTS = 65536
RECORD = struct.Struct("<IIQQQQ")  # kind, key of the name, ticket, begin and end in ns, bytes
KINDS = ("begin", "init", "barrier", "broadcast", "allreduce", "start", "wait")
_WIDTHS = {"float64": 8, "int64": 8, "float32": 4, "int32": 4, "float16": 2, "bfloat16": 2, "int16": 2}


class Ring:
    """The records of one rank. One writer at a time: calls of dl_comm come from one thread of the script."""

    def __init__(self, folder: Path, rank: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"timeline-{rank}.ring"
        with path.open("wb") as file:
            file.truncate(HEAD + SLOTS * RECORD.size)
        with path.open("r+b") as file:
            self.memory = mmap.mmap(file.fileno(), 0)
        self.names = folder / f"timeline-{rank}.names"
        self.names.write_text("")
        self.known: set[int] = set()
        self.count = 0
        self.aligned = False
        here = {"rank": rank, "size": 1, "host": os.uname().nodename, "pid": os.getpid()}
        form = {"format": "dl_comm timeline 1", "slots": SLOTS, "kinds": KINDS, "offset": 0}
        self.head: dict[str, Any] = {**form, **here}
        self.write_head()

    def write_head(self) -> None:
        """Put the head into the file."""
        self.memory[: HEAD - 8] = json.dumps(self.head).encode().ljust(HEAD - 8)

    def key(self, name: str) -> int:
        """The key of a name; the name is written down when it comes for the first time."""
        key = zlib.crc32(name.encode())
        if key not in self.known:
            self.known.add(key)
            with self.names.open("a") as file:
                file.write(json.dumps([key, name]) + "\n")
        return key

    def add(self, kind: str, key: int, ticket: int, begin: int, end: int, count: int) -> None:
        """Write one record, then count it: a record that is counted is whole."""
        at = HEAD + self.count % SLOTS * RECORD.size
        RECORD.pack_into(self.memory, at, KINDS.index(kind), key, ticket, begin, end, count)
        self.count += 1
        struct.pack_into("<Q", self.memory, HEAD - 8, self.count)


def process_began() -> int:
    """When this process began, in ns of CLOCK_MONOTONIC, from its own /proc/self/stat (to 10 ms)."""
    ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    since_boot = ticks * 10**9 // os.sysconf("SC_CLK_TCK")
    return since_boot - (time.clock_gettime_ns(time.CLOCK_BOOTTIME) - time.monotonic_ns())


def align(ring: Ring) -> None:
    """Find this node's offset to rank 0's clock: all ranks read theirs as they leave a barrier; one node, one clock."""
    ring.aligned = True
    _core.barrier()
    now = time.monotonic_ns()
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    everyone = [json.loads(b) for b in _core.allgather_bytes(json.dumps([boot, now]).encode())]
    first_boot, first_now = everyone[0]
    ring.head |= {"size": _core.size(), "offset": 0 if boot == first_boot else now - first_now}
    ring.write_head()


def bytes_of(buffers: list[tuple[int, int, str]]) -> int:
    """The bytes of a list of (address, elements, dtype)."""
    return sum(count * _WIDTHS.get(dtype, 1) for _, count, dtype in buffers)


def record(environment: Mapping[str, str]) -> None:
    """Have every later call into the core recorded, where DL_COMM_TIMELINE says so."""
    folder = environment.get("DL_COMM_TIMELINE")
    if not folder:
        return
    if folder == "run":
        folder = environment.get("DLRUN_RUN_DIR", ".")
    ring = Ring(Path(folder), int(environment.get("DLRUN_RANK", "0")))
    ring.add("begin", ring.key("start and import"), 0, process_began(), time.monotonic_ns(), 0)
    joined = _core.init

    def init(*args: Any, **options: Any) -> Any:
        if _core.initialized():
            return joined(*args, **options)
        begin = time.monotonic_ns()
        result = joined(*args, **options)
        ring.add("init", ring.key("join the ranks"), 0, begin, time.monotonic_ns(), 0)
        return result

    for kind in ("barrier", "broadcast", "allreduce", "start", "wait"):
        setattr(_core, kind, timed(ring, kind, getattr(_core, kind)))
    setattr(_core, "init", init)  # noqa: B010 - the module's stub calls it a function


def timed(ring: Ring, kind: str, call: Callable[..., Any]) -> Callable[..., Any]:
    """The call, leaving a record each time: of a start its ticket, by which the wait for it is found."""

    def recorded(*args: Any, **options: Any) -> Any:
        begin = time.monotonic_ns()
        result = call(*args, **options)
        end = time.monotonic_ns()
        names = options.get("names") or next((a for a in args[1:] if isinstance(a, list)), None)
        name = f"{names[0]}" + (f" and {len(names) - 1} more" if len(names) > 1 else "") if names else kind
        count = bytes_of(args[0]) if args and isinstance(args[0], list) else 0
        ticket = result if kind == "start" else args[0] if kind == "wait" else 0
        ring.add(kind, ring.key(name), ticket, begin, end, count)
        if not ring.aligned and kind != "start":
            align(ring)  # not before: a team's first use settles it, and the script may still want to make its own
        return result

    return recorded
