"""What the kernel says of a process."""

from __future__ import annotations

import contextlib
import os
import time

_SEGMENT = "/dev/shm/mpich_shm_"


def catches(pid: int, number: int) -> bool:
    """Return whether process ``pid`` has a handler for signal ``number``."""
    try:
        with open(f"/proc/{pid}/status") as file:  # noqa: PTH123
            masks = dict(line.split(":", 1) for line in file)
    except OSError:
        return False
    return bool(int(masks["SigCgt"], 16) >> number - 1 & 1)


def stopped(pid: int) -> bool:
    """Return whether somebody has stopped process ``pid``, by SIGSTOP or in a debugger."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:  # noqa: PTH123
            return file.read().rsplit(b") ", 1)[1][:1] in (b"T", b"t")
    except OSError:
        return False


def children(pid: int) -> list[int]:
    """Return the process ids of the children of ``pid``, which has one thread."""
    try:
        with open(f"/proc/{pid}/task/{pid}/children") as file:  # noqa: PTH123
            return [int(child) for child in file.read().split()]
    except OSError:  # a kernel built without CONFIG_PROC_CHILDREN
        pass
    found = []
    for name in os.listdir("/proc"):  # noqa: PTH208
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", "rb") as file:  # noqa: PTH123
                    stat = file.read()
            except OSError:
                continue
            state, parent = stat.rsplit(b") ", 1)[1].split()[:2]
            if int(parent) == pid and state != b"Z":
                found.append(int(name))
    return found


def seconds_of(pid: int) -> tuple[float, float, str]:
    """Return the processor time of process ``pid`` (s), of all that it has started, and which of these runs the most.

    The last is "4711 (rsync)"; "" where none runs.
    """
    stats = _stats()
    below, known = set[int](), {pid}
    while known:
        known = {each for each, stat in stats.items() if stat[0] in known}
        below |= known
    own, ended = stats[pid][1:3] if pid in stats else (0.0, 0.0)
    busiest = max(below, key=lambda each: stats[each][1], default=0)
    return (
        own,
        ended + sum(sum(stats[each][1:3]) for each in below),
        f"{busiest} ({stats[busiest][3]})" if below else "",
    )


def _stats() -> dict[int, tuple[int, float, float, str]]:
    """Return of every process its parent, its own time, that of its children that have ended (s), and its name."""
    found, tick = {}, os.sysconf("SC_CLK_TCK")
    for name in os.listdir("/proc"):  # noqa: PTH208
        if name.isdigit():
            with contextlib.suppress(OSError), open(f"/proc/{name}/stat", "rb") as file:  # noqa: PTH123
                head, _, tail = file.read().rpartition(b") ")
                stat = tail.split()
                own, ended = (sum(map(int, stat[at : at + 2])) / tick for at in (11, 13))
                found[int(name)] = (int(stat[1]), own, ended, head.partition(b"(")[2].decode(errors="replace"))
    return found


def unlink_segments(pid: int) -> None:
    """Unlink the shared memory of MPICH's that process ``pid`` has mapped.

    Whoever holds it keeps it, nobody else can join, and none is left in /dev/shm: MPICH itself unlinks it in
    MPI_Finalize, which a rank of a job that fails never reaches.
    """
    with contextlib.suppress(OSError), open(f"/proc/{pid}/maps") as file:  # noqa: PTH123
        names = {line[line.index(_SEGMENT) :].rstrip() for line in file if _SEGMENT in line}
        for name in names:
            with contextlib.suppress(OSError):
                os.unlink(name)  # noqa: PTH108


def unlink_forsaken(since: float, seconds: float = 0.05) -> None:
    """Unlink the shared memory of MPICH's that was made after ``since`` (s), is this user's, and is mapped by nobody.

    A rank that died by itself has left it. One that is about to be mapped is seen to be, ``seconds`` later.
    """
    with contextlib.suppress(OSError):
        left = unmapped(_made_since(since))
        if left:
            time.sleep(seconds)
            for name in unmapped(left):
                os.unlink(name)  # noqa: PTH108


def _made_since(since: float) -> set[str]:
    found = set()
    with os.scandir(os.path.dirname(_SEGMENT)) as entries:  # noqa: PTH120
        for entry in entries:
            if entry.path.startswith(_SEGMENT):
                stat = entry.stat()
                if stat.st_uid == os.getuid() and stat.st_mtime >= since:
                    found.add(entry.path)
    return found


def unmapped(names: set[str]) -> set[str]:
    """Return which of these files no process maps."""
    left = set(names)
    for name in os.listdir("/proc") if left else ():  # noqa: PTH208
        if name.isdigit():
            with contextlib.suppress(OSError), open(f"/proc/{name}/maps") as file:  # noqa: PTH123
                maps = file.read()
                left = {name for name in left if name not in maps}
    return left
