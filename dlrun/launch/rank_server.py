"""The server that the ranks connect to: who is there, the output they send, and how they ended."""

from __future__ import annotations

import json
import os
import selectors
import socket
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from dlrun.rank import wire

_GLOBAL = "00"  # the scope of an address, in /proc/net/if_inet6


class Call:
    """One rank's connection, from its first byte to its last."""

    def __init__(
        self, connection: socket.socket, rank: int = -1, host: str = "", pid: int = 0, left: str | None = None
    ) -> None:
        self.connection, self.rank, self.host, self.pid = connection, rank, host, pid
        self.size: int | None = None
        self.facts: dict[str, Any] = {}
        self.reader = wire.Reader()
        self.left = left  # where the script called sys.exit(0), "" at its end
        self.ended: dict[str, Any] | None = None
        self.dies: dict[str, Any] | None = None  # a signal has ended the script
        self.trusted: bytes | None = b""  # what of the token has arrived; None once it was right


class RankServer:
    """Listens for the ranks of one job.

    Every message of a rank is handed to ``heard(rank, kind, body)`` and a connection that closes without an ``ENDED``
    to ``lost(rank)``. Single-threaded: ``selector`` is the caller's, who sets these two, and then calls :meth:`serve`
    for what it finds ready.
    """

    def __init__(
        self,
        ranks: int,
        local: bool,
        silence: int,
        selector: selectors.BaseSelector,
    ) -> None:
        self.ranks, self.silence, self.selector = ranks, silence, selector
        self.heard: Callable[[Call, bytes, bytes], None] = lambda call, kind, body: None
        self.lost: Callable[[Call], None] = lambda call: None
        self.token = os.urandom(16).hex()
        self.calls: dict[int, Call] = {}
        hosts = ["127.0.0.1"] if local else own_addresses()
        family = socket.AF_INET6 if any(":" in host for host in hosts) else socket.AF_INET
        place, backlog = ("127.0.0.1" if local else "", 0), min(max(ranks, 128), 65535)
        both = family == socket.AF_INET6  # it hears IPv4, too
        self.listener = socket.create_server(place, family=family, backlog=backlog, dualstack_ipv6=both)
        self.listener.setblocking(False)
        selector.register(self.listener, selectors.EVENT_READ, self.accept)
        self.addresses = [(host, self.listener.getsockname()[1]) for host in hosts]
        self.open = 0
        self.complete = False

    def accept(self) -> None:
        """Take all new connections; each is nobody's until its token was right."""
        with suppress(BlockingIOError):
            while True:
                connection, _ = self.listener.accept()
                wire.keep_alive(connection, self.silence)
                call = Call(connection)
                self.open += 1
                self.selector.register(connection, selectors.EVENT_READ, partial(self.serve, call))

    def serve(self, call: Call) -> None:
        """Read what one rank has sent."""
        try:
            data = call.connection.recv(1 << 18)
        except OSError:
            data = b""
        if not data:
            self._close(call)
            return
        if call.trusted is not None:
            call.trusted += data
            token, data = call.trusted[: len(self.token)], call.trusted[len(self.token) :]
            if sum(a ^ b for a, b in zip(token, self.token.encode(), strict=False)):  # as long, wherever it differs
                self._close(call)
                return
            if len(token) < len(self.token):
                return
            call.trusted = None
        for kind, body in call.reader.feed(data):
            if kind == wire.HELLO:
                self._enrol(call, json.loads(body))
            elif kind == wire.LEAVES:
                call.left = json.loads(body)["left"]
            elif kind == wire.ENDED:
                call.ended = json.loads(body)
            elif kind == wire.DIES:
                call.dies = json.loads(body)
            self.heard(call, kind, body)

    def welcome(self) -> None:
        """All have called: give each its place in the job. Nodes are numbered in the order of their lowest rank."""
        nodes: dict[str, list[int]] = {}
        master = (self._address_of_first(), self.calls[0].facts.get("port"))
        for rank in sorted(self.calls):
            nodes.setdefault(self.calls[rank].host, []).append(rank)
        for node, ranks in enumerate(nodes.values()):
            cpus = [self.calls[rank].facts["cpus"] for rank in ranks]
            shm = min(self.calls[rank].facts["shm"] for rank in ranks)
            for local_rank, rank in enumerate(ranks):
                self._send(
                    self.calls[rank],
                    wire.WELCOME,
                    {
                        "size": self.ranks,
                        "local_rank": local_rank,
                        "local_size": len(ranks),
                        "node": node,
                        "nnodes": len(nodes),
                        "cpus": cpus if any(each != cpus[0] for each in cpus) else None,
                        "master": master,
                        "shm": shm,
                    },
                )
        self.complete = True

    def stop(self, signal: int, grace: float) -> None:
        """Have every script that still runs end: ``signal`` now, SIGKILL after ``grace`` seconds."""
        for call in self.calls.values():
            if call.ended is None:
                self._send(call, wire.STOP, {"signal": signal, "grace": grace})

    def feed(self, rank: int, data: bytes) -> None:
        """Give a rank's script a piece of standard input, b"" at its end."""
        if rank in self.calls and self.calls[rank].ended is None:
            self._send(self.calls[rank], wire.IN, data)

    def ask_stacks(self) -> int:
        """Ask every rank that still runs where it stands; return how many there are."""
        running = [call for call in self.calls.values() if call.ended is None]
        for call in running:
            self._send(call, wire.ASK, {})
        return len(running)

    def missing(self) -> list[int]:
        """Return the ranks that have not called."""
        return [rank for rank in range(self.ranks) if rank not in self.calls]

    def close(self) -> None:
        """Hang up on everybody."""
        self.selector.unregister(self.listener)
        self.listener.close()
        for key in list(self.selector.get_map().values()):
            if isinstance(key.fileobj, socket.socket):
                self.selector.unregister(key.fileobj)
                key.fileobj.close()

    def _address_of_first(self) -> str:
        """Return an address at which all ranks reach rank 0: where its call, or one from elsewhere, was seen."""
        first = self.calls[0]
        if first.host == socket.gethostname():
            others = [call for call in self.calls.values() if call.host != first.host]
            return _plain((others or [first])[0].connection.getsockname()[0])
        return _plain(first.connection.getpeername()[0])

    def _enrol(self, call: Call, hello: dict[str, Any]) -> None:
        call.facts = hello
        call.rank, call.host, call.pid, call.size = hello["rank"], hello["host"], hello["pid"], hello["size"]
        self.calls.setdefault(call.rank, call)

    def _send(self, call: Call, kind: bytes, payload: bytes | dict[str, Any]) -> None:
        with suppress(OSError):
            call.connection.sendall(wire.pack(kind, payload))

    def _close(self, call: Call) -> None:
        self.selector.unregister(call.connection)
        call.connection.close()
        self.open -= 1
        if call.rank >= 0 and call.ended is None:
            self.lost(call)


def own_addresses() -> list[str]:
    """Return this machine's addresses, the one its name stands for first, loopback left out; IPv6 after IPv4."""
    import fcntl
    import struct

    found: list[str] = []
    with suppress(OSError):
        found += [str(info[4][0]) for info in socket.getaddrinfo(socket.gethostname(), None, socket.AF_INET)]
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            with suppress(OSError):  # SIOCGIFADDR; an interface without an IPv4 address
                answer = fcntl.ioctl(probe.fileno(), 0x8915, struct.pack("256s", os.fsencode(name)[:15]))
                found.append(socket.inet_ntoa(answer[20:24]))
    return [*_unique(address for address in found if not address.startswith("127.")), *_ipv6()]


def _ipv6(table: Path = Path("/proc/net/if_inet6")) -> list[str]:
    """Return this machine's IPv6 addresses that other machines reach; none where sockets cannot take IPv4 besides."""
    if not socket.has_dualstack_ipv6():
        return []
    try:
        rows = [line.split() for line in table.read_text().splitlines()]
    except OSError:
        return []
    found = [socket.inet_ntop(socket.AF_INET6, bytes.fromhex(row[0])) for row in rows if row[3] == _GLOBAL]
    return _unique(found)


def _plain(address: str) -> str:
    """Return an IPv4 address as that, where a socket of both kinds has it as one of IPv6's."""
    return str(address).removeprefix("::ffff:")


def _unique(items: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(items))
