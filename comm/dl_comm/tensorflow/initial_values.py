"""What ranks hold alike though their sessions run the ops of a graph in different orders: initial values, first checks.

A session initializes variables in an order of its own, on every rank another. A team for each variable would order
that, but a graph has hundreds of them. So all their broadcasts go over one team, under their names: rank 0 sends as its
ops come to run, and the others keep what they have no use for yet.
"""

from __future__ import annotations

import ctypes
import hashlib
import threading
from collections import defaultdict, deque
from collections.abc import Callable, Sequence

import numpy as np

from dl_comm import CommError, _core
from dl_comm.ranks import own_team

Memory = tuple[int, int]  # address and number of bytes

_team = 0
_lock = threading.Lock()
_received: defaultdict[int, deque[bytes]] = defaultdict(deque)
_seen: set[str] = set()


def begin() -> None:
    """Make the team that the broadcasts take. Collective; a second call does nothing."""
    global _team
    _team = _team or own_team()


def _take_root(memory: Sequence[Memory], labels: Sequence[str]) -> None:
    """Replace the values by rank 0's of the same names, whenever it comes to them."""
    for (address, nbytes), label in zip(memory, labels, strict=True):
        value = (ctypes.c_char * nbytes).from_address(address) if nbytes else b""
        theirs = _from_root(label, bytes(value))
        if len(theirs) != nbytes:
            raise CommError(f"the initial value of {label} has {len(theirs)} bytes on rank 0, {nbytes} on this rank")
        if nbytes:
            ctypes.memmove(address, theirs, nbytes)


def _compare(memory: Sequence[Memory], labels: Sequence[str]) -> None:
    """Raise CommError on a rank whose values are not those of rank 0."""
    own = b"".join(digest_at(address, nbytes) for address, nbytes in memory)
    raise_if_different(own, _from_root("digests of " + " ".join(labels), own), labels, 0)


def _first(memory: Sequence[Memory], labels: Sequence[str]) -> None:
    """Write into an int32 whether this is the first time that something of this name is asked."""
    ctypes.c_int32.from_address(memory[0][0]).value = labels[0] not in _seen
    _seen.add(labels[0])


ACTS: dict[str, Callable[[Sequence[Memory], Sequence[str]], None]] = {
    "initial": _take_root,
    "compare": _compare,
    "first": _first,
}


def digest_at(address: int, nbytes: int) -> bytes:
    """Return a hash of 16 bytes."""
    held = (ctypes.c_char * nbytes).from_address(address) if nbytes else b""
    return hashlib.blake2b(held, digest_size=16).digest()


def raise_if_different(own: bytes, theirs: bytes, labels: Sequence[str], other: int) -> None:
    """Raise CommError, naming the first variable whose digest here is not the one of rank ``other``."""
    for i, label in enumerate(labels):
        if own[16 * i : 16 * i + 16] != theirs[16 * i : 16 * i + 16]:
            raise CommError(
                f"{label} differs between rank {other} and rank {_core.rank()} before gradients are first averaged: "
                "the ranks would train different models",
                "Restore or assign the same values on every rank, or initialize on every rank.",
            )


def _from_root(label: str, own: bytes) -> bytes:
    """Return rank 0's bytes of this label: the one that has not been returned yet, of several the first."""
    key = int.from_bytes(hashlib.blake2b(label.encode(), digest_size=8).digest(), "little") >> 1
    while True:
        with _lock:
            if _core.rank() != 0 and _received[key]:
                return _received[key].popleft()
            try:
                sent, value = _exchange(key, own)
            except CommError as error:
                raise CommError(
                    f"{label}: {error.message}",
                    "Every rank must initialize the variables that rank 0 does: not restore them, nor the reverse.",
                ) from error
            if _core.rank() == 0:
                return own
            _received[sent].append(value)


def _exchange(key: int, own: bytes) -> tuple[int, bytes]:
    """Send from rank 0 what it has, and receive elsewhere what it sends: others add zeros."""
    root = _core.rank() == 0
    header = np.array([key, len(own)] if root else [0, 0], np.int64)
    _core.allreduce([(header.ctypes.data, 2, "int64")], "sum", _team, ["name and bytes of an initial value"])
    value = np.frombuffer(own, np.uint8).copy() if root else np.zeros(int(header[1]), np.uint8)
    if value.size:
        _core.allreduce([(value.ctypes.data, value.size, "uint8")], "sum", _team, ["an initial value"])
    return int(header[0]), value.tobytes()
