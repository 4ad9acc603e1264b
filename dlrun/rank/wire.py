"""The messages between the watchers and ``dlrun launch``: one byte of kind, four of length, the payload.

A rank's first message is ``HELLO``. When all ranks have called, each gets ``WELCOME`` with its place in the job and
starts its script. A closed connection means that the other side is dead: a watcher then ends its script, and
``dlrun launch`` ends the job. So neither a killed launcher nor a dead node leaves anything running.
"""

from __future__ import annotations

import json
import socket
import struct
from typing import Any

HELLO = b"H"  # {rank, size, host, pid, port, ...}
WELCOME = b"W"  # {size, local_rank, local_size, node, nnodes, cpus, master, shm}
OUT, ERR = b"O", b"E"  # what the script wrote, as it wrote it
FAILED = b"F"  # {rank, host, pid, what, where, code, tail, time}
LEAVES = b"L"  # {left}: the script has come to its end, or called sys.exit(0) there; its exit hooks may wait for others
ENDED = b"X"  # {code, talked, said, left}: the script is gone, having said how it ended (and where), or not (os._exit)
DIES = b"D"  # {what, code}: a signal has ended the script; whose it was comes next, unless the watcher goes, too
ASK, STACK = b"?", b"K"  # {}; {pid, dump, call, begun, stopped, written, seconds, child, spins}: where it stands
SIGNALLED = b"G"  # {signal}: somebody else sent the watcher this signal; what follows is for ``dlrun launch`` to say
TALKS = b"T"  # {talks}: whether the script, which has run for a while, could be talking to other ranks
READS, IN = b"R", b"I"  # {}; a piece of standard input, b"" its end: the script reads, and this is what there is
STOP = b"S"  # {signal, grace}: send the script this signal, and SIGKILL after ``grace`` seconds

_HEAD = struct.Struct("!cI")
_PROBES = 4
_LONGEST = 3 * 32767  # seconds; the kernel takes no TCP_KEEPIDLE above 32767 (MAX_TCP_KEEPIDLE)


def keep_alive(connection: socket.socket, silence: int) -> None:
    """Have the kernel close a connection whose other side has not answered for ``silence`` seconds: a cut cable."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    silence = min(silence, _LONGEST)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, max(silence // 3, 1))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, max(silence * 2 // 3 // _PROBES, 1))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, _PROBES)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, silence * 1000)


def pack(kind: bytes, payload: bytes | dict[str, Any]) -> bytes:
    """Return one message as bytes; a dict travels as JSON."""
    body = json.dumps(payload).encode() if isinstance(payload, dict) else payload
    return _HEAD.pack(kind, len(body)) + body


class Reader:
    """Cuts a stream of bytes into messages."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[tuple[bytes, bytes]]:
        """Take what has arrived; return the messages, (kind, payload), that are now complete."""
        self._buffer += data
        messages = []
        while len(self._buffer) >= _HEAD.size:
            kind, length = _HEAD.unpack_from(self._buffer)
            end = _HEAD.size + length
            if len(self._buffer) < end:
                break
            messages.append((kind, bytes(self._buffer[_HEAD.size : end])))
            del self._buffer[:end]
        return messages
