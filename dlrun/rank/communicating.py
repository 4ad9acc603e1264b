"""Whether a process could be exchanging anything with other ranks: what it has loaded, and whom it is connected to."""

from __future__ import annotations

import os

_LIBRARIES = ("/libmpi", "/libnccl", "/librccl", "/libccl", "/libfabric", "/libucp")
_OF_GPUS = ("/libcuda.so", "/libamdhip64", "/libze_loader")
_ESTABLISHED = "01"


def may_spin(pid: int) -> bool:
    """Return whether process ``pid`` has loaded what spins while it waits for others, or for a GPU that does.

    True where that cannot be known.
    """
    try:
        with open(f"/proc/{pid}/maps") as file:  # noqa: PTH123
            loaded = file.read()
    except OSError:
        return True
    return any(library in loaded for library in (*_LIBRARIES, *_OF_GPUS))


def talks(pid: int) -> bool:
    """Return whether process ``pid`` has loaded a library that communicates, or has a TCP connection to anybody.

    The latter is what torch's gloo and TensorFlow's servers look like from outside. True where that cannot be known.
    """
    try:
        with open(f"/proc/{pid}/maps") as file:  # noqa: PTH123 - pathlib costs 5 ms a rank
            loaded = file.read()
        links = [os.readlink(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd")]  # noqa: PTH115, PTH208
        tables = ""
        for kind in ("tcp", "tcp6"):
            with open(f"/proc/{pid}/net/{kind}") as file:  # noqa: PTH123
                tables += file.read()
    except OSError:
        return True
    if any(library in loaded for library in _LIBRARIES):
        return True
    rows = [line.split() for line in tables.splitlines()]
    connected = {row[9] for row in rows if len(row) > 9 and row[3] == _ESTABLISHED}
    return any(link[8:-1] in connected for link in links if link.startswith("socket:["))
