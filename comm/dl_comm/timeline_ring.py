"""A bounded ring of records in a mapped file: what was recorded is there also after the rank was killed.

The file ``timeline-RANK.ring``: HEAD bytes of head, JSON padded with blanks, whose last 8 bytes count the records ever
written; then SLOTS records of RECORD each, of which the oldest give way. Names lie in ``timeline-RANK.names``, one JSON
pair [key, name] a line. Times are this node's CLOCK_MONOTONIC in ns; ``clock`` in the head holds pairs [time, what to
subtract from a time around then to get rank 0's clock].
"""

from __future__ import annotations

import json
import mmap
import os
import struct
import threading
import zlib
from pathlib import Path
from typing import Any

HEAD = 4096
SLOTS = 65536
RECORD = struct.Struct("<IIQQQQ")  # kind, key of the name, ticket, begin and end in ns, bytes
COUNT = struct.Struct("<Q")
KINDS = (
    "start",
    "import",
    "init",
    "backward",
    "pack",
    "issue",
    "wait",
    "reduce",
    "unpack",
    "allreduce",
    "broadcast",
    "barrier",
    "step",
    "checkpoint",
    "mark",
)
_NUMBERS = {kind: number for number, kind in enumerate(KINDS)}


class Ring:
    """The records of one rank. Any thread may write; ``on`` says whether what comes is kept."""

    def __init__(self, folder: Path, rank: int, slots: int = SLOTS) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"timeline-{rank}.ring"
        self.slots = slots
        with path.open("wb") as file:
            file.truncate(HEAD + slots * RECORD.size)
        with path.open("r+b") as file:
            self.memory = mmap.mmap(file.fileno(), 0)
        self.names = folder / f"timeline-{rank}.names"
        self.names.write_text("")
        self.known: set[int] = set()
        self.count = 0
        self.on = True
        self.guard = threading.Lock()
        here = {"rank": rank, "size": 1, "host": os.uname().nodename, "pid": os.getpid()}
        form = {"format": "dl_comm timeline 2", "slots": slots, "kinds": KINDS, "clock": []}
        self.head: dict[str, Any] = {**form, **here}
        self.write_head()

    def write_head(self) -> None:
        """Put the head into the file."""
        self.memory[: HEAD - COUNT.size] = json.dumps(self.head).encode().ljust(HEAD - COUNT.size)

    def key(self, name: str) -> int:
        """Return the key of a name, which is written down when it comes for the first time."""
        key = zlib.crc32(name.encode())
        if key not in self.known:
            self.known.add(key)
            with self.names.open("a") as file:
                file.write(json.dumps([key, name]) + "\n")
        return key

    def add(self, kind: str, name: str, begin: int, end: int, nbytes: int = 0, ticket: int = 0) -> None:
        """Write one record, then count it: a record that is counted is whole."""
        if self.on:
            key = self.key(name)
            with self.guard:
                at = HEAD + self.count % self.slots * RECORD.size
                RECORD.pack_into(self.memory, at, _NUMBERS[kind], key, ticket, begin, end, nbytes)
                self.count += 1
                COUNT.pack_into(self.memory, HEAD - COUNT.size, self.count)
